"""What a POST can come to, over real HTTP; ``tests/unit/test_fault_table.py`` has what each fault does."""

from __future__ import annotations

import contextlib
import json
import re
import socket

import httpcore
import pytest

from certificates import issue_certificate
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.protocol import Run
from workflow_automation_provider.exceptions import (
    BusyError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
)
from workflow_automation_provider.testing import Key, LocalService

from .conftest import check, trigger_flow

CLASS_NAMES = re.compile(
    r"\b({})\b".format("|".join(n for n in httpcore.__all__ if n.endswith(("Error", "Timeout"))))
)


def fail(attempt, client, service=None, *, key, sent=1, effects=None):
    """Make one attempt that must fail, check what is true of every failure, and return it."""
    if service is not None:
        attempt.prepare(service)
        before = attempt.effects(service)
    failure = attempt.send(client)
    assert f"POST {client.base_url}{attempt.path} " in failure.message
    text = f"{failure!r}{failure}"
    assert key not in text
    assert not CLASS_NAMES.search(text)
    if service is not None:
        assert len(attempt.requests(service)) == sent
        assert attempt.effects(service) - before == effects
    return failure


# Started ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202])
def test_success_sends_once_and_returns_the_response(service, client, attempt, status):
    attempt.prepare(service)
    before = attempt.effects(service)
    service.faults.add("response", operation=attempt.operation, status=status)
    outcome = attempt.send(client)
    if attempt.uploads:
        assert outcome == "1 file received"
    else:
        link = f"{service.url}/runs/1001"
        flow_id = "demo-flow" if attempt.operation == "trigger_by_path" else None
        assert outcome == Run("1001", link, flow_id, {"run_id": "1001", "run_link": link})
    assert attempt.effects(service) == before + 1
    assert len(attempt.requests(service)) == 1


def test_key_goes_only_where_the_interface_asks_for_it(service, client, attempt):
    attempt.prepare(service)
    attempt.send(client)
    (request,) = attempt.requests(service)
    assert request.key_sent == (attempt.operation != "trigger_by_path")


def test_request_is_what_the_interface_shows(answering, attempt, key):
    server = answering(b'{"run_id": "7"}')
    with FlowClient(server.base_url, api_key=key) as client:
        attempt.send(client, "é")
    ((head, body),) = server.requests
    line, *headers = head.decode().split("\r\n")
    fields = [header.split(": ", 1) for header in headers]
    named = {name.lower(): value for name, value in fields}
    assert line == f"POST /api{attempt.path} HTTP/1.1"
    assert len(named) == len(fields), "a header twice"
    assert named["content-type"] == "application/json"
    assert named.get("x-api-key") == (None if attempt.operation == "trigger_by_path" else key)
    expected: dict[str, object] = {"inputs": {"value": "é"}}
    if attempt.uploads:
        expected = {"flow_id": "demo-flow", "run_id": "1001", "files": [{"value": "é"}]}
    assert json.loads(body) == expected


def test_each_request_has_a_connection_of_its_own(service, client, attempt):
    attempt.prepare(service)
    service.faults.add("stale", operation=attempt.operation)
    attempt.send(client)
    attempt.send(client)
    assert [r.outcome for r in attempt.requests(service)] == ["responded", "responded"]
    assert "closed unread" not in {r.outcome for r in service.journal.requests()}


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_is_never_reached_through_a_proxy_of_the_environment(service, monkeypatch, name, host, key):
    monkeypatch.setenv(name, f"http://127.0.0.1:{_closed_port()}")
    with (
        LocalService(keys=service.keys, host="0.0.0.0") as everywhere,
        FlowClient(f"http://{host}:{everywhere.port}/api", api_key=key) as client,
    ):
        assert trigger_flow(client, {}).run_id == "1001"


# RejectedError -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [302, 307])
def test_redirect_is_not_followed(service, client, attempt, status, key, tmp_path):
    with LocalService(keys=service.keys, journal=tmp_path / "other.jsonl") as other:
        location = f"{other.base_url}{attempt.path}"
        service.faults.add("redirect", operation=attempt.operation, status=status, location=location)
        failure = fail(attempt, client, service, key=key, effects=0)
        assert other.journal.requests() == []
    check(failure, OutcomeUnknownError if status == 302 else RejectedError, status=status)
    assert location in failure.next_step


@pytest.mark.parametrize("location", ["https://host:port/", "https://[::zz]/", "http:///x", "//"])
def test_redirect_to_no_address_is_rejected_as_well(service, client, attempt, location, key):
    service.faults.add("redirect", operation=attempt.operation, location=location)
    check(fail(attempt, client, service, key=key, effects=0), RejectedError, status=307)


# BusyError ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 503])
def test_busy_statuses(service, attempt, status, key):
    service.faults.add("reject", operation=attempt.operation, status=status)
    with FlowClient(service.base_url, api_key=key, busy_statuses=[status]) as client:
        check(fail(attempt, client, service, key=key, effects=0), BusyError, status=status, retry_after=None)


# Not sent -----------------------------------------------------------------------------------------------


def _closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def tls_service(tmp_path):
    """Start a service with a certificate for a name, and return it with the file of its CA."""
    with contextlib.ExitStack() as running:

        def start(name):
            issued = issue_certificate(name, tmp_path)
            service = LocalService(keys=[Key("other", "demo-flow")], certfile=str(issued.certfile))
            return running.enter_context(service), str(issued.ca_bundle)

        yield start


def not_sent(attempt, client, key, *words):
    failure = fail(attempt, client, key=key)
    return check(failure, NotSentError, "not sent", *words, status=None, retry_after=None)


def test_host_without_address(attempt, key):
    with FlowClient("https://nowhere.invalid/api", api_key=key) as client:
        failure = not_sent(attempt, client, key)
    assert re.search(r"not sent: \[Errno -\d\] .+[^.]\.$", failure.message)


def test_connection_rejected(attempt, key):
    with FlowClient(f"http://127.0.0.1:{_closed_port()}/api", api_key=key) as client:
        failure = not_sent(attempt, client, key)
    assert re.search(r"not sent: \[Errno \d+\] Connection refused\.$", failure.message)


@pytest.mark.parametrize(("name", "knows_authority"), [("other.example", True), ("127.0.0.1", False)])
def test_certificate_that_is_not_accepted(tls_service, attempt, key, name, knows_authority):
    service, ca = tls_service(name)
    with FlowClient(service.base_url, api_key=key, ca_bundle=ca if knows_authority else None) as client:
        failure = not_sent(attempt, client, key, "CERTIFICATE_VERIFY_FAILED")
    assert "CA bundle" in failure.next_step
    assert service.journal.requests() == []


def test_server_that_speaks_no_tls(service, attempt, key):
    with FlowClient(service.base_url.replace("http:", "https:"), api_key=key) as client:
        assert "http://" in not_sent(attempt, client, key).next_step
    assert service.journal.requests() == []


@pytest.mark.parametrize("status", [403, 407])
def test_proxy_that_lets_nothing_through(raw_server, attempt, status, key):
    proxy = raw_server(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
    with FlowClient(
        "https://service.example/api", api_key=key, proxy=f"http://127.0.0.1:{proxy.port}"
    ) as client:
        not_sent(attempt, client, key, "via the connection's proxy", f"{status} No")
    ((head, _),) = proxy.requests
    assert head.startswith(b"CONNECT service.example:443 ")
    assert key.encode() not in head


# OutcomeUnknownError ------------------------------------------------------------------------------------------------


def unknown(attempt, client, key, service=None, *, effects=0):
    return check(fail(attempt, client, service, key=key, effects=effects), OutcomeUnknownError)


@pytest.mark.parametrize(
    "response", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 201 Created\r\nno header\r\n\r\n", b"HTTP/9 x"]
)
def test_response_that_is_not_http(raw_server, attempt, response, key):
    server = raw_server(response)
    with FlowClient(server.base_url, api_key=key) as client:
        unknown(attempt, client, key)
    assert len(server.requests) == 1


# Nothing is sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow_id", ["", "  ", 1.5, True, b"x", ["x"], "\ud800", "x" * 70_000])
def test_flow_id_that_is_none(service, client, flow_id):
    with pytest.raises(InvalidRequestError, match="flow_id"):
        trigger_flow(client, {}, flow_id)
    assert service.journal.requests() == []


def test_cookies_of_the_service_are_not_sent_back(answering, key):
    server = answering(b'{"run_id": "7"}', headers=[b"Set-Cookie: session=1; Path=/"])
    with FlowClient(server.base_url, api_key=key) as client:
        trigger_flow(client, {})
        trigger_flow(client, {})
    assert [b"ookie" in head for head, _ in server.requests] == [False, False]
