"""What a request comes to, over real HTTP; each fault is in ``tests/unit/test_fault_table.py``."""

from __future__ import annotations

import json
import re
import socket
import threading

import pytest

from workflow_automation_provider.client.protocol import Run
from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
)
from workflow_automation_provider.testing import LocalService

from .conftest import KEY, check, client_of

RESULTS = "workflow_automation_provider.client.responses.results"


def test_request_is_what_the_interface_shows(answering, attempt):
    server = answering(b'{"run_id": "7"}')
    attempt.send(client_of(server, headers={"user-agent": "mine"}), "é")
    ((head, body),) = server.requests
    line, *headers = head.decode().split("\r\n")
    named = {name.lower(): value for name, value in (header.split(": ", 1) for header in headers)}
    assert line == f"POST /api{attempt.path} HTTP/1.1"
    assert len(named) == len(headers), "a header twice"
    assert named["host"] == f"127.0.0.1:{server.port}"
    assert (named["content-type"], named["user-agent"]) == ("application/json", "mine")
    assert named.get("x-api-key") == (None if attempt.operation == "trigger_by_path" else KEY)
    expected: dict[str, object] = {"inputs": {"value": "é"}}
    if attempt.operation == "upload":
        expected = {"flow_id": "demo-flow", "run_id": "1001", "files": [{"value": "é"}]}
    assert json.loads(body) == expected


def test_redirect_is_not_followed(service, client, start, tmp_path):
    with LocalService(keys=service.keys, journal=tmp_path / "other.jsonl") as other:
        location = f"{other.base_url}{start.path}"
        service.faults.add("redirect", status=307, location=location)
        failure = start.send(client)
        assert other.journal.requests() == []
    check(failure, RejectedError, status=307)
    assert location in failure.next_step


CREATED = b"HTTP/1.1 201 Created\r\n"
SMALL = b'{"run_id": "7"}'


@pytest.mark.parametrize(
    ("response", "words", "status"),
    [
        (b"SSH-2.0-x\r\n", "got a response that cannot be read", None),
        (b"HTTP/2 201\r\n\r\n", "got a response that cannot be read", None),
        (CREATED + b"no header\r\n\r\n", "with the status 201", 201),
        (CREATED + b"X Run: 7\r\nContent-Length: 15\r\n\r\n" + SMALL, "with the status 201", 201),
        (CREATED + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n", "with the status 201", 201),
        (b"HTTP/1.1 103 x\r\n\r\n" + CREATED + b"X\r\n\r\n", "with the status 201", 201),
        (b"HTTP/1.1 400 Bad\r\nX Run: 7\r\n\r\n", "with the status 400", 400),
        (CREATED, "with the status 201", 201),
        (b"", "got no response", None),
    ],
)
def test_response_that_is_not_valid_http(raw_server, attempt, response, words, status):
    """It is in doubt what was done, but a response came."""
    server = raw_server(response)
    check(attempt.send(client_of(server)), OutcomeUnknownError, words, status=status)
    assert len(server.requests) == 1


def test_connection_test_whose_response_is_not_valid_http(raw_server):
    server = raw_server(b"HTTP/1.1 204 No Content\r\nX Run: 7\r\n\r\n")
    with pytest.raises(
        NotSentError, match="got a response with the status 204 that cannot be read"
    ):
        client_of(server).check()


@pytest.mark.parametrize("key", ["k", "K7", "?!", "-a-b-c-d-e-", "12345"])
def test_a_key_that_prose_may_contain_is_refused(key):
    with pytest.raises(InvalidRequestError, match="fewer than six letters and digits") as caught:
        client_of("https://service.example/api", api_key=key)
    assert key not in caught.value.message.split()
    assert (
        client_of("https://service.example/api", api_key=f"{key}-abcdef").redactor.text("word")
        == "word"
    )


# Not sent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["https://nowhere.invalid", "http://127.0.0.1:{port}"])
def test_host_that_is_not_there(trigger, host):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = client_of(f"{host.format(port=port)}/api")
    failure = check(trigger.send(client), NotSentError, status=None, retry_after=None)
    url = re.escape(f"{client.base_url}{trigger.path}")
    assert re.fullmatch(rf"POST {url} was not sent: \[Errno -?\d+\] .+[^.]\.", failure.message)


@pytest.mark.parametrize("status", [200, 204, 302, 401, 404, 405, 499, 501])
def test_service_that_is_reached(answering, status):
    """501 says that it has no HEAD."""
    assert client_of(answering(status=status)).check().endswith(f"returned {status}")


@pytest.mark.parametrize("status", [500, 502, 503])
def test_service_that_does_not_work(answering, status):
    with pytest.raises(NotSentError, match=f"{status}: the service is not working"):
        client_of(answering(status=status)).check()


def test_service_that_does_not_respond(raw_server):
    with pytest.raises(NotSentError, match="got no response: ") as caught:
        client_of(raw_server(b"")).check()
    assert caught.value.next_step == "Check the connection's base URL."


def test_server_that_speaks_no_tls(service, trigger):
    client = client_of(service.base_url.replace("http:", "https:"))
    assert "http://" in check(trigger.send(client), NotSentError, "not sent").next_step
    assert service.journal.requests() == []


# Faults of our own --------------------------------------------------------------------------------


def test_close_that_fails_does_not_lose_the_run(client, trigger, monkeypatch):
    close = socket.socket.close
    failed = []

    def fail_to_close(self):
        close(self)
        if threading.current_thread() is threading.main_thread():
            failed.append(1)
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "close", fail_to_close)
        assert type(trigger.send(client)) is Run
    assert failed


def test_response_that_cannot_be_read_leaves_a_doubt(client, trigger, monkeypatch):
    """Whatever is wrong with the client, the request was sent."""
    monkeypatch.setattr(f"{RESULTS}.read_run", lambda *_: 1 / 0)
    check(trigger.send(client), OutcomeUnknownError, "ZeroDivisionError")
