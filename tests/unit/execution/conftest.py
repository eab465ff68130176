"""What the tests of waiting share: a flow that calls back, and a supervisor that parks tasks."""

from __future__ import annotations

import copy
import json
import threading
from datetime import UTC, datetime, timedelta
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
from workflow_automation_provider.execution.errors import SUPPLIED_RUN_KEY
from workflow_automation_provider.operators.flows import TriggerFlowOperator

from ..starts import KEY

ISSUED: list[str] = []
"""The tokens that the task has made, in order: the service's journal withholds them."""

WAIT = "workflow_automation_wait"


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
    """What stands for Airflow's supervisor: it keeps what a task sends."""

    def __init__(self):
        self.sent = []

    def send(self, msg):
        self.sent.append(msg)


@pytest.fixture
def endpoint(store, workflow_automation_connect):
    with Endpoint(store) as endpoint:
        workflow_automation_connect(extra={"callback_base_url": endpoint.url})
        yield endpoint


@pytest.fixture
def supervisor(store, monkeypatch):
    """Have a task supervised, so that it can park."""
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


class Task:
    """
    A task instance that waits for its run, through its tries and their processes.

    :param fixture: gets a fixture; with that of a supervisor a task can park
    """

    def __init__(self, service, store, fixture):
        self._service = service
        self.store = store
        self._fixture = fixture
        self.begin()

    @property
    def entries(self):
        return self.store.entries

    @property
    def tokens(self):
        """The keys of the tokens that a callback can answer with."""
        return {key for key in self.entries if "_token/" in key}

    def run(self, **more):
        """Return the result of the run that the service started."""
        link = f"{self._service.url}/runs/1001"
        return {"run_id": "1001", "run_link": link, "flow_id": "demo-flow", **more}

    def begin(self, **attempt):
        """Begin a try."""
        self.now, self.then = self._fixture("context")(self.store, **attempt), {}

    def retry(self, try_number=2, **attempt):
        self.begin(try_number=try_number, **attempt)

    def clear(self, try_number=2, max_tries=4, **attempt):
        self.begin(try_number=try_number, max_tries=max_tries, **attempt)

    def execute(self, **options):
        return self._fixture("waits")(**options).execute(self.now)

    def park(self, event=None, **options):
        """Execute, or continue, until it parks; return for how long."""
        operator = self._fixture("waits")(**options)
        self.then, timeout = self._fixture("parked")(operator, self.now, event, **self.then)
        return timeout

    def resume(self, event=None, **options):
        return self._fixture("resume")(self._fixture("waits")(**options), self.now, event, **self.then)

    def fail(self, kind, event=None, **options):
        """Execute, or continue once it has parked; return the error."""
        with pytest.raises(kind) as caught:
            self.resume(event, **options) if self.then else self.execute(**options)
        return caught.value

    def answer(self, status="success", **body):
        """Answer as the endpoint does, for the token that counts."""
        digest = self.entries[KEY]["token"]
        assert {*token_keys(digest, self.now["ti"].max_tries)} & self.entries.keys()
        answer = Answer.read(json.dumps({"status": status, **body}).encode())
        self.store.set(end_key(digest), answer.row("2026-01-01T00:00:00+00:00"))

    def answer_once_started(self, status="success", **body):
        """Have the flow call back as soon as its run is recorded."""
        write = self.store.set

        def set_and_answer(key, value, **options):
            write(key, value, **options)
            if key == KEY and value["state"] == "started":
                self.answer(status, **body)

        self.store.set = set_and_answer

    def answer_before_the_token_is_deleted(self, status="success", **body):
        """Have the flow call back, and get 200, after the task has looked for its answer."""
        delete = self.store.delete

        def answer_and_delete(key):
            if "_token/" in key:
                self.store.delete = delete
                self.answer(status, **body)
            delete(key)

        self.store.delete = answer_and_delete

    def enter(self, run_id="1001"):
        """Enter the run, as a person does."""
        self.entries[SUPPLIED_RUN_KEY] = run_id

    def later(self, **changes):
        """Move the beginning of the wait into the past."""
        self.entries[WAIT]["since"] = (datetime.now(UTC) - timedelta(**changes)).isoformat()


@pytest.fixture
def task(service, store, endpoint, request):
    return Task(service, store, request.getfixturevalue)


@pytest.fixture
def issued(monkeypatch):
    """Note the tokens that the task makes in ``ISSUED``."""

    def issue(ti_id):
        ISSUED.append(new_token(ti_id))
        return ISSUED[-1]

    ISSUED.clear()
    monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", issue)
