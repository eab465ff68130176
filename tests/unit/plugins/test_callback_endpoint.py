"""
The endpoint, over HTTP, against a real metadata database.

What it rejects, what it keeps, and what it stays within.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest
from sqlalchemy.exc import DataError, OperationalError

from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import MAX_BODY, new_token, parse
from workflow_automation_provider.execution.record.entries import End, RunReports
from workflow_automation_provider.plugins import callback_endpoint, callback_store

from .conftest import serving

SUCCESS = {"status": "success", "result": {"rows": 3}}
FAILED = {"status": "failed", "message": "There were no orders."}
NOTHING = RunReports()


@pytest.fixture(autouse=True)
def _no_secrets_in_the_log(caplog):
    """Neither a token nor a body is logged, whatever happens."""
    for name in ("workflow_automation_provider", "uvicorn", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    yield
    assert "token=" not in caplog.text
    assert "orders" not in caplog.text


def unknown():
    """The URL with a token that no task has given out."""
    return f"{CALLBACK_PATH}?token={new_token(uuid4())}"


# What is rejected.


def test_order_of_the_checks(waiting, http):
    """Each request is wrong in all that is checked later, too."""
    task = waiting(state="failed")
    large, bad = b"x" * (MAX_BODY + 1), b'{"status": "done"}'
    assert http.get("/workflow-automation/other", params={"token": "short"}).status_code == 404
    for method in ("GET", "HEAD", "OPTIONS"):
        response = http.request(method, f"{CALLBACK_PATH}?token=short")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert http.post(CALLBACK_PATH, params={"token": "short"}, content=large).status_code == 404
    assert http.post(unknown(), content=large).status_code == 404
    assert http.post(task.url, content=large).status_code == 413
    assert http.post(task.url, content=bad).status_code == 400
    assert task.reports == NOTHING
    assert http.post(task.url, json={"status": "started"}).status_code == 404


def test_responses_do_not_tell_tokens_apart(waiting, http):
    """The id of a task instance is no secret."""
    task = waiting(state="failed")
    forged = new_token(task.ti.id)
    assert forged[:20] == task.token[:20]
    urls = [
        f"{CALLBACK_PATH}?token={token}"
        for token in (task.token, forged, "x" * 64, "short", "", "%00" * 64)
    ]
    urls += [
        unknown(),
        CALLBACK_PATH,
        f"{task.url}&token={task.token}",
        f"{CALLBACK_PATH}/{task.token}",
        "/",
    ]
    responses = [http.post(url, json={"status": "started"}) for url in urls]
    assert {response.status_code for response in responses} == {404}
    shown = [({**response.headers, "date": ""}, response.content) for response in responses]
    assert all(one == shown[0] for one in shown)
    assert shown[0][0]["cache-control"] == "no-store"


# Bodies.


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"status": "done"}', "400: status is missing or unknown"),
        (b"status=success", "400: The body is not JSON"),
        (b'{"status": "success", "result": NaN}', "400: result contains a number"),
        (b'"' + b"x" * MAX_BODY + b'"', "413: The body is larger"),
    ],
)
def test_refused_call_leaves_a_trace(waiting, http, say, body, why):
    """Beside what the run has reported while it worked, and until the next one."""
    task = waiting()
    assert say(task.url, message="half") == 200
    assert http.post(task.url, content=body).status_code == int(why[:3])
    assert task.last_message["refusal"].startswith(why)
    assert task.last_message["message"] == "half"
    assert datetime.fromisoformat(task.last_message["refused_at"]) <= datetime.now(UTC)
    assert say(task.url, progress=0.5) == 200
    assert task.last_message["refusal"].startswith(why)
    assert "message" not in task.last_message


@pytest.mark.parametrize(
    ("size", "status"), [(MAX_BODY, 200), (MAX_BODY + 1, 413), (30 * MAX_BODY, 413)]
)
def test_largest_body(waiting, http, size, status):
    task = waiting()
    body = b'{"status": "success"}'.ljust(size)
    response = http.post(task.url, content=iter([body[:1000], body[1000:]]))
    assert response.status_code == status
    assert (task.reports == NOTHING) == (status == 413)


@contextlib.contextmanager
def half_a_request(base_url, url):
    """Send all but the end of a callback."""
    host, port = base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            f"POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 21\r\n\r\n".encode()
        )
        connection.sendall(b'{"status": ')
        yield connection


def test_body_of_a_stranger_is_not_read(dag, base_url):
    with half_a_request(base_url, unknown()) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 404 ")


def test_slow_body(waiting, base_url, monkeypatch):
    find = callback_store.find

    def know(token):
        monkeypatch.setattr(callback_endpoint, "_TIMEOUT", 0.2)
        return find(token)

    monkeypatch.setattr(callback_store, "find", know)
    with half_a_request(base_url, waiting().url) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_client_that_goes_away(waiting, base_url, monkeypatch):
    gone = threading.Event()
    body = callback_endpoint._body

    async def watched(request):
        try:
            return await body(request)
        finally:
            gone.set()

    monkeypatch.setattr(callback_endpoint, "_body", watched)
    task = waiting()
    with half_a_request(base_url, task.url):
        pass
    assert gone.wait(60)
    assert task.reports == NOTHING


def test_body_is_parsed_off_the_event_loop(waiting, http, monkeypatch):
    """Where it would hold up everything else that the API server does."""
    loops = []

    def watched(body):
        loops.append(asyncio._get_running_loop())
        return parse(body)

    monkeypatch.setattr(callback_endpoint, "parse", watched)
    assert http.post(waiting().url, json=SUCCESS).status_code == 200
    assert loops == [None]


# The end.


@pytest.mark.parametrize(
    ("answer", "timeout"),
    [(SUCCESS, timedelta(hours=1)), (FAILED, timedelta(seconds=1)), (FAILED, None)],
)
def test_end_wakes_a_waiting_task(waiting, http, answer, timeout):
    """By a timeout that is lowered, and never raised."""
    before = timeout and datetime.now(UTC) + timeout
    task = waiting(trigger_timeout=before)
    assert http.post(task.url, json=answer).status_code == 200
    end, ti = task.reports.end, task.ti
    kept = End(end.at, answer["status"], None, answer.get("result"), answer.get("message"))
    assert task.reports == RunReports(end=kept)
    assert ti.state == "awaiting_input"
    assert (ti.trigger_timeout == before) == (timeout == timedelta(seconds=1))
    assert task.seconds_left() <= 25


def test_same_and_other_end(waiting, http):
    """The same one wakes again: the task may have suspended since."""
    task = waiting()
    assert http.post(task.url, json=SUCCESS).status_code == 200
    reports, later = task.reports, datetime.now(UTC) + timedelta(hours=1)
    task.change(trigger_timeout=later)
    assert http.post(task.url, json=FAILED).status_code == 409
    assert task.ti.trigger_timeout == later
    assert http.post(task.url, json={"result": {"rows": 3}, "status": "success"}).status_code == 200
    assert task.seconds_left() <= 25
    assert task.reports == reports


def test_mapped(waiting, say):
    """Each task instance has a record of its own."""
    task = waiting(task_id="mapped", map_index=1)
    assert say(task.url, "success") == 200
    assert task.reports.end
    assert task.seconds_left() <= 25
    task.rows.map_index = 2
    assert task.reports == NOTHING
    assert task.ti.trigger_timeout is None


# The database.


def test_locked_database(waiting, http, locked_database, caplog):
    task = waiting()
    with locked_database():
        response = http.post(task.url, json=SUCCESS)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert "database is locked" in caplog.text or "lock timeout" in caplog.text
    assert task.reports == NOTHING
    with ThreadPoolExecutor(1) as pool:
        with locked_database():
            call = pool.submit(http.post, task.url, json=SUCCESS)
            time.sleep(0.05)
        assert call.result().status_code == 200


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("_write", DataError("INSERT", {"value": "orders"}, ValueError("no orders")), "ValueError"),
        (
            "_find",
            OperationalError("SELECT", {"key": "orders"}, ValueError("gone")),
            "handled: gone",
        ),
        ("_find", KeyError("orders"), "(?s)KeyError at.*callback_store.py"),
    ],
)
def test_unexpected_error(waiting, http, monkeypatch, caplog, name, error, words):
    """
    The log says where it happened, but not its words.

    Which have the statement and its parameters.
    """

    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(callback_store, name, fail)
    assert http.post(waiting().url, json=FAILED).status_code == 503
    assert re.search(words, caplog.text)


def test_stuck_database(request, waiting, http, monkeypatch, caplog):
    """
    What is pending is bounded, strangers and flows alike, and nobody is kept waiting.

    Strangers do not fill the log.

    At most 4 threads are in the database, also once nobody waits for them any more.
    """
    going_on, stuck = threading.Event(), []
    request.addfinalizer(going_on.set)

    def hang(_):
        stuck.append(threading.current_thread())
        going_on.wait()

    task, room = waiting(), 8
    pending = threading.Semaphore(room)
    monkeypatch.setattr(callback_endpoint, "_PENDING", pending)
    with monkeypatch.context() as patch, ThreadPoolExecutor(room) as pool:
        patch.setattr(callback_store, "find", hang)
        patch.setattr(callback_endpoint, "_TIMEOUT", 0.2)
        responses = [
            *pool.map(lambda url: http.post(url, json=SUCCESS), [unknown() for _ in range(room)])
        ]
        responses.append(http.post(task.url, json=SUCCESS))
    assert len(stuck) == 4
    assert {(one.status_code, one.headers["retry-after"]) for one in responses} == {(503, "5")}
    assert [record for record in caplog.records if record.name == callback_endpoint.__name__] == []
    going_on.set()
    assert all(pending.acquire(blocking=False) for _ in range(room))
    assert http.post(task.url, json=SUCCESS).status_code == 503
    pending.release(room)
    assert http.post(task.url, json=SUCCESS).status_code == 200


def test_shutdown_while_a_thread_is_stuck(request, monkeypatch):
    going_on = threading.Event()
    request.addfinalizer(going_on.set)
    monkeypatch.setattr(callback_store, "find", lambda _: going_on.wait())
    monkeypatch.setattr(callback_endpoint, "_TIMEOUT", 0.2)
    with serving() as url:
        assert httpx.post(f"{url}{unknown()}", trust_env=False).status_code == 503


# The server around it.


@pytest.mark.parametrize("root_path", ["", "/prefix"])
@pytest.mark.parametrize("prefix", ["", "/prefix"])
def test_mounted(waiting, root_path, prefix):
    """Also behind a proxy that removes the prefix, or does not."""
    import fastapi

    task = waiting()
    server = fastapi.FastAPI(root_path=root_path)
    server.mount("/workflow-automation", callback_endpoint.app)

    async def call():
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            return (await client.post(f"{prefix}{task.url}", json=SUCCESS)).status_code

    assert asyncio.run(call()) == (404 if prefix and not root_path else 200)


def test_every_coordinate_is_known():
    """
    A column that tells task instances apart and is not compared would let one answer for another.
    """
    from airflow.models.task_state_store import TaskStateStoreModel
    from sqlalchemy import UniqueConstraint

    constraints = TaskStateStoreModel.__table__.constraints
    (unique,) = (
        constraint for constraint in constraints if isinstance(constraint, UniqueConstraint)
    )
    known = {*callback_store.COORDINATES, "dag_run_id", "key"}
    assert {column.name for column in unique.columns} - known == set()
