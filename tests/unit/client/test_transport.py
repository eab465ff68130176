"""How long a response may take, and what it means if not all of the request was sent."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any

import httpcore
import pytest

from workflow_automation_provider.client.protocol import Run
from workflow_automation_provider.client.send_progress import SendProgress
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
)

from .conftest import check, client_of, read_request, trigger_flow

LARGE = "x" * 20_000_000

# Seconds: of a client that a server keeps waiting.
SHORT = 0.25


# One deadline -------------------------------------------------------------------------------------


def dripping(released, first, again):
    """Answer with ``first``, and then with ``again``, again and again."""

    def answer(connection, server):
        server.requests.append(read_request(connection))
        connection.sendall(first)
        while not released.wait(0.1):
            connection.sendall(again)

    return answer


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"HTTP/1.1 201 Created\r\nX-Long: ", b"x"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"),
    ],
    ids=["header", "early hints"],
)
def test_head_of_the_response_that_drips(raw_server, released, start, first, again):
    server = raw_server(dripping(released, first, again))
    client = client_of(server, timeout=SHORT)
    begun = time.monotonic()
    check(start.send(client), OutcomeUnknownError, "timeout")
    assert time.monotonic() - begun > 0.2
    assert len(server.requests) == 1
    with pytest.raises(NotSentError, match="timeout"):
        client.check()


def test_head_and_body_have_one_deadline_together(raw_server, released, start):
    """A deadline of its own would leave the body time for 20 bytes, not for 12."""
    sent = []

    def answer(connection, _):
        read_request(connection)
        released.wait(0.4)
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 999\r\n\r\n")
        while not released.wait(0.05):
            connection.sendall(b"x")
            sent.append(b"x")

    check(start.send(client_of(raw_server(answer), timeout=1)), UnidentifiedError, "timeout")
    assert len(sent) < 17


def test_deadline_of_the_response_begins_when_the_request_was_sent(raw_server, released, upload):
    def answer(connection, _):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        released.wait(0.7)
        read_request(connection)
        released.wait(0.7)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")

    assert upload.send(client_of(raw_server(answer), timeout=1.2), LARGE) == "fine"


def test_no_time_is_left_after_the_deadline():
    with pytest.raises(httpcore.TimeoutException):
        SendProgress(0, lambda: False).time_left()


def test_proxy_that_drips_its_response_to_connect(raw_server, released, start):
    proxy = raw_server(dripping(released, b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"))
    client = client_of(
        "https://service.example/api", timeout=SHORT, proxy=f"http://127.0.0.1:{proxy.port}"
    )
    check(start.send(client), NotSentError, "not sent via the connection's proxy", "timeout")


def test_tls_handshake_that_drips(raw_server, released, start):
    def answer(connection, _):
        connection.recv(65536)
        # A handshake record that is announced as 16 KiB long.
        connection.sendall(b"\x16\x03\x03\x40\x00")
        while not released.wait(0.1):
            connection.sendall(b"\x02")

    client = client_of(raw_server(answer).base_url.replace("http:", "https:"), timeout=SHORT)
    check(start.send(client), NotSentError, "not sent", "timeout")


# A request that was not handed over whole ---------------------------------------------------------


TOO_LARGE = "The request may be too large for the service."


def not_sent(attempt, client, *words, **facts):
    return check(attempt.send(client, LARGE), NotSentError, "aborted", *words, **facts)


def test_service_hangs_up_in_the_middle_of_the_request(raw_server, attempt):
    def leave(connection, server):
        server.requests.append(connection.recv(65536))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server = raw_server(leave)
    failure = not_sent(attempt, client_of(server))
    assert failure.next_step.startswith(TOO_LARGE)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "kind", "facts"),
    [
        (413, RejectedError, {"quote": '{"run_id": 7}'}),
        (503, BusyError, {"retry_after": 9}),
        (500, NotSentError, {}),
        (201, Run, {"run_id": "7"}),  # whatever was not read
    ],
)
def test_response_before_the_request_was_read(raw_server, released, start, status, kind, facts):
    def answer(connection, server):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.requests.append(connection.recv(1024))
        head = b"HTTP/1.1 %d Early\r\nContent-Length: 13\r\nRetry-After: 9\r\n\r\n" % status
        connection.sendall(head + b'{"run_id": 7}')
        released.wait(10)

    server = raw_server(answer)
    outcome = start.send(client_of(server, timeout=SHORT), LARGE)
    assert type(outcome) is kind
    assert {name: getattr(outcome, name) for name in facts} == facts
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        (b'HTTP/1.1 201 Early\r\nContent-Length: 11\r\n\r\n{"ok":true}', NotSentError, "201"),
        (b"HTTP/1.1 201 Early\r\nX Y: 1\r\n\r\n", OutcomeUnknownError, "with the status 201"),
        (b"HTTP/1.1 400 Early\r\nX Y: 1\r\n\r\n", NotSentError, "with the status 400"),
    ],
)
def test_response_before_the_request_was_read_that_names_no_run(
    raw_server, released, trigger, response, kind, words
):
    """By key as well, though there a response needs no run_id otherwise."""

    def answer(connection, server):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.requests.append(connection.recv(1024))
        connection.sendall(response)
        released.wait(10)

    server = raw_server(answer)
    check(trigger.send(client_of(server, timeout=SHORT), LARGE), kind, "before all of it", words)
    assert len(server.requests) == 1


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
    [
        (TimeoutError("alarm"), Run),
        (OSError("handler"), Run),
        (ValueError("handler"), OutcomeUnknownError),
    ],
)
def test_a_signal_handler_does_not_tell_that_the_last_byte_did_not_go(
    client, trigger, sends, error, kind
):
    def interrupt(_):
        if b"".join(sends).endswith(b'"}}'):
            raise error

    sends.interrupt = interrupt
    check(trigger.send(client), kind)
    assert b"".join(sends).endswith(b"}}")


def interrupt_with(error):
    def interrupt(data):
        if data.endswith(b"xxx"):
            raise error

    return interrupt


@pytest.mark.parametrize(
    "error", [TimeoutError("alarm"), OSError("handler"), ValueError("handler")]
)
def test_what_is_interrupted_before_its_last_byte_was_not_sent(service, start, sends, error):
    sends.interrupt = interrupt_with(error)
    check(start.send(client_of(service, timeout=SHORT), "x" * 300_000), NotSentError, "aborted")
    assert service.runs == []


def test_response_that_does_not_come_after_the_request_was_broken_off_is_not_awaited(
    raw_server, released, upload, sends
):
    def answer(connection, _):
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        released.wait(20)

    sends.interrupt = interrupt_with(OSError("handler"))
    begun = time.monotonic()
    not_sent(upload, client_of(raw_server(answer)), next_step=TOO_LARGE)
    assert time.monotonic() - begun < 10


def test_writes_are_neither_small_nor_large():
    content = [*[b"small"] * 100_000, b"large" * 200_000]
    writes = [*SendProgress(1, lambda: False).writes(content)]
    assert b"".join(writes) == b"".join(content)
    assert {*map(len, writes[:-2])} == {256 * 1024}
    assert len(writes[-1]) == 1


@pytest.mark.parametrize("size", [1, 256 * 1024, 1_000_000])
def test_the_last_byte_is_announced(service, client, sends, size):
    """The inputs make a body of this size, in writes of any size."""
    announced = []

    def before_last_byte():
        announced.append(b"".join(sends))

    outcome = trigger_flow(
        client, {"value": "x" * size}, "demo-flow", before_last_byte=before_last_byte
    )
    assert isinstance(outcome, Run)
    (before,) = announced
    assert b"".join(sends) == before + b"}"
    assert len(service.runs) == 1


def test_service_stops_reading_over_tls(raw_server, released, issued, upload):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certfile)

    def never_read(connection, _):
        with tls.wrap_socket(connection, server_side=True):
            released.wait(20)

    address = raw_server(never_read).base_url.replace("http:", "https:")
    client = client_of(address, ca_bundle=str(issued.ca_bundle), timeout=0.5)
    not_sent(upload, client, "timeout", status=None, next_step=TOO_LARGE)
