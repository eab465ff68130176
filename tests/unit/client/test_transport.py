"""How long a response may take in all, and what it means if the request was never handed over whole."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from typing import Any

import pytest

from certificates import issue_certificate
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.protocol import Run
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
)

from .conftest import Attempt, check, read_request, trigger_flow

LARGE = "x" * 20_000_000

# Seconds: of a client that a server keeps waiting.
SHORT = 0.25


@pytest.fixture
def start():
    """One operation: what the same comes to in each other one, test_responses.py shows."""
    return Attempt("trigger_by_key")


@pytest.fixture
def released():
    """An event that a server may wait for, set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def dripping(released, *, first=b"", again=b"x", pause=0.1):
    """Answer with ``first``, and then with ``again``, again and again."""

    def answer(connection, server):
        server.requests.append(1)
        read_request(connection)
        connection.sendall(first)
        while not released.wait(pause):
            connection.sendall(again)

    return answer


# One deadline -------------------------------------------------------------------------------------------

DRIPS = {
    "header": (b"HTTP/1.1 201 Created\r\nX-Long: ", b"x", 0.1),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", 0.1),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
}


@pytest.mark.parametrize("what", DRIPS)
def test_head_of_the_response_that_drips(raw_server, released, start, key, what):
    first, again, pause = DRIPS[what]
    server = raw_server(dripping(released, first=first, again=again, pause=pause))
    with FlowClient(server.base_url, api_key=key, timeout=SHORT) as client:
        begun = time.monotonic()
        check(start.send(client), OutcomeUnknownError, "0.25 s")
        assert time.monotonic() - begun > 0.2
        assert len(server.requests) == 1
        with pytest.raises(NotSentError, match=r"0\.25 s"):
            client.check()


def test_head_and_body_have_one_deadline_together(raw_server, released, start, key):
    """A deadline of its own would leave the body time for 30 bytes, not for 18."""
    sent = []

    def answer(connection, _):
        read_request(connection)
        released.wait(0.6)
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 999\r\n\r\n")
        while not released.wait(0.05):
            connection.sendall(b"x")
            sent.append(b"x")

    with FlowClient(raw_server(answer).base_url, api_key=key, timeout=1.5) as client:
        check(start.send(client), UnidentifiedError, "1.5 s")
        assert len(sent) < 24


def test_deadline_of_the_response_begins_when_the_request_was_sent(raw_server, released, upload, key):
    def answer(connection, _):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        released.wait(0.7)
        read_request(connection)
        released.wait(0.7)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")

    with FlowClient(raw_server(answer).base_url, api_key=key, timeout=1.2) as client:
        assert upload.send(client, LARGE) == "fine"


def test_proxy_that_drips_its_response_to_connect(raw_server, released, start, key):
    proxy = raw_server(dripping(released, first=b"HTTP/1.1 200 OK\r\nX-Long: "))
    with FlowClient(
        "https://service.example/api", api_key=key, timeout=SHORT, proxy=f"http://127.0.0.1:{proxy.port}"
    ) as client:
        outcome = start.send(client)
    check(outcome, NotSentError, "not sent via the connection's proxy", "0.25 s")


def test_tls_handshake_that_drips(raw_server, released, start, key):
    def answer(connection, _):
        connection.recv(65536)
        # A handshake record that is announced as 16 KiB long.
        connection.sendall(b"\x16\x03\x03\x40\x00")
        while not released.wait(0.1):
            connection.sendall(b"\x02")

    server = raw_server(answer)
    with FlowClient(server.base_url.replace("http:", "https:"), api_key=key, timeout=SHORT) as client:
        check(start.send(client), NotSentError, "not sent", "0.25 s")


# A request that was not handed over whole ---------------------------------------------------------------


TOO_LARGE = "The request may be too large for the service."


def not_sent(attempt, client, *words, **facts):
    return check(attempt.send(client, LARGE), NotSentError, "aborted", *words, **facts)


def test_service_hangs_up_in_the_middle_of_the_request(raw_server, attempt, key):
    def leave(connection, server):
        server.requests.append(connection.recv(65536))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server = raw_server(leave)
    with FlowClient(server.base_url, api_key=key, timeout=10) as client:
        failure = not_sent(attempt, client, next_step=TOO_LARGE)
    assert re.search(r"\[Errno \d+\] ", failure.message)
    assert len(server.requests) == 1


def early(status, headers, released, *, body=b"too long"):
    """Answer after the first bytes of a request, and read no more."""

    def answer(connection, server):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.requests.append(connection.recv(1024))
        head = b"HTTP/1.1 %d Early\r\nContent-Length: %d\r\n%b\r\n" % (status, len(body), headers)
        connection.sendall(head + body)
        released.wait(10)

    return answer


@pytest.mark.parametrize(
    ("status", "kind", "facts"),
    [
        (413, RejectedError, {"quote": "too long"}),
        (503, BusyError, {"retry_after": 9}),
        *((status, NotSentError, {}) for status in (200, 500)),
    ],
)
def test_no_run_can_come_of_a_request_that_was_not_read_whatever_the_response(
    raw_server, released, start, status, kind, facts, key
):
    server = raw_server(early(status, b"Retry-After: 9\r\n", released))
    with FlowClient(server.base_url, api_key=key, timeout=SHORT) as client:
        check(start.send(client, LARGE), kind, status=status, **facts)
    assert len(server.requests) == 1


def test_success_before_the_request_was_read_counts(raw_server, released, start, key):
    server = raw_server(early(201, b"", released, body=b'{"run_id": "7"}'))
    with FlowClient(server.base_url, api_key=key, timeout=SHORT) as client:
        assert start.send(client, LARGE).run_id == "7"


@pytest.fixture
def sends(monkeypatch):
    """What this thread hands to the operating system; ``sends.interrupt`` is called after each."""

    class Sends(list[bytes]):
        interrupt: Any = None

    sends = Sends()
    real, ours = socket.socket.send, threading.get_ident()

    def send(self, data, *flags):
        sent = real(self, data, *flags)
        if threading.get_ident() == ours:
            sends.append(bytes(data[:sent]))
            if sends.interrupt:
                sends.interrupt(sends[-1])
        return sent

    monkeypatch.setattr(socket.socket, "send", send)
    return sends


@pytest.mark.parametrize(
    ("error", "kind"),
    [(TimeoutError("alarm"), Run), (OSError("handler"), Run), (ValueError("handler"), OutcomeUnknownError)],
)
def test_a_signal_handler_does_not_tell_that_the_last_byte_did_not_go(client, trigger, sends, error, kind):
    def interrupt(_):
        if b"".join(sends).endswith(b'"}}'):
            raise error

    sends.interrupt = interrupt
    check(trigger.send(client), kind)
    assert b"".join(sends).endswith(b"}}")


@pytest.mark.parametrize("error", [TimeoutError("alarm"), OSError("handler"), ValueError("handler")])
def test_what_is_interrupted_before_its_last_byte_was_not_sent(service, key, start, sends, error):
    def interrupt(data):
        if data.endswith(b"xxx"):
            raise error

    sends.interrupt = interrupt
    with FlowClient(service.base_url, api_key=key, timeout=SHORT) as client:
        check(start.send(client, "x" * 300_000), NotSentError, "aborted")
    assert service.runs == []


def test_response_that_does_not_come_after_the_request_was_broken_off_is_not_awaited(
    raw_server, released, upload, key, sends
):
    def answer(connection, _):
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        released.wait(20)

    def interrupt(data):
        if data.endswith(b"xxx"):
            raise OSError("handler")

    sends.interrupt = interrupt
    with FlowClient(raw_server(answer).base_url, api_key=key, timeout=15) as client:
        begun = time.monotonic()
        not_sent(upload, client, next_step=TOO_LARGE)
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("size", [1, 256 * 1024, 1_000_000])
def test_the_last_byte_is_announced(service, client, sends, size):
    """The inputs make a body of this size, in pieces of any size."""
    announced = []
    inputs = {"value": "x" * size}
    outcome = trigger_flow(
        client, inputs, "demo-flow", before_last_byte=lambda: announced.append(b"".join(sends))
    )
    assert isinstance(outcome, Run)
    (before,) = announced
    assert b"".join(sends) == before + b"}"
    assert len(service.runs) == 1


def test_service_stops_reading_over_tls(raw_server, released, tmp_path, upload, key):
    issued = issue_certificate("127.0.0.1", tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certfile)

    def never_read(connection, _):
        with tls.wrap_socket(connection, server_side=True):
            released.wait(20)

    address = raw_server(never_read).base_url.replace("http:", "https:")
    with FlowClient(address, api_key=key, ca_bundle=str(issued.ca_bundle), timeout=0.5) as client:
        not_sent(upload, client, "0.5 s", status=None, next_step=TOO_LARGE)


# Addresses ----------------------------------------------------------------------------------------------


def resolve(monkeypatch, name, addresses):
    """Have a name stand for several addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *more, **named: found if host == name else real(host, *more, **named),
    )


def test_all_addresses_of_a_host_share_the_time(monkeypatch, key):
    """Twenty, of which none responds, since others fill their queues."""
    addresses: list[tuple[str, int]] = []
    with contextlib.ExitStack() as others:
        for number in range(2, 22):
            port = addresses[0][1] if addresses else 0
            listener = socket.create_server((f"127.0.0.{number}", port), backlog=0)
            addresses.append(others.enter_context(listener).getsockname())
            for _ in range(4):
                other = others.enter_context(socket.socket())
                other.setblocking(False)
                other.connect_ex(addresses[-1])
        resolve(monkeypatch, "service.example", addresses)
        began = time.monotonic()
        base_url = f"http://service.example:{addresses[0][1]}/api"
        with FlowClient(base_url, api_key=key, allow_http=True, timeout=SHORT) as client:
            check(trigger_flow(client, {}), NotSentError, "0.25 s")
    assert time.monotonic() - began < 3


def test_next_address_is_tried_where_one_does_not_connect(service, monkeypatch, key):
    resolve(monkeypatch, "localhost", [("127.0.0.9", service.port), ("127.0.0.1", service.port)])
    with FlowClient(f"http://localhost:{service.port}/api", api_key=key) as client:
        assert trigger_flow(client, {}).run_id == "1001"
