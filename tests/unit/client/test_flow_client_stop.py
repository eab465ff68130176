"""A client that is stopped sends nothing more, also not for a call that is under way."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from certificates import issue_certificate
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import (
    NotSentError,
)

from .conftest import check

LARGE = "x" * 20_000_000


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def ended(outcome, *words):
    """Check that a request was stopped before its last byte."""
    check(outcome, NotSentError, "task was ended", *words)


class Gate:
    """A server in two steps: it waits after ``before``, until ``stopped`` is set, then goes on with ``after``."""

    def __init__(self, before, after):
        self.reached, self.stopped = threading.Event(), threading.Event()
        self.received = b""
        self._before, self._after = before, after

    def __call__(self, connection, _):
        with contextlib.suppress(OSError):
            connection = self._before(connection)
            self.reached.set()
            assert self.stopped.wait(10)
            connection = self._after(connection)
            while more := connection.recv(65536):
                self.received += more

    def send_and_stop(self, client, attempt, pool, value="1"):
        """Send, stop the client from another thread when the server has got to its gate, and go on."""
        sending = pool.submit(attempt.send, client, value)
        assert self.reached.wait(10)
        client.stop()
        self.stopped.set()
        return sending

    def send_and_stop_by_signal(self, client, attempt, pool):
        """Send, stop the client in a signal handler when the server has got to its gate, and go on."""

        def handler(*_):
            client.stop()
            self.stopped.set()

        def interrupt():
            assert self.reached.wait(10)
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            interrupting = pool.submit(interrupt)
            return attempt.send(client)
        finally:
            interrupting.result(10)
            signal.signal(signal.SIGUSR1, before)


def same(connection):
    return connection


def test_stopped_client_does_not_even_connect(attempt, key):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with FlowClient(f"http://127.0.0.1:{listener.getsockname()[1]}/api", api_key=key) as client:
            client.stop()
            for _ in range(2):
                ended(attempt.send(client), "not sent")
            with pytest.raises(NotSentError, match="task was ended"):
                client.check()
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_stopped_while_connecting(upload, pool, key):
    with socket.socket() as listener, contextlib.ExitStack() as others:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(2):  # fills the queue: whoever connects now has to come back
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(address)
        with FlowClient(f"http://127.0.0.1:{address[1]}/api", api_key=key, timeout=20) as client:
            sending = pool.submit(upload.send, client)
            time.sleep(0.3)
            assert not sending.done()
            client.stop()
            listener.settimeout(0.2)  # for the client may have given up
            received = b""
            while not sending.done():  # makes room, one after another, until the client is through
                with contextlib.suppress(OSError), listener.accept()[0] as connection:
                    connection.settimeout(0.5)
                    received += connection.recv(65536)
            ended(sending.result(), "not sent")
            assert received == b""


def test_stopped_during_the_tls_handshake(raw_server, trigger, pool, key, tmp_path):
    issued = issue_certificate("127.0.0.1", tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certfile)
    gate = Gate(same, lambda connection: context.wrap_socket(connection, server_side=True))
    base_url = raw_server(gate).base_url.replace("http:", "https:")
    with FlowClient(base_url, api_key=key, ca_bundle=str(issued.ca_bundle)) as client:
        sending = gate.send_and_stop(client, trigger, pool)
        ended(sending.result(), "not sent")
    assert gate.received == b""


@pytest.mark.parametrize("by_signal", [False, True])
def test_stopped_while_a_proxy_opens_the_tunnel(raw_server, trigger, pool, key, by_signal):
    def read_connect(connection):
        assert connection.recv(65536).startswith(b"CONNECT ")
        return connection

    def open_tunnel(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        return connection

    gate = Gate(read_connect, open_tunnel)
    proxy = f"http://127.0.0.1:{raw_server(gate).port}"
    with FlowClient("https://service.example/api", api_key=key, proxy=proxy) as client:
        if by_signal:
            outcome = gate.send_and_stop_by_signal(client, trigger, pool)
        else:
            outcome = gate.send_and_stop(client, trigger, pool).result()
    ended(outcome, "not sent via the connection's proxy")
    assert gate.received == b""


def test_stopped_in_the_middle_of_the_body(raw_server, attempt, pool, key):
    def slow(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        assert connection.recv(10)
        return connection

    gate = Gate(slow, same)
    with FlowClient(raw_server(gate).base_url, api_key=key, timeout=20) as client:
        sending = gate.send_and_stop(client, attempt, pool, LARGE)
        ended(sending.result(), "aborted")
    assert len(gate.received) < len(LARGE)


def test_trigger_that_was_handed_over_is_waited_for(raw_server, trigger, pool, key):
    def read(connection):
        data = b""
        while not data.endswith(b"}}"):
            data += connection.recv(65536)
        return connection

    def respond(connection):
        connection.sendall(b'HTTP/1.1 201 Created\r\nContent-Length: 15\r\n\r\n{"run_id": "7"}')
        return connection

    gate = Gate(read, respond)
    with FlowClient(raw_server(gate).base_url, api_key=key) as client:
        sending = gate.send_and_stop(client, trigger, pool)
        assert sending.result(10).run_id == "7"
        ended(trigger.send(client))
