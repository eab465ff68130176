"""The key is neither in an error nor in a log, whatever the service does with it."""

from __future__ import annotations

import io
import json
import logging
import re
from urllib.parse import quote

import httpx
import pytest

from workflow_automation_provider.client.files import File
from workflow_automation_provider.client.redaction import WITHHELD
from workflow_automation_provider.exceptions import RejectedError, WorkflowAutomationError

from .conftest import KEY, check, client_of, trigger_flow, upload_files
from .forms import nowhere


@pytest.fixture
def wire_log(caplog, monkeypatch):
    for name in ("httpcore.http11", "httpcore.connection"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.DEBUG)
    with caplog.at_level(logging.DEBUG):
        yield caplog


def everything(failure):
    assert isinstance(failure, WorkflowAutomationError)
    assert failure.__context__ is None, "the text of the other error is not redacted"
    return f"{failure!r}{failure}{vars(failure)}{failure.args}"


@pytest.mark.parametrize(("operation", "status"), [("trigger_by_key", 400), ("upload", 500)])
def test_failure_that_echoes_the_key(service, client, wire_log, operation, status):
    trigger_flow(client, {}, "demo-flow")
    service.faults.add("echo_key", status=status, operation=operation)
    if operation == "upload":
        failure = upload_files(client, "1001", [{}], "demo-flow")
    else:
        failure = trigger_flow(client, {})
    assert failure.quote == WITHHELD
    nowhere(KEY, everything(failure) + wire_log.text)


def test_success_that_echoes_the_key(service, client, wire_log):
    service.faults.add("echo_key", status=201, times=None)
    run = trigger_flow(client, {})
    assert run.run_id == "1001"
    response = upload_files(client, run.run_id, [{}], "demo-flow")
    assert response == run.response == WITHHELD
    nowhere(KEY, wire_log.text + json.dumps(run.response) + repr(run) + response)


@pytest.mark.parametrize("line", ["X-Echo: a\x00{}", "{}"])
def test_illegal_header_that_holds_the_key(raw_server, wire_log, trigger, line):
    server = raw_server(f"HTTP/1.1 200 OK\r\n{line.format(KEY)}\r\n\r\n".encode())
    nowhere(KEY, everything(trigger.send(client_of(server))) + wire_log.text)


def test_status_line_and_redirect_that_hold_the_key(raw_server, wire_log):
    location = f"Location: https://evil.example/?k={quote(KEY)}"
    server = raw_server(f"HTTP/1.1 307 {KEY}\r\n{location}\r\nContent-Length: 0\r\n\r\n".encode())
    client = client_of(server)
    failure = check(trigger_flow(client, {}), RejectedError, status=307)
    nowhere(KEY, everything(failure) + repr(client.check()) + repr(client) + wire_log.text)


@pytest.mark.parametrize("status", [200, 400])
def test_nothing_of_a_response_that_was_cut_off_is_quoted(raw_server, attempt, status):
    body = b'{"run_id": "7", "words": "these words are quoted nowhere ' + KEY[:-1].encode()
    server = raw_server(b"HTTP/1.1 %d Words\r\nContent-Length: 999\r\n\r\n" % status + body)
    text = str(attempt.send(client_of(server)))
    assert "cut off after" in text
    assert not re.search(f"words are|{KEY[:4]}", text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "your token is hush-1234",
            "no such id: crumb-24680",
            "Cookie: first=crumb-24680",
            "password: hidden-13579",
        ),
        *("proxy: p%40ss-9876", "proxy: p@ss-9876"),
    ],
)
def test_secret_headers_and_the_password_of_a_proxy_are_withheld(answering, text):
    server = answering(text.encode(), status=400)
    client = client_of(
        "http://service.example/api",
        allow_http=True,
        headers={
            "Authorization": "Bearer hush-1234",
            "Cookie": "first=crumb-24680; second=2",
            "X-Pwd": "hidden-13579",
            "X-Team": "data-engineering",
        },
        proxy=f"http://user:p%40ss-9876@127.0.0.1:{server.port}",
    )
    failure = check(trigger_flow(client, {}, "demo-flow"), RejectedError, quote=WITHHELD)
    assert not re.search("hush|p%40ss|p@ss|crumb|hidden", everything(failure))
    ((head, _),) = server.requests
    assert b"Bearer hush-1234" in head


def test_wire_logs_are_those_of_others(service, client, wire_log):
    nested = File("a", 0, "", "", lambda: trigger_flow(client, {}) and io.BytesIO())
    upload_files(client, "1001", [nested], "demo-flow")
    assert "httpcore" not in {record.name.partition(".")[0] for record in wire_log.records}
    httpx.get(service.base_url)
    assert "receive_response_headers.complete" in wire_log.text
