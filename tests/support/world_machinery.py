"""
What all worlds of a test process share.

Airflow's database, the service, the endpoint; for :mod:`world`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import httpx
import structlog

from waiting_tasks import make_dag
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from world_process import Process

KEY = Key("a-key-that-nobody-may-ever-see", "demo-flow")


class Machinery:
    """
    What all worlds of a process share: Airflow's database, the service, and the endpoint.

    :param home: of Airflow
    """

    _dags: ClassVar[dict[str, Any]] = {}
    """By their ids: to make one takes longer than most tests."""

    def __init__(self, home: Path) -> None:
        from workflow_automation_provider.plugins.callback_endpoint import app

        self._home = home
        self.service = LocalService(keys=[KEY])
        self.on_request: Callable[[str], None] = lambda _: None
        """Called with the path of each request of a process."""
        self.on_run: Callable[[Any, dict[str, Any]], None] = lambda *_: None
        """Called with each run that the service starts, and its inputs."""
        self._processes: list[tuple[Process, int]] = []
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), trust_env=False)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def connect(self, **extra: Any) -> None:
        """Point the default connection at the service."""
        extras = {"callback_base_url": "http://127.0.0.1:1", "timeout": 5, **extra}
        connection = json.dumps(self.service.airflow_connection(KEY, extras))
        os.environ["AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT"] = connection

    def dag_of(self, operator: Any) -> Any:
        dag_id = f"world-{operator.task_id}-{operator.retries}"
        if dag_id not in self._dags:
            task = f"EmptyOperator(task_id={operator.task_id!r}, retries={operator.retries})"
            self._dags[dag_id] = make_dag(self._home, dag_id, task)
        return self._dags[dag_id]

    def ask(self, url: str, method: str, body: Any) -> httpx.Response:
        sending = self._client.request(method, url, json=body)
        return asyncio.run_coroutine_threadsafe(sending, self._loop).result(60)

    @contextmanager
    def supervised(self, process: Process) -> Iterator[None]:
        self._processes.append((process, threading.get_ident()))
        try:
            yield
        finally:
            self._processes.pop()

    @property
    def process(self) -> Process | None:
        """The one that is executed now."""
        return self._processes[-1][0] if self._processes else None

    @property
    def _own(self) -> Process | None:
        """The one whose main thread this is."""
        own = self._processes and self._processes[-1][1] == threading.get_ident()
        return self._processes[-1][0] if own else None

    def log(self, text: str) -> None:
        if self.process and not self.process.is_dead:
            self.process.log += f"{text}\n"

    @contextmanager
    def patches(self) -> Iterator[None]:
        """
        Have the processes make their calls as their scripts say.

        And wait without taking time.
        """
        from airflow.sdk.execution_time import task_runner

        from workflow_automation_provider.execution.run import trigger_execution
        from workflow_automation_provider.hooks import workflow_automation
        from workflow_automation_provider.testing._server.callback_sender import CallbackSender

        supervisor = SimpleNamespace(send=lambda *_, **__: None)
        with (
            mock.patch.object(task_runner, "SUPERVISOR_COMMS", supervisor, create=True),
            mock.patch.object(httpx.Client, "send", self._sends(httpx.Client.send)),
            mock.patch.object(CallbackSender, "begin", self._begins()),
            # It takes longer with each key and token, and no log is kept that it would mask.
            mock.patch.object(workflow_automation, "mask_secret"),
            mock.patch.object(trigger_execution, "mask_secret"),
            mock.patch.object(time, "sleep", self._sleeps(time.sleep)),
            mock.patch.object(time, "monotonic", self._tells(time.monotonic)),
            mock.patch.dict(os.environ),
            self._logs(),
        ):
            self.connect()
            yield
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _sends(self, send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
        def counted(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
            if (process := self.process) is None:
                return send(client, request, **options)
            response: httpx.Response = process.call(
                "send", request.url.path, lambda: carried_out(client, request, **options)
            )
            return response

        def carried_out(
            client: httpx.Client, request: httpx.Request, **options: Any
        ) -> httpx.Response:
            self.on_request(request.url.path)
            return send(client, request, **options)

        return counted

    def _begins(self) -> Callable[..., None]:
        def begin(_: object, run: Any, inputs: dict[str, Any]) -> None:
            self.on_run(run, inputs)

        return begin

    def _sleeps(self, sleep: Callable[[float], None]) -> Callable[[float], None]:
        def pass_by(seconds: float) -> None:
            if own := self._own:
                own.late_by += seconds
            else:
                sleep(seconds)

        return pass_by

    def _tells(self, monotonic: Callable[[], float]) -> Callable[[], float]:
        return lambda: monotonic() + (own.late_by if (own := self._own) else 0)

    @contextmanager
    def _logs(self) -> Iterator[None]:
        """Keep the log of each process, and of the endpoint, in place of showing it."""

        def keep(_: object, __: str, event: Any) -> Any:
            words = (
                event["event"] % event["positional_args"]
                if event.get("positional_args")
                else event["event"]
            )
            assert not {"None", "None.", "%s", "%d"} & {*words.split()}, words
            error = event.get("exc_info")
            text = (
                "".join(traceback.format_exception(sys.exception()))
                if error and sys.exception()
                else ""
            )
            self.log(f"{words}\n{text}")
            raise structlog.DropEvent

        handler = logging.Handler()
        handler.emit = lambda record: self.log(logging.Formatter().format(record))  # type: ignore[method-assign]
        processors = structlog.get_config()["processors"]
        before = [*processors]
        processors[:] = [keep]
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            processors[:] = before
            logging.getLogger().removeHandler(handler)
