"""
A gate before Airflow's api-server.

It sees which process runs what, and holds a request where a test asks.

A supervisor asks the execution API for all that its task needs, also for the task state store. So
to hold one request, on its way there or its response on the way back, is to stop the task at that
very moment of its life, with nothing of the provider or of Airflow replaced.

It lets one request at a time through: on SQLite, the api-server locks itself up when many write at
once (those that wait for the database's lock take all the threads, and the one that has it needs
another to commit).
"""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from airflow_launcher.processes import parent
from entry_keys import RUN
from workflow_automation_provider.testing._server.server import BackgroundServer, listen

_TI_PATH = re.compile(r"/execution/(?:task-instances|store/ti)/([0-9a-f-]{36})\b")
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Try:
    """One try of a task instance: the process that runs it, and its supervisor."""

    ti_id: str
    run_id: str
    pid: int
    supervisor: int


@dataclass
class Hold:
    """
    A request to be held, the first that fits.

    :param run_id: the DAG run that it is about
    :param point: hold it ``before`` it is forwarded, or ``after`` it was answered
    :param method: its method
    :param path: what its path contains
    """

    run_id: str
    point: Literal["before", "after"]
    method: str
    path: str
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def fits(self, run_id: str | None, method: str, path: str) -> bool:
        is_this = (run_id, method) == (self.run_id, self.method) and self.path in path
        return is_this and not self.reached.is_set()


class Gate:
    """
    Forwards to the api-server; runs in a thread of its own.

    :param upstream: the api-server's address
    """

    def __init__(self, upstream: str) -> None:
        self.tries: list[Try] = []
        self.looked: dict[str, datetime] = {}
        """When each task instance last asked how its run ended, by its id."""
        self._client = httpx.AsyncClient(base_url=upstream, timeout=60, trust_env=False)
        self._holds: list[Hold] = []
        self._run_ids: dict[str, str] = {}
        self._one = asyncio.Semaphore(1)
        sock = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
        app = Starlette(routes=[Route("/{path:path}", self._forward, methods=methods)])
        self._server = BackgroundServer(app, sock, asyncio.Event())

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        for hold in self._holds:
            hold.released.set()
        self._server.stop()

    def hold(self, hold: Hold) -> Hold:
        self._holds.append(hold)
        return hold

    def tries_of(self, run_id: str) -> list[Try]:
        """Return the tries of a run's only task, oldest first."""
        return [found for found in self.tries if found.run_id == run_id]

    async def _forward(self, request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:  # killed while it asked: nobody reads an answer
            return Response(status_code=400)
        path = request.url.path
        found = _TI_PATH.search(path)
        ti_id = found[1] if found else ""
        if request.method == "GET" and f"/{RUN}" in path:
            self.looked[ti_id] = datetime.now(UTC)
        run_id = self._run_ids.get(ti_id)
        hold = next((hold for hold in self._holds if hold.fits(run_id, request.method, path)), None)
        if hold and hold.point == "before":
            await self._wait(hold)
        url = httpx.URL(path=path, query=request.url.query.encode())
        headers = [(n, v) for n, v in request.headers.items() if n not in _HOP_BY_HOP]
        try:
            async with self._one:
                answer = await self._client.request(
                    request.method, url, headers=headers, content=body
                )
        except httpx.TransportError:
            return Response(status_code=502)
        if path.endswith("/run") and answer.status_code == 200:
            pid, run_id = (await request.json())["pid"], answer.json()["dag_run"]["run_id"]
            self._run_ids[ti_id] = run_id
            self.tries.append(Try(ti_id, run_id, pid, parent(pid)))
        if hold and hold.point == "after":
            await self._wait(hold)
        back = {
            n: v for n, v in answer.headers.items() if n not in {*_HOP_BY_HOP, "content-encoding"}
        }
        return Response(answer.content, answer.status_code, back)

    async def _wait(self, hold: Hold) -> None:
        hold.reached.set()
        while not hold.released.is_set():
            await asyncio.sleep(0.02)
