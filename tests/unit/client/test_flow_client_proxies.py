"""Which proxy a client takes, and that its handshake is not taken for the request."""

from __future__ import annotations

import socket
import threading

import pytest

from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import (
    NotSentError,
)
from workflow_automation_provider.testing import Key, LocalService

from .conftest import check


def test_plain_http_goes_through_the_proxy_whole(answering, attempt, key):
    proxy = answering(b'{"run_id": "7"}')
    with FlowClient(
        "http://service.example/api", api_key=key, allow_http=True, proxy=f"http://127.0.0.1:{proxy.port}"
    ) as client:
        attempt.send(client)
    ((head, _),) = proxy.requests
    assert head.startswith(f"POST http://service.example/api{attempt.path} HTTP/1.1\r\n".encode())


@pytest.fixture
def distant_service(tmp_path, key):
    """Start a service that clients reach under another name than this machine's."""
    with LocalService(
        keys=[Key(key, "demo-flow")], journal=tmp_path / "distant.jsonl", public_url="http://service.example"
    ) as service:
        yield service


@pytest.fixture
def socks_proxy(distant_service):
    """Start a SOCKS5 proxy that asks for a password and sends every connection to the service."""
    listener = socket.create_server(("127.0.0.1", 0))
    lost: list[bool] = []

    def pump(source, sink):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    def serve():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.recv(65536)
            client.sendall(b"\x05\x02")
            assert client.recv(65536) == b"\x01\x04user\x04hush"
            client.sendall(b"\x01\x00")
            assert client.recv(65536).startswith(b"\x05\x01\x00")
            if lost:
                client.close()
                continue
            client.sendall(b"\x05\x00\x00\x01\0\0\0\0\0\0")
            server = socket.create_connection(("127.0.0.1", distant_service.port))
            threading.Thread(target=pump, args=(server, client), daemon=True).start()
            threading.Thread(target=pump, args=(client, server), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"socks5://user:hush@127.0.0.1:{listener.getsockname()[1]}", lost
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_socks_proxy(distant_service, socks_proxy, trigger, key):
    proxy, lost = socks_proxy
    with FlowClient("http://service.example/api", api_key=key, allow_http=True, proxy=proxy) as client:
        assert trigger.send(client).run_id == "1001"
        lost.append(True)
        check(trigger.send(client), NotSentError, "not sent via the connection's proxy")
    assert len(distant_service.journal.requests()) == 1
