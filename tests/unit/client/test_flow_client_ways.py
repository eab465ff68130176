"""The way to the service: which proxy is taken, and which certificates are trusted."""

from __future__ import annotations

import ssl

import pytest

from certificates import issue_certificate
from raw_server import response
from workflow_automation_provider.client.transport import environment_proxy
from workflow_automation_provider.exceptions import NotSentError
from workflow_automation_provider.testing import Key, LocalService

from .conftest import KEY, check, client_of, read_request

HTTP, HTTPS = "http://service.example/api", "https://service.example/api"
PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"HTTPS_PROXY": PROXY}, HTTPS, PROXY),
        ({"HTTPS_PROXY": PROXY}, HTTP, None),
        ({"ALL_PROXY": "http://other", "HTTP_PROXY": "proxy.example:3128"}, HTTP, PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "a, .example"}, HTTPS, None),
        (
            {"HTTPS_PROXY": PROXY, "NO_PROXY": "host.example:8443"},
            "https://host.example:8443/api",
            None,
        ),
    ],
)
def test_proxy_of_the_environment(monkeypatch, variables, url, proxy):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment_proxy(url) == proxy


@pytest.mark.parametrize("status", [403, 407])
def test_proxy_that_lets_nothing_through(raw_server, attempt, status):
    proxy = raw_server(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
    client = client_of(HTTPS, proxy=f"http://127.0.0.1:{proxy.port}")
    check(attempt.send(client), NotSentError, "not sent via the connection's proxy", f"{status} No")
    ((head, _),) = proxy.requests
    assert head.startswith(b"CONNECT service.example:443 ")
    assert KEY.encode() not in head


def test_socks_proxy(raw_server, trigger):
    """It asks for a password, and leads the first connection to the service, which is the same here."""

    def answer(connection, server):
        connection.recv(65536)
        connection.sendall(b"\x05\x02")
        assert connection.recv(65536) == b"\x01\x04user\x04hush"
        connection.sendall(b"\x01\x00")
        assert connection.recv(65536).startswith(b"\x05\x01\x00")
        if not server.requests:
            connection.sendall(b"\x05\x00\x00\x01\0\0\0\0\0\0")
            server.requests.append(read_request(connection))
            connection.sendall(response("7"))

    server = raw_server(answer)
    client = client_of(HTTP, allow_http=True, proxy=f"socks5://user:hush@127.0.0.1:{server.port}")
    assert trigger.send(client).run_id == "7"
    check(trigger.send(client), NotSentError, "not sent via the connection's proxy")
    ((head, _),) = server.requests
    assert head.startswith(f"POST /api{trigger.path} ".encode())


# Certificates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "other.example"])
def test_the_service_is_verified(monkeypatch, trigger, host, tmp_path):
    """Who issued its certificate, and for which host."""
    issued = issue_certificate(host, tmp_path)
    keys, journal = [Key(KEY, "demo-flow")], tmp_path / "journal.jsonl"
    with LocalService(keys=keys, certfile=str(issued.certfile), journal=journal) as service:
        failure = check(trigger.send(client_of(service)), NotSentError, "CERTIFICATE_VERIFY_FAILED")
        assert "CA bundle" in failure.next_step
        monkeypatch.setenv("SSL_CERT_FILE", str(issued.ca_bundle))
        outcome = trigger.send(client_of(service))
        if host == "127.0.0.1":
            assert outcome.run_id == "1001"
        else:
            check(outcome, NotSentError, "CERTIFICATE_VERIFY_FAILED")
            assert service.journal.requests() == []


def test_a_proxy_over_tls_is_verified(monkeypatch, raw_server, trigger, issued):
    """And it is sent a request in plain http whole."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certfile)
    received = []

    def answer(connection, _):
        with context.wrap_socket(connection, server_side=True) as tls:
            received.append(read_request(tls)[0])
            tls.sendall(response("7"))

    monkeypatch.setenv("HTTP_PROXY", f"https://127.0.0.1:{raw_server(answer).port}")
    check(trigger.send(client_of(HTTP, allow_http=True)), NotSentError, "CERTIFICATE_VERIFY_FAILED")
    assert received == []
    monkeypatch.setenv("SSL_CERT_FILE", str(issued.ca_bundle))
    assert trigger.send(client_of(HTTP, allow_http=True)).run_id == "7"
    assert received[0].startswith(f"POST {HTTP}{trigger.path} ".encode())
