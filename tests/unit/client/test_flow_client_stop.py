"""A client that is stopped sends nothing more, also not for a call that is under way."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

from raw_server import response
from workflow_automation_provider.exceptions import NotSentError

from .conftest import check, client_of, read_request

LARGE = "x" * 20_000_000


def ended(outcome, *words):
    """Check that a request was stopped before its last byte."""
    check(outcome, NotSentError, "task was ended", *words)


class Gate:
    """A server that waits after ``before`` until ``stopped`` is set, then does ``after``."""

    def __init__(self, before, after=lambda connection: connection):
        self.reached, self.stopped = threading.Event(), threading.Event()
        self.received = b""
        self._before, self._after = before, after

    def __call__(self, connection, _):
        with contextlib.suppress(OSError):
            self._before(connection)
            self.reached.set()
            assert self.stopped.wait(10)
            connection = self._after(connection)
            while more := connection.recv(65536):
                self.received += more

    def send_and_stop(self, client, attempt, value="1"):
        """Stop the client when the server has got to its gate, and return the outcome."""
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(attempt.send, client, value)
            assert self.reached.wait(10)
            client.stop()
            self.stopped.set()
            return sending.result(10)


def test_stopped_during_the_tls_handshake(raw_server, trigger, issued):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certfile)
    gate = Gate(
        lambda _: None, lambda connection: context.wrap_socket(connection, server_side=True)
    )
    client = client_of(
        raw_server(gate).base_url.replace("http:", "https:"), ca_bundle=str(issued.ca_bundle)
    )
    ended(gate.send_and_stop(client, trigger), "not sent")
    assert gate.received == b""


def test_stopped_while_a_proxy_opens_the_tunnel(raw_server, trigger):
    def read_connect(connection):
        assert connection.recv(65536).startswith(b"CONNECT ")

    def open_tunnel(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        return connection

    gate = Gate(read_connect, open_tunnel)
    client = client_of(
        "https://service.example/api", proxy=f"http://127.0.0.1:{raw_server(gate).port}"
    )
    ended(gate.send_and_stop(client, trigger), "not sent via the connection's proxy")
    assert gate.received == b""


def test_stopped_in_the_middle_of_the_body(raw_server, attempt):
    def slow(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        assert connection.recv(10)

    gate = Gate(slow)
    ended(gate.send_and_stop(client_of(raw_server(gate)), attempt, LARGE), "aborted")
    assert len(gate.received) < len(LARGE)


def test_trigger_that_was_handed_over_is_waited_for(raw_server, trigger):
    def respond(connection):
        connection.sendall(response("7"))
        return connection

    gate = Gate(read_request, respond)
    client = client_of(raw_server(gate))
    assert gate.send_and_stop(client, trigger).run_id == "7"
    ended(trigger.send(client))
