"""What the client's tests share: a key, a local service, and servers that misbehave below HTTP."""

from __future__ import annotations

import contextlib
import re
import socket
import threading

import pytest

from certificates import issue_certificate
from raw_server import accepted
from workflow_automation_provider.client import protocol
from workflow_automation_provider.client.file_format import DEFAULT_FILE_FORMAT
from workflow_automation_provider.client.files import upload_bodies
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
)
from workflow_automation_provider.testing import Key, LocalService

KEY = "wak-Zq7+xK/9=Tb&w%2"


def outcome_of(send):
    """Return what a request came to: the run, the response to an upload, or the error."""
    try:
        return send()
    except (
        UnidentifiedError,
        RejectedError,
        BusyError,
        NotSentError,
        OutcomeUnknownError,
    ) as error:
        return error


def client_of(server, **options):
    """Return a client of a server, or of a URL."""
    return FlowClient(
        getattr(server, "base_url", server), **{"api_key": KEY, "timeout": 20, **options}
    )


def trigger_flow(client, inputs, flow_id=None, **options):
    """Send a trigger request, and return its outcome."""
    request = client.checked_request(protocol.trigger_request(client.base_url, inputs, flow_id))
    return outcome_of(lambda: client.trigger(request, **options))


def upload_requests(client, run_id, files, flow_id, file_format=DEFAULT_FILE_FORMAT):
    """Return the requests of an upload, as the hook makes them."""
    return [
        client.checked_request(protocol.upload_request(client.base_url, flow_id, body))
        for body in upload_bodies(flow_id, run_id, files, file_format)
    ]


def upload_files(client, run_id, files, flow_id, *, file_format=DEFAULT_FILE_FORMAT, **options):
    """Send an upload request, and return its outcome."""
    (request,) = upload_requests(client, run_id, files, flow_id, file_format)
    return outcome_of(lambda: client.upload(request, **options))


def check(outcome, kind, *words, **facts):
    """
    Check the kind of an outcome, what its message names, and some of its facts.

    And return it.
    """
    assert type(outcome) is kind, outcome
    assert all(word in outcome.message for word in words)
    assert {name: getattr(outcome, name) for name in facts} == facts
    return outcome


PATHS = {
    "trigger_by_path": "/flows/demo-flow/trigger",
    "trigger_by_key": "/trigger",
    "upload": "/public/upload",
}


class Attempt:
    """One of the three operations, sent once with the client."""

    def __init__(self, operation):
        self.operation = operation
        self.path = PATHS[operation]

    def send(self, client, value="1"):
        if self.operation == "upload":
            return upload_files(client, "1001", [{"value": value}], "demo-flow")
        return trigger_flow(
            client, {"value": value}, "demo-flow" if "path" in self.operation else None
        )


@pytest.fixture(params=PATHS)
def attempt(request):
    return Attempt(request.param)


@pytest.fixture(params=["trigger_by_path", "trigger_by_key"])
def trigger(request):
    return Attempt(request.param)


@pytest.fixture
def start():
    """One operation: what the same comes to in each other one, test_responses.py shows."""
    return Attempt("trigger_by_key")


@pytest.fixture
def upload():
    return Attempt("upload")


@pytest.fixture
def service(tmp_path):
    with LocalService(keys=[Key(KEY, "demo-flow")], journal=tmp_path / "journal.jsonl") as running:
        yield running


@pytest.fixture
def client(service):
    return client_of(service)


class RawServer:
    """Answers every connection with the same bytes, and keeps what it was sent.

    :param answer: the bytes, or a callable that gets the socket and the request's bytes
    """

    def __init__(self, answer):
        self.answer = answer
        self.requests = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/api"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        for connection in accepted(self._listener):
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                if callable(self.answer):
                    self.answer(connection, self)
                else:
                    self.requests.append(read_request(connection))
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def read_request(connection):
    """Read one request with a Content-Length: its head and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return data, b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    body = bytearray(rest)
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    while found and len(body) < int(found[1]) and (more := connection.recv(65536)):
        body += more
    return head, bytes(body)


@pytest.fixture
def raw_server():
    servers = []

    def start(answer):
        servers.append(RawServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def released():
    """An event that a server may wait for, set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def issued(tmp_path):
    """A certificate of this machine, by an authority that no client trusts yet."""
    return issue_certificate("127.0.0.1", tmp_path)


@pytest.fixture
def answering(raw_server):
    """Start a server that answers with a status, a body and headers, each just as given."""

    def start(body=b"", status=201, headers=()):
        lines = [f"HTTP/1.1 {status} Words".encode(), b"Content-Length: %d" % len(body), *headers]
        return raw_server(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    return start
