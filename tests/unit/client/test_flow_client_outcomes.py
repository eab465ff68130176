"""What a POST can come to, over real HTTP; ``tests/unit/test_fault_table.py`` has what each fault does."""

from __future__ import annotations

import json
import re
import socket

import pytest

from certificates import issue_certificate
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
)
from workflow_automation_provider.testing import Key, LocalService

from .conftest import check, trigger_flow


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
    if attempt.operation == "upload":
        expected = {"flow_id": "demo-flow", "run_id": "1001", "files": [{"value": "é"}]}
    assert json.loads(body) == expected


def test_cookies_of_the_service_are_not_sent_back(answering, key):
    server = answering(b'{"run_id": "7"}', headers=[b"Set-Cookie: session=1; Path=/"])
    with FlowClient(server.base_url, api_key=key) as client:
        trigger_flow(client, {})
        trigger_flow(client, {})
    assert [b"ookie" in head for head, _ in server.requests] == [False, False]


@pytest.mark.parametrize("status", [302, 307])
def test_redirect_is_not_followed(service, client, trigger, status, tmp_path):
    with LocalService(keys=service.keys, journal=tmp_path / "other.jsonl") as other:
        location = f"{other.base_url}{trigger.path}"
        service.faults.add("redirect", status=status, location=location)
        failure = trigger.send(client)
        assert other.journal.requests() == []
    check(failure, OutcomeUnknownError if status == 302 else RejectedError, status=status)
    assert location in failure.next_step


@pytest.mark.parametrize("location", ["https://host:port/", "https://[::zz]/", "http:///x", "//"])
def test_redirect_to_no_address_is_rejected_as_well(service, client, trigger, location):
    service.faults.add("redirect", location=location)
    check(trigger.send(client), RejectedError, status=307)
    assert service.runs == []


@pytest.mark.parametrize(
    "response", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 201 Created\r\nno header\r\n\r\n", b"HTTP/9 x"]
)
def test_response_that_is_not_http(raw_server, trigger, response, key):
    server = raw_server(response)
    with FlowClient(server.base_url, api_key=key) as client:
        check(trigger.send(client), OutcomeUnknownError)
    assert len(server.requests) == 1


# Not sent -----------------------------------------------------------------------------------------------


def not_sent(trigger, client, *words):
    failure = check(trigger.send(client), NotSentError, "not sent", *words, status=None, retry_after=None)
    assert f"POST {client.base_url}{trigger.path} " in failure.message
    return failure


@pytest.mark.parametrize("host", ["https://nowhere.invalid", "http://127.0.0.1:{port}"])
def test_host_that_is_not_there(trigger, key, host):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with FlowClient(f"{host.format(port=port)}/api", api_key=key) as client:
        failure = not_sent(trigger, client)
    assert re.search(r"not sent: \[Errno -?\d+\] .+[^.]\.$", failure.message)


def test_certificate_of_another_host(trigger, key, tmp_path):
    issued = issue_certificate("other.example", tmp_path)
    with (
        LocalService(keys=[Key("other", "demo-flow")], certfile=str(issued.certfile)) as service,
        FlowClient(service.base_url, api_key=key, ca_bundle=str(issued.ca_bundle)) as client,
    ):
        failure = not_sent(trigger, client, "CERTIFICATE_VERIFY_FAILED")
        assert service.journal.requests() == []
    assert "CA bundle" in failure.next_step


def test_server_that_speaks_no_tls(service, trigger, key):
    with FlowClient(service.base_url.replace("http:", "https:"), api_key=key) as client:
        assert "http://" in not_sent(trigger, client).next_step
    assert service.journal.requests() == []


@pytest.mark.parametrize("flow_id", ["  ", 1.5, "\ud800", "x" * 70_000])
def test_flow_id_that_is_none(service, client, flow_id):
    with pytest.raises(InvalidRequestError, match="flow_id"):
        trigger_flow(client, {}, flow_id)
    assert service.journal.requests() == []
