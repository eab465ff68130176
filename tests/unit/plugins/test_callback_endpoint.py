"""The endpoint, over HTTP, against a real metadata database."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from sqlalchemy.exc import DataError

from workflow_automation_provider.execution.callback import (
    MAX_BODY,
    PATH,
    new_token,
    read,
)
from workflow_automation_provider.plugins import callback_endpoint, metadata
from workflow_automation_provider.plugins.daemon_threads import MAX_PENDING, DaemonThreads

SUCCESS = {"status": "success", "result": {"rows": 3}}
FAILED = {"status": "failed", "message": "There were no orders."}

STORED, NOT_FOUND, ANOTHER, UNAVAILABLE = 200, 404, 409, 503

ENDED = ["success", "failed", "skipped", "upstream_failed", "removed"]
NOT_PARKED = ["running", "queued", "scheduled", "up_for_retry", None]


@pytest.fixture(autouse=True)
def _no_secrets_in_the_log(caplog):
    """Neither a token nor a body is logged, whatever happens."""
    for name in ("workflow_automation_provider", "uvicorn", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    yield
    assert "token=" not in caplog.text
    assert "orders" not in caplog.text


@pytest.fixture
def post(http):
    """Send an answer, and return the status of the response."""

    def call(url, answer=SUCCESS, **options):
        response = http.post(url, **(options or {"json": answer}))
        assert response.headers["content-type"] == "application/json"
        assert response.json().keys() == {"detail"}
        return response.status_code

    return call


@pytest.fixture
def database(monkeypatch):
    """Have the endpoint use another database."""
    from airflow import settings
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    @contextlib.contextmanager
    def use(url):
        with monkeypatch.context() as patch:
            patch.setattr(settings, "Session", sessionmaker(create_engine(url)))
            yield

    return use


def unknown():
    """The URL with a token that no task has given out."""
    return f"{PATH}?token={new_token(uuid4())}"


# The parked task.


@pytest.mark.parametrize("answer", [SUCCESS, FAILED])
def test_parked(waiting, post, answer):
    task = waiting()
    assert post(task.url, answer) == STORED
    row = task.row
    at = datetime.fromisoformat(row.pop("at"))
    assert row == answer
    assert abs(datetime.now(UTC) - at) < timedelta(seconds=60)
    assert task.ti.state == "awaiting_input"
    assert task.ti.trigger_timeout > at
    assert task.seconds_left() < 6


def test_scheduler_resumes_the_task(waiting, post):
    """By its sweep, once the timeout has passed, with the event of a timeout."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.sdk.serde import deserialize

    task, other = waiting(next_method="execute_complete"), waiting()
    assert post(task.url) == STORED
    scheduler = SchedulerJobRunner(Job())
    scheduler.check_awaiting_input_timeouts()
    assert task.ti.state == "awaiting_input"
    task.change(trigger_timeout=datetime.now(UTC) - timedelta(seconds=1))
    scheduler.check_awaiting_input_timeouts()
    ti = task.ti
    assert (ti.state, ti.next_method) == ("scheduled", "execute_complete")
    kwargs: Any = deserialize(ti.next_kwargs)
    assert kwargs["event"]["error_type"] == "timeout"
    assert other.ti.state == "awaiting_input"


def test_same_answer_wakes_again(waiting, post):
    task = waiting()
    assert post(task.url) == STORED
    at = task.row["at"]
    task.change(trigger_timeout=datetime.now(UTC) + timedelta(hours=1))
    reordered = json.dumps({"result": {"rows": 3}, "message": None, "status": "success"})
    assert post(task.url, content=reordered) == STORED
    assert task.seconds_left() < 6
    assert task.row["at"] == at


@pytest.mark.parametrize(
    "other",
    [
        FAILED,
        {"status": "success"},
        {**SUCCESS, "result": {"rows": 3.0}},
        {**SUCCESS, "result": {"rows": True}},
        {**SUCCESS, "message": "Done"},
    ],
)
def test_other_answer(waiting, post, http, other):
    task = waiting()
    first = {**SUCCESS, "result": {"rows": 1}} if other.get("result") == {"rows": True} else SUCCESS
    assert post(task.url, first) == STORED
    row = task.row
    task.change(trigger_timeout=datetime.now(UTC) + timedelta(hours=1))
    response = http.post(task.url, json=other)
    assert response.status_code == ANOTHER
    assert f"'success' from {task.receipt['at']}" in response.json()["detail"]
    assert task.row == row
    assert task.seconds_left() > 60


NOTE = "(withheld: the token of the callback)"


def test_the_token_is_not_stored(waiting, post):
    """Nor where a flow returns its inputs."""
    task = waiting()
    answer = {"status": "success", "result": [{task.token: [f"{task.url}&a"]}], "message": f"({task.token})"}
    assert post(task.url, answer) == STORED
    assert task.token not in json.dumps(task.row)
    assert task.row["result"] == [{NOTE: [f"{task.url.partition(PATH)[0]}{NOTE}&a"]}]
    assert task.row["message"] == f"({NOTE})"
    assert post(task.url, answer) == STORED


@pytest.mark.parametrize("encode", [lambda text: base64.b64encode(f"({text}".encode()).decode(), "-".join])
def test_the_token_is_not_stored_in_another_form(waiting, post, encode):
    task = waiting()
    text = encode(task.token)
    assert post(task.url, {"status": "success", "result": {"a": [text]}, "message": text}) == STORED
    assert (task.row["result"], task.row["message"]) == (NOTE, NOTE)


def test_timeout_is_never_raised(waiting, post):
    soon = datetime.now(UTC) + timedelta(seconds=1)
    task = waiting(trigger_timeout=soon)
    assert post(task.url) == STORED
    assert task.ti.trigger_timeout == soon


def test_no_timeout(waiting, post):
    task = waiting(trigger_timeout=None)
    assert post(task.url) == STORED
    assert task.seconds_left() < 6


@pytest.mark.parametrize("value", ['{"__airflow_ref": "s3://bucket/key"}', "no JSON", "null", '["status"]'])
def test_entry_that_only_the_worker_can_read(waiting, post, value):
    task = waiting()
    task.enter(task.key, value)
    assert post(task.url) == STORED
    assert task.row["status"] == "success"


def test_mapped(waiting, post):
    """Each task instance has a token of its own."""
    task = waiting(task_id="mapped", map_index=1)
    assert post(task.url) == STORED
    assert task.row["status"] == "success"
    assert task.seconds_left() < 6
    task.map_index = 2
    assert task.row is None
    assert task.ti.trigger_timeout is None


# A task that is not parked.


@pytest.mark.parametrize("state", NOT_PARKED)
def test_not_parked(waiting, post, state):
    """Its own first check finds the answer: to resume it before it parks would lose it."""
    task = waiting(state=state, trigger_timeout=None)
    assert post(task.url) == STORED
    assert task.row["status"] == "success"
    assert task.ti.state == state
    assert task.ti.trigger_timeout is None


# No task waits.


@pytest.mark.parametrize(
    ("state", "closed"),
    [
        *((state, False) for state in [*ENDED, "restarting"]),
        *((state, True) for state in ["running", None, "awaiting_input", "success"]),
    ],
)
def test_no_task_waits(waiting, post, state, closed):
    """It has ended, or has ended its wait, for example at its timeout."""
    task = waiting(state=state)
    if closed:
        task.close()
    assert post(task.url) == NOT_FOUND
    assert task.row is None


@pytest.mark.parametrize("state", ENDED)
def test_task_ended_with_an_answer(waiting, post, state):
    """The flow repeats its call, since it did not get the response."""
    task = waiting()
    assert post(task.url) == STORED
    task.change(state=state)
    assert post(task.url) == STORED
    assert post(task.url, FAILED) == ANOTHER


@pytest.mark.parametrize("state", [*NOT_PARKED, "success"])
def test_answer_that_the_task_has_redacted(waiting, post, state):
    """It is recognized by its fingerprint: the endpoint knows no secret that it might contain."""
    task, answer = waiting(), {"status": "success", "result": "The orders"}
    assert post(task.url, answer) == STORED
    task.redact()
    task.change(state=state)
    assert post(task.url, answer) == STORED
    assert task.row is None
    assert post(task.url, FAILED) == ANOTHER
    assert "orders" not in json.dumps(task.receipt)


def test_state_that_airflow_clears_on_success(waiting, http, monkeypatch):
    """``[state_store] clear_on_success``: what a run has claimed would be forgotten while it works."""
    task = waiting()
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    responses = [http.post(url, json=SUCCESS) for url in (task.url, unknown())]
    assert [response.status_code for response in responses] == [501, 501]
    assert "[state_store] clear_on_success" in responses[0].json()["detail"]
    assert task.row is None


def test_token_of_another_task(waiting, post):
    """The id of a task instance is no secret."""
    task, other = waiting(), waiting()
    forged = new_token(task.ti.id)
    assert forged[:20] == task.token[:20]
    assert post(f"{PATH}?token={forged}") == NOT_FOUND
    other.enter(task.key)
    task.close()
    assert post(task.url) == NOT_FOUND


def test_token_of_the_next_generation(waiting, post):
    """After a Clear, a task may give its run's token on: an entry for each max_tries."""
    task = waiting()
    task.change(max_tries=5)
    assert post(task.url) == NOT_FOUND
    task.max_tries = 5
    task.open()
    assert post(task.url) == STORED
    assert task.row["status"] == "success"


def test_responses_do_not_tell_tokens_apart(waiting, http):
    used, cleared = waiting(state="success"), waiting()
    cleared.change(max_tries=7)
    tokens = [used.token, cleared.token, new_token(used.ti.id), new_token(uuid4()), "x" * 64]
    urls = [f"{PATH}?token={token}" for token in tokens]
    urls += [
        PATH,
        f"{PATH}?token=",
        f"{PATH}?token=short",
        f"{PATH}?token={'%00' * 64}",
        f"{PATH}?token={used.token}&token={used.token}",
        f"{PATH}?" + "&".join("abcdefghijklmnopqrstuvwxyz"),
        f"{PATH}/{used.token}",
        "/workflow-automation/other",
        "/",
    ]
    responses = [http.post(url, json=SUCCESS) for url in urls]
    assert {response.status_code for response in responses} == {404}
    shown = [({**response.headers, "date": ""}, response.content) for response in responses]
    assert all(one == shown[0] for one in shown)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods(waiting, http, method):
    task = waiting()
    known, stranger = (http.request(method, url) for url in (task.url, unknown()))
    assert (known.status_code, known.headers["allow"]) == (405, "POST")
    assert known.content == stranger.content
    assert bool(known.content) is (method != "HEAD")
    assert task.row is None


# Bodies.


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_any_content_type(waiting, http, content_type):
    task = waiting()
    headers = {"content-type": content_type} if content_type else {}
    assert http.post(task.url, content=json.dumps(SUCCESS), headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b'{"status": "done"}', "status is 'done';"),
    ],
)
def test_bad_body(waiting, post, http, body, words):
    task = waiting()
    response = http.post(task.url, content=body)
    assert response.status_code == 400
    assert words in response.json()["detail"]
    assert post(unknown(), content=body) == NOT_FOUND
    assert task.row is None


def test_largest_body(waiting, http):
    frame = len(json.dumps({"status": "success", "result": ""}))
    body = json.dumps({"status": "success", "result": "x" * (MAX_BODY - frame)}).encode()
    assert len(body) == MAX_BODY
    task, chunked = waiting(), waiting()
    assert http.post(task.url, content=body).status_code == 200
    assert http.post(chunked.url, content=iter([body[:1000], body[1000:]])).status_code == 200
    assert len(chunked.row["result"]) == MAX_BODY - frame


@pytest.mark.parametrize("size", [MAX_BODY + 1, 30 * MAX_BODY])
@pytest.mark.parametrize("chunked", [False, True])
def test_too_large_body(waiting, http, size, chunked):
    task = waiting()
    body = b'{"status": "success"}'.ljust(size)
    content = (body[at : at + 4096] for at in range(0, size, 4096)) if chunked else body
    response = http.post(task.url, content=content)
    assert response.status_code == 413
    assert f"{MAX_BODY} bytes" in response.json()["detail"]
    assert task.row is None


@contextlib.contextmanager
def half_a_request(base_url, url):
    """Send all but the end of a callback."""
    host, port = base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 21\r\n\r\n".encode())
        connection.sendall(b'{"status": ')
        yield connection


def call(url, receive, headers=()):
    """Call the endpoint without a server, and return the status of its response."""
    sent: list[Any] = []

    async def send(message):
        sent.append(message)

    path, _, query = url.partition("?")
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": query.encode(),
        "headers": headers,
    }
    asyncio.run(callback_endpoint.app(scope, receive, send))
    return sent[0]["status"]


async def not_read():
    raise AssertionError


def test_length_of_more_digits_than_python_reads(waiting):
    """Of another server than uvicorn, which rejects it."""
    assert call(waiting().url, not_read, [(b"content-length", b"9" * 5000)]) == 413


def test_slow_body(waiting, base_url, monkeypatch):
    monkeypatch.setattr(callback_endpoint, "_BODY_TIMEOUT", 0.2)
    task = waiting()
    with half_a_request(base_url, task.url) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert task.row is None


def test_body_of_a_stranger_is_not_read(dag):
    assert call(unknown(), not_read) == 404


def test_body_is_parsed_off_the_event_loop(waiting, monkeypatch):
    """Where it would hold up everything else that the API server does."""
    threads = []

    def watched(body):
        threads.append(threading.current_thread())
        return read(body)

    async def receive():
        threads.append(threading.current_thread())
        return {"type": "http.request", "body": json.dumps(SUCCESS).encode()}

    monkeypatch.setattr(callback_endpoint, "read", watched)
    assert call(waiting().url, receive) == 200
    loop, parser = threads
    assert loop is not parser


def test_client_that_goes_away(waiting, base_url, monkeypatch):
    gone = threading.Event()
    respond = callback_endpoint._respond

    async def watched(request):
        try:
            return await respond(request)
        finally:
            gone.set()

    monkeypatch.setattr(callback_endpoint, "_respond", watched)
    task = waiting()
    with half_a_request(base_url, task.url):
        pass
    assert gone.wait(300)
    assert task.row is None


# The database.


def test_locked_database(waiting, http, impatient, locked_database, caplog):
    task = waiting()
    with locked_database():
        response = http.post(task.url, json=SUCCESS)
    assert response.status_code == UNAVAILABLE
    assert response.headers["retry-after"] == "5"
    assert "database is locked" in caplog.text or "lock timeout" in caplog.text
    assert task.row is None
    assert http.post(task.url, json=SUCCESS).status_code == 200


def test_database_that_is_locked_for_a_moment(waiting, post, locked_database):
    task = waiting()
    with ThreadPoolExecutor(1) as pool:
        with locked_database():
            call = pool.submit(post, task.url)
            time.sleep(0.3)
        assert call.result() == STORED


@pytest.mark.parametrize(("folder", "words"), [("missing", "unable to open"), (".", "no such table")])
def test_no_database(waiting, post, database, tmp_path, caplog, folder, words):
    task = waiting()
    with database(f"sqlite:///{tmp_path}/{folder}/airflow.db"):
        assert post(task.url, FAILED) == UNAVAILABLE
    assert words in caplog.text
    assert task.row is None


def test_too_much_is_pending(waiting, http, monkeypatch, caplog):
    """What would wait for a thread is turned away, strangers and flows alike; strangers do not fill the log."""
    going_on, threads = threading.Event(), DaemonThreads(1, "test")

    def hang(_):
        going_on.wait()

    task = waiting()
    monkeypatch.setattr(callback_endpoint, "_THREADS", threads)
    with monkeypatch.context() as patch, ThreadPoolExecutor(MAX_PENDING) as pool:
        patch.setattr(callback_endpoint, "_admit", hang)
        calls = [pool.submit(http.post, unknown(), json=SUCCESS) for _ in range(MAX_PENDING)]
        try:
            while threads._room._value:
                time.sleep(0.01)
            turned_away = http.post(task.url, json=SUCCESS)
        finally:
            going_on.set()
            for call in calls:
                call.result()
    assert turned_away.status_code == UNAVAILABLE
    assert turned_away.headers["retry-after"] == "5"
    assert [record for record in caplog.records if record.name == callback_endpoint.__name__] == []
    assert http.post(task.url, json=SUCCESS).status_code == 200


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("_settle", DataError("INSERT", {"value": "orders"}, ValueError("no orders")), "ValueError"),
        ("_find", KeyError("orders"), "(?s)KeyError at.*metadata.py"),
    ],
)
def test_unexpected_error(waiting, post, monkeypatch, caplog, name, error, words):
    """The log says where it happened, but not its words, which have the statement and its parameters."""

    def fail(*_args, **_options):
        raise error

    task = waiting()
    monkeypatch.setattr(metadata, name, fail)
    assert post(task.url, FAILED) == UNAVAILABLE
    assert re.search(words, caplog.text)


# At once.


def test_two_answers_at_once(waiting, post):
    for _ in range(10):
        task = waiting()
        answers = [{"status": "success", "result": number} for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(lambda answer, task=task: post(task.url, answer), answers)]
        assert sorted(found) == [200, 409, 409, 409]
        (accepted,) = (answer for answer, outcome in zip(answers, found, strict=True) if outcome == STORED)
        assert task.row["result"] == accepted["result"]


def test_same_answer_at_once(waiting, post):
    task = waiting()
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(post, [task.url] * 16)} == {STORED}


def test_callback_and_clear_at_once(waiting, post):
    """Whichever comes first: the new generation is neither answered nor woken."""
    for _ in range(8):
        task = waiting(try_number=1)
        with ThreadPoolExecutor(2) as pool:
            call, clearing = pool.submit(post, task.url), pool.submit(task.clear)
        clearing.result()
        assert call.result() in (STORED, NOT_FOUND)
        assert (task.ti.state, task.max_tries) == (None, 3)
        assert post(task.url) == NOT_FOUND


def test_callback_and_close_at_once(waiting, post):
    """What was told to be stored is there after the task has closed the wait."""
    for _ in range(20):
        task = waiting()
        with ThreadPoolExecutor(2) as pool:
            call, closing = pool.submit(post, task.url), pool.submit(task.close)
            closing.result()
            there = task.row is not None
        assert call.result() == (STORED if there else NOT_FOUND)
        assert post(task.url) == call.result()


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


def test_websocket():
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    asyncio.run(callback_endpoint.app({"type": "websocket", "path": PATH}, receive, send))
    assert sent == [{"type": "websocket.close"}]
