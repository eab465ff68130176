"""What the tests of waiting and asking share: a flow that calls back, and a supervisor that parks tasks."""

from __future__ import annotations

import copy
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from workflow_automation_provider.execution.callback import (
    PATH,
    Answer,
    digest_of,
    end_key,
    new_token,
    token_keys,
)
from workflow_automation_provider.operators.flows import TriggerFlowOperator

from ..claims import ISSUED
from ..starts import trigger


class Endpoint:
    """
    The callback endpoint, in front of a state store in memory instead of Airflow's database.

    :param max_tries: those of the waiting task instance, which a Clear changes
    """

    def __init__(self, store):
        self.store = store
        self.max_tries = 3
        self.urls = []
        self.statuses = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(endpoint.answer(self.path, body))
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/team"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def token(self):
        return parse_qs(urlsplit(self.urls[-1]).query)["token"][0]

    def answer(self, url, body):
        self.urls.append(url)
        digest = digest_of(self.token)
        is_open = any(key in self.store.entries for key in token_keys(digest, self.max_tries))
        status = 200 if urlsplit(url).path == f"/team{PATH}" and is_open else 404
        self.statuses.append(status)  # before the answer, with which the task goes on
        if status == 200:
            self.store.set(end_key(digest), Answer.read(body).row("2026-01-01T00:00:00+00:00"))
        return status


class Supervisor:
    """What stands for Airflow's supervisor: it keeps the questions that a task asks."""

    def __init__(self):
        self.questions = []
        self.failures = []

    def send(self, msg):
        if type(msg).__name__ == "CreateHITLDetailPayload":
            if self.failures:
                raise self.failures.pop()
            self.questions.append(msg)


@pytest.fixture
def endpoint(store, workflow_automation_connect):
    with Endpoint(store) as endpoint:
        workflow_automation_connect(extra={"callback_base_url": endpoint.url})
        yield endpoint


@pytest.fixture
def supervisor(store, monkeypatch):
    """Have a task supervised, so that it can park and ask."""
    from airflow.sdk.execution_time import task_runner

    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


@pytest.fixture
def waits():
    """Make an operator that waits, and sends once."""

    def make(**options):
        return TriggerFlowOperator(
            **{
                "task_id": "trigger",
                "inputs": {"a": 1},
                "send_retry_timeout": 0,
                "wait_for_completion": True,
                **options,
            }
        )

    return make


@pytest.fixture
def resume():
    """Continue a parked task as Airflow does: in another process, with another object of the task instance."""

    def resume(operator, now, event=None, **then):
        return operator.execute_complete({**now, "ti": copy.copy(now["ti"])}, event=event, **then)

    return resume


@pytest.fixture
def parked(supervisor, resume):
    """Execute, or continue, until the task parks; return what Airflow would continue it with, and for how long."""
    from airflow.sdk.exceptions import TaskAwaitingInput

    def run(operator, now, event=None, **then):
        def begin(operator, now, event):
            operator.execute(now)

        go = begin if event is None and not then else resume
        with pytest.raises(TaskAwaitingInput) as caught:
            go(operator, now, event, **then)
        assert caught.value.method_name == "execute_complete"
        return caught.value.kwargs, caught.value.timeout

    return run


@pytest.fixture
def issued(monkeypatch):
    """Note the tokens that the task makes in ``ISSUED``."""

    def issue(ti_id):
        ISSUED.append(new_token(ti_id))
        return ISSUED[-1]

    ISSUED.clear()
    monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", issue)


@pytest.fixture
def claims(endpoint, issued):
    def make(**options):
        return trigger(**{"on_unknown_start": "claim", "claim_timeout": timedelta(seconds=5), **options})

    return make
