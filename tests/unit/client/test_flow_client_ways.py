"""The way to the service: which proxy is taken, and which certificates are trusted."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from certificates import issue_certificate
from raw_server import accepted
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.transport import environment_proxy
from workflow_automation_provider.exceptions import NotSentError
from workflow_automation_provider.testing import Key, LocalService

from .conftest import check

HTTP, HTTPS = "http://service.example/api", "https://service.example/api"
PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"HTTPS_PROXY": PROXY}, HTTPS, PROXY),
        ({"HTTPS_PROXY": PROXY}, HTTP, None),
        ({"ALL_PROXY": "http://other", "HTTP_PROXY": "proxy.example:3128"}, HTTP, PROXY),
        ({"ALL_PROXY": PROXY}, HTTPS, PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "a, .example"}, HTTPS, None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "vice.example"}, HTTPS, PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "host.example:8443"}, "https://host.example:8443/api", None),
    ],
)
def test_proxy_of_the_environment(monkeypatch, variables, url, proxy):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment_proxy(url) == proxy


@pytest.mark.parametrize("status", [403, 407])
def test_proxy_that_lets_nothing_through(raw_server, attempt, status, key):
    proxy = raw_server(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
    with FlowClient(HTTPS, api_key=key, proxy=f"http://127.0.0.1:{proxy.port}") as client:
        check(attempt.send(client), NotSentError, "not sent via the connection's proxy", f"{status} No")
    ((head, _),) = proxy.requests
    assert head.startswith(b"CONNECT service.example:443 ")
    assert key.encode() not in head


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
        for client in accepted(listener):
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
    with FlowClient(HTTP, api_key=key, allow_http=True, proxy=proxy) as client:
        assert trigger.send(client).run_id == "1001"
        lost.append(True)
        check(trigger.send(client), NotSentError, "not sent via the connection's proxy")
    assert len(distant_service.journal.requests()) == 1


# Certificates -------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch):
    """Return the names of the calls that loaded certificates to trust, however the context was made."""
    calls = []

    def count(name):
        original = getattr(ssl.SSLContext, name)

        def counting(*arguments, **named):
            calls.append(name)
            return original(*arguments, **named)

        monkeypatch.setattr(ssl.SSLContext, name, counting)

    count("load_verify_locations")
    count("load_default_certs")
    return calls


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize(
    ("base_url", "proxy", "has_tls"),
    [
        (HTTP, "", False),
        (HTTP, PROXY, False),
        (HTTP, "HTTPS://proxy.example:3128", True),
        ("service.example/api", "", True),
        (HTTPS, PROXY, True),
    ],
)
def test_certificates_are_loaded_for_tls(monkeypatch, loaded, by_environment, base_url, proxy, has_tls):
    if by_environment:
        monkeypatch.setenv("ALL_PROXY", proxy)
    FlowClient(base_url, allow_http=True, proxy=None if by_environment else proxy).close()
    assert bool(loaded) is has_tls


@pytest.fixture
def issued(tmp_path):
    """A certificate of this machine, by an authority that no client trusts yet."""
    return issue_certificate("127.0.0.1", tmp_path)


def test_the_service_is_verified(monkeypatch, trigger, key, issued, tmp_path):
    journal = tmp_path / "journal.jsonl"
    with LocalService(
        keys=[Key(key, "demo-flow")], certfile=str(issued.certfile), journal=journal
    ) as service:
        with FlowClient(service.base_url, api_key=key) as client:
            check(trigger.send(client), NotSentError, "CERTIFICATE_VERIFY_FAILED")
        assert service.journal.requests() == []
        monkeypatch.setenv("SSL_CERT_FILE", str(issued.ca_bundle))
        with FlowClient(service.base_url, api_key=key) as client:
            assert trigger.send(client).run_id == "1001"


def test_a_proxy_over_tls_is_verified(monkeypatch, raw_server, trigger, key, issued):
    """And it is sent a request in plain http whole."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certfile)
    received = []

    def answer(connection, server):
        with context.wrap_socket(connection, server_side=True) as tls:
            request = b""
            while not request.endswith(b"}}"):
                request += tls.recv(65536)
            received.append(request)
            tls.sendall(b'HTTP/1.1 201 Created\r\nContent-Length: 15\r\n\r\n{"run_id": "7"}')

    monkeypatch.setenv("HTTP_PROXY", f"https://127.0.0.1:{raw_server(answer).port}")
    with FlowClient(HTTP, api_key=key, allow_http=True) as client:
        check(trigger.send(client), NotSentError, "CERTIFICATE_VERIFY_FAILED")
    assert received == []
    monkeypatch.setenv("SSL_CERT_FILE", str(issued.ca_bundle))
    with FlowClient(HTTP, api_key=key, allow_http=True) as client:
        assert trigger.send(client).run_id == "7"
    assert received[0].startswith(f"POST {HTTP}{trigger.path} ".encode())
