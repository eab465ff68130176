"""How long a response may take in all, and what it means if the request was never handed over whole."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time

import httpcore
import pytest
from httpcore._backends.sync import SyncStream

from certificates import issue_certificate
from workflow_automation_provider.client.deadline import SendProgress
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.outcome import (
    Busy,
    NotSent,
    Proxy,
    Reason,
    Rejected,
    Unidentified,
    Unknown,
)

from .conftest import check, trigger_flow

LARGE = "x" * 20_000_000


@pytest.fixture
def released():
    """An event that a server may wait for, set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def read_head(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    length = (
        int(data.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if b"POST" in data else 0
    )
    body = data.partition(b"\r\n\r\n")[2]
    while len(body) < length:
        body += connection.recv(65536)


def dripping(released, *, first=b"", again=b"x", pause=0.2):
    """Answer with ``first``, and then with ``again``, again and again."""

    def answer(connection, server):
        server.requests.append(1)
        read_head(connection)
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


@pytest.fixture(params=DRIPS)
def dripping_server(request, raw_server, released):
    first, again, pause = DRIPS[request.param]
    return raw_server(dripping(released, first=first, again=again, pause=pause))


def test_head_of_the_response_that_drips(dripping_server, attempt, key):
    with FlowClient(dripping_server.base_url, api_key=key, timeout=0.5) as client:
        begun = time.monotonic()
        assert "0.5 s" in check(attempt.send(client), Unknown).detail
        assert time.monotonic() - begun > 0.45
    assert len(dripping_server.requests) == 1


def test_check_does_not_wait_for_a_head_that_drips(dripping_server, key):
    with FlowClient(dripping_server.base_url, api_key=key, timeout=0.5) as client:
        assert "0.5 s" in client.check().detail


def test_head_and_body_have_one_deadline_together(raw_server, released, trigger, key):
    """A deadline of its own would leave the body time for 20 bytes, not for 8."""
    sent = []

    def answer(connection, _):
        read_head(connection)
        released.wait(1.2)
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 999\r\n\r\n")
        while not released.wait(0.1):
            connection.sendall(b"x")
            sent.append(b"x")

    with FlowClient(raw_server(answer).base_url, api_key=key, timeout=2) as client:
        assert "2 s" in check(trigger.send(client), Unidentified).detail
        assert len(sent) < 16


def test_slow_response_in_time_is_fine(raw_server, released, trigger, key):
    def answer(connection, _):
        read_head(connection)
        for byte in b'HTTP/1.1 201 Created\r\nContent-Length: 15\r\n\r\n{"run_id": "7"}':
            released.wait(0.005)
            connection.sendall(bytes([byte]))

    with FlowClient(raw_server(answer).base_url, api_key=key, timeout=20) as client:
        assert trigger.send(client).run.run_id == "7"


def test_deadline_of_the_response_begins_when_the_request_was_sent(raw_server, released, upload, key):
    def answer(connection, _):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        released.wait(1.5)
        read_head(connection)
        released.wait(1.5)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")

    with FlowClient(raw_server(answer).base_url, api_key=key, timeout=2.5) as client:
        assert upload.send(client, LARGE).response == "fine"


def test_proxy_that_drips_its_response_to_connect(raw_server, released, attempt, key):
    proxy = raw_server(dripping(released, first=b"HTTP/1.1 200 OK\r\nX-Long: "))
    with FlowClient(
        "https://service.example/api", api_key=key, timeout=0.5, proxy=f"http://127.0.0.1:{proxy.port}"
    ) as client:
        outcome = attempt.send(client)
    assert "0.5 s" in check(outcome, NotSent, begun=False, via=Proxy.CONNECTION).detail


def test_tls_handshake_that_drips(raw_server, released, attempt, key):
    def answer(connection, _):
        connection.recv(65536)
        # A handshake record that is announced as 16 KiB long.
        connection.sendall(b"\x16\x03\x03\x40\x00")
        while not released.wait(0.2):
            connection.sendall(b"\x02")

    server = raw_server(answer)
    with FlowClient(server.base_url.replace("http:", "https:"), api_key=key, timeout=0.5) as client:
        assert "0.5 s" in check(attempt.send(client), NotSent, begun=False).detail


# A request that was not handed over whole ---------------------------------------------------------------


def not_sent(attempt, client, **facts):
    return check(attempt.send(client, LARGE), NotSent, begun=True, **facts)


def test_service_stops_reading(raw_server, released, attempt, key):
    def never_read(connection, _):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.recv(10)
        released.wait(10)

    with FlowClient(raw_server(never_read).base_url, api_key=key, timeout=0.4) as client:
        assert "0.4 s" in not_sent(attempt, client, status=None, reason=Reason.WRITE).detail


def test_service_hangs_up_in_the_middle_of_the_request(raw_server, attempt, key):
    def leave(connection, server):
        server.requests.append(connection.recv(65536))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    server = raw_server(leave)
    with FlowClient(server.base_url, api_key=key, timeout=10) as client:
        failure = not_sent(attempt, client, reason=Reason.WRITE)
    assert re.match(r"\[Errno \d+\] ", failure.detail)
    assert len(server.requests) == 1


def early(status, headers, released, *, body=b"too long", reads_on=False):
    """Answer after the first bytes of a request, then read on, or stop."""

    def answer(connection, server):
        if not reads_on:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.requests.append(connection.recv(1024))
        head = b"HTTP/1.1 %d Early\r\nContent-Length: %d\r\n%b\r\n" % (status, len(body), headers)
        connection.sendall(head + body)
        while reads_on and connection.recv(1 << 20):
            pass
        if not reads_on:
            released.wait(10)

    return answer


@pytest.mark.parametrize("reads_on", [True, False])
def test_rejection_before_the_request_was_read(raw_server, released, attempt, reads_on, key):
    server = raw_server(early(413, b"Connection: close\r\n", released, reads_on=reads_on))
    with FlowClient(server.base_url, api_key=key, timeout=0.5) as client:
        check(attempt.send(client, LARGE), Rejected, status=413, quote="too long", early=not reads_on)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "kind", "facts"),
    [
        (408, Busy, {"retry_after": 9}),
        (503, Busy, {"retry_after": 9}),
        *((status, NotSent, {"status": status, "early": True}) for status in (302, 500, 502)),
    ],
)
def test_no_run_can_come_of_a_request_that_was_not_read_whatever_the_response(
    raw_server, released, attempt, status, kind, facts, key
):
    server = raw_server(early(status, b"Retry-After: 9\r\n", released))
    with FlowClient(server.base_url, api_key=key, timeout=0.5) as client:
        check(attempt.send(client, LARGE), kind, **facts)


def test_success_before_the_request_was_read_counts(raw_server, released, trigger, key):
    server = raw_server(early(201, b"", released, body=b'{"run_id": "7"}'))
    with FlowClient(server.base_url, api_key=key, timeout=0.5) as client:
        assert trigger.send(client, LARGE).run.run_id == "7"


@pytest.mark.parametrize("status", [302, 500, 503])
def test_response_to_a_large_request_that_was_read_is_unknown(service, client, trigger, status, key):
    service.faults.add("status_after", status=status)
    check(trigger.send(client, LARGE), Unknown, status=status)
    assert len(service.runs) == 1


def test_response_that_does_not_come_after_the_request_was_broken_off_is_not_awaited(
    raw_server, released, upload, key
):
    def answer(connection, _):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.recv(1024)
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        released.wait(20)

    with FlowClient(raw_server(answer).base_url, api_key=key, timeout=4) as client:
        begun = time.monotonic()
        assert "4 s" in not_sent(upload, client, reason=Reason.WRITE).detail
        assert time.monotonic() - begun < 7.5


HEAD = b"POST /x HTTP/1.1\r\nContent-Length: 6\r\n\r\n"


class Interrupted(socket.socket):
    """A socket that a signal handler interrupts right after the last byte."""

    error: BaseException | None = None

    def send(self, data, flags=0):
        sent = super().send(data, flags)
        if self.error and data.endswith(b"}"):
            raise self.error
        return sent


def begun(size=6, seconds=30):
    """Return the progress of a request whose headers are about to be sent."""
    progress = SendProgress(seconds, size, lambda: False)
    progress.trace("http11.send_request_headers.started", {"request": httpcore.Request("POST", "http://x")})
    return progress


@pytest.fixture
def connected():
    ours, theirs = socket.socketpair()
    with Interrupted(fileno=ours.detach()) as connection, theirs:
        yield connection, theirs


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (TimeoutError("alarm"), httpcore.WriteTimeout),
        (OSError("handler"), httpcore.WriteError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("x"), ValueError),
    ],
)
def test_a_signal_handler_does_not_tell_that_the_last_byte_did_not_go(connected, error, raised):
    connection, theirs = connected
    stream, progress = SyncStream(connection), begun()
    progress.write(stream, HEAD)
    assert (progress.begun, progress.whole) == (True, False)
    connection.error = error
    with pytest.raises(raised):
        progress.write(stream, b"{body}")
    assert progress.whole
    assert progress.write_error is None
    assert theirs.recv(65536).endswith(b"{body}")


@pytest.mark.parametrize("kind", [httpcore.WriteTimeout, httpcore.WriteError])
def test_the_socket_does(kind):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if kind is httpcore.WriteError:
            theirs.close()
        progress = begun(10_000_000, seconds=0.1)
        with pytest.raises(httpcore.WriteError):
            progress.write(SyncStream(ours), HEAD + b"x" * 10_000_000)
    assert not progress.whole
    assert isinstance(progress.write_error, kind)


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([HEAD, b"{body}"], True),
        ([HEAD, b"{bod"], False),
        ([HEAD, b"{bod", b"y"], False),
        ([HEAD, b"{bod", b"y}"], True),
        ([HEAD + b"{body}"], True),
        ([HEAD + b"{body"], False),
        ([HEAD + b"{body", b"}"], True),
        ([HEAD], False),
    ],
)
def test_what_counts_as_handed_over_whole(pieces, whole):
    progress = begun()
    for piece in pieces:
        progress.write(httpcore.MockStream([]), piece)
    assert progress.whole is whole


@pytest.mark.parametrize("size", [255 * 1024, 256 * 1024, 256 * 1024 + 1, 1_000_000])
@pytest.mark.parametrize("missing", [0, 1])
def test_large_pieces_are_counted_exactly(size, missing):
    progress = begun(size)
    progress.write(httpcore.MockStream([]), HEAD)
    progress.write(httpcore.MockStream([]), b"x" * (size - missing))
    assert progress.whole is not bool(missing)


def test_proxy_setup_is_not_the_request():
    progress = SendProgress(30, 6, lambda: False)
    progress.write(httpcore.MockStream([]), b"\x05\x01\x00")
    connect = httpcore.Request("CONNECT", "http://x")
    progress.trace("http11.send_request_headers.started", {"request": connect})
    progress.write(httpcore.MockStream([]), b"CONNECT x:443 HTTP/1.1\r\n\r\n")
    assert (progress.begun, progress.whole) == (False, False)


def test_service_stops_reading_over_tls(raw_server, released, tmp_path, upload, key):
    issued = issue_certificate("127.0.0.1", tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certfile)

    def never_read(connection, _):
        with tls.wrap_socket(connection, server_side=True):
            released.wait(20)

    address = raw_server(never_read).base_url.replace("http:", "https:")
    with FlowClient(address, api_key=key, ca_bundle=str(issued.ca_bundle), timeout=0.5) as client:
        assert "0.5 s" in not_sent(upload, client, reason=Reason.WRITE).detail


# Responses that come before all of the request was sent ----------------------------------------------------


def test_early_success_without_a_run_counts_for_nothing(raw_server, released, attempt, key):
    server = raw_server(early(200, b"Connection: close\r\n", released, body=b"<html>sign in</html>"))
    with FlowClient(server.base_url, api_key=key, timeout=0.5) as client:
        check(attempt.send(client, LARGE), NotSent, status=200, early=True)


def test_all_addresses_of_a_host_share_the_time(monkeypatch, key):
    listeners: list[socket.socket] = []
    clients = []
    for number in range(2, 22):
        listener = socket.create_server(
            (f"127.0.0.{number}", 0 if not listeners else listeners[0].getsockname()[1]), backlog=0
        )
        listeners.append(listener)
        for _ in range(4):
            clients.append(socket.socket())
            clients[-1].setblocking(False)
            clients[-1].connect_ex(listener.getsockname())
    port = listeners[0].getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one.getsockname()) for one in listeners]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **more: found if host == "service.example" else real(host, *rest, **more),
    )
    began = time.monotonic()
    try:
        address = f"http://service.example:{port}/api"
        with FlowClient(address, api_key=key, allow_http=True, timeout=1) as client:
            assert "1 s" in check(trigger_flow(client, {}), NotSent).detail
    finally:
        for one in (*clients, *listeners):
            one.close()
    assert time.monotonic() - began < 10


def test_next_address_is_tried_where_one_does_not_connect(service, monkeypatch, key):
    real = socket.getaddrinfo

    def closed_first(host, port, *arguments, **options):
        if host != "localhost":
            return real(host, port, *arguments, **options)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.9", "127.0.0.1")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", closed_first)
    with FlowClient(f"http://localhost:{service.port}/api", api_key=key) as client:
        assert trigger_flow(client, {}).run.run_id == "1001"
