"""Certificates to trust are loaded where there is TLS, and only there."""

from __future__ import annotations

import ssl

import pytest

from certificates import issue_certificate
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import (
    NotSentError,
)
from workflow_automation_provider.testing import Key, LocalService

from .conftest import check

HTTP, HTTPS = "http://service.example/api", "https://service.example/api"


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


@pytest.fixture
def issued(tmp_path):
    """A certificate of this machine, by an authority that no client trusts yet."""
    return issue_certificate("127.0.0.1", tmp_path)


def test_a_trigger_over_plain_http_loads_none(service, loaded, trigger, key):
    with FlowClient(service.base_url, api_key=key) as client:
        assert trigger.send(client).run_id == "1001"
        assert client.check()
    assert loaded == []


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize(
    ("base_url", "proxy", "has_tls"),
    [
        (HTTP, "", False),
        (HTTP, "http://proxy.example:3128", False),
        (HTTP, "socks5://proxy.example:1080", False),
        (HTTP, "https://proxy.example:3128", True),
        (HTTP, "HTTPS://proxy.example:3128", True),
        (HTTPS, "", True),
        ("HTTPS://service.example/api", "", True),
        ("service.example/api", "", True),
        (HTTPS, "http://proxy.example:3128", True),
        (HTTPS, "socks5://proxy.example:1080", True),
    ],
)
def test_certificates_are_loaded_for_tls(monkeypatch, loaded, by_environment, base_url, proxy, has_tls):
    if by_environment:
        monkeypatch.setenv("ALL_PROXY", proxy)
    FlowClient(base_url, allow_http=True, proxy=None if by_environment else proxy).close()
    assert bool(loaded) is has_tls


def test_the_service_is_verified(monkeypatch, trigger, key, issued, tmp_path):
    with LocalService(
        keys=[Key(key, "demo-flow")],
        certfile=str(issued.certfile),
        journal=tmp_path / "journal.jsonl",
    ) as service:
        with FlowClient(service.base_url, api_key=key) as client:
            check(trigger.send(client), NotSentError, "CERTIFICATE_VERIFY_FAILED")
        assert service.journal.requests() == []
        monkeypatch.setenv("SSL_CERT_FILE", str(issued.ca_bundle))
        with FlowClient(service.base_url, api_key=key) as client:
            assert trigger.send(client).run_id == "1001"


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_proxy_over_tls_is_verified(monkeypatch, raw_server, trigger, key, issued, by_environment):
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

    proxy = f"https://127.0.0.1:{raw_server(answer).port}"
    if by_environment:
        monkeypatch.setenv("HTTP_PROXY", proxy)
    arguments = {"api_key": key, "allow_http": True, "proxy": None if by_environment else proxy}
    with FlowClient(HTTP, **arguments) as client:
        check(trigger.send(client), NotSentError, "CERTIFICATE_VERIFY_FAILED")
    assert received == []
    monkeypatch.setenv("SSL_CERT_FILE", str(issued.ca_bundle))
    with FlowClient(HTTP, **arguments) as client:
        assert trigger.send(client).run_id == "7"
    assert received[0].startswith(f"POST {HTTP}{trigger.path} ".encode())
