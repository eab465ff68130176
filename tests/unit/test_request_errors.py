"""
What is said of requests that did not succeed.

Each row of the table once, in golden/request_errors.txt.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore
import pytest

import golden
from workflow_automation_provider.client.files import upload_bodies
from workflow_automation_provider.client.protocol import (
    Operation,
    Request,
    Response,
    trigger_request,
    upload_request,
)
from workflow_automation_provider.client.redaction import Redactor
from workflow_automation_provider.client.responses.no_response import error_without_response
from workflow_automation_provider.client.responses.results import read_run, read_upload
from workflow_automation_provider.client.responses.statuses import ROWS, Row, row_of
from workflow_automation_provider.client.send_progress import SendProgress, StoppedError
from workflow_automation_provider.exceptions import BusyError, WorkflowAutomationError

PAGE = Path(__file__).parents[2] / "docs" / "if-it-fails.md"

URL = "https://service.example/api"
REQUESTS = {
    "path": trigger_request(URL, {}, "demo-flow"),
    "key": trigger_request(URL, {}),
    "upload": upload_request(URL, "demo-flow", *upload_bodies("demo-flow", "7", [{}])),
}
REDACTOR = Redactor([], key="the-key")


def failure(
    response: Response, request: Request, declared: tuple[int, ...] = ()
) -> WorkflowAutomationError:
    """Return the exception for a response."""
    read = read_upload if request.operation is Operation.UPLOAD else read_run
    with pytest.raises(WorkflowAutomationError) as caught:
        read(response, request, REDACTOR, declared)
    return caught.value


def responses_of(row: Row) -> Iterator[tuple[Response, Request, tuple[int, ...]]]:
    """
    Yield responses that a row may be the one for.

    One for each of its operations and statuses.
    """
    statuses = {"any": "403 500", "2xx": "201", "3xx": "307", "4xx": "499"}.get(
        row.statuses, row.statuses
    )
    for operation, status in itertools.product(
        (row.operations or "path key upload").split(), statuses.split()
    ):
        headers = {"location": "https://new.example/é"} if status[0] == "3" else {}
        if "Retry-After" in row.traits:
            headers["retry-after"] = "17"
        headers["content-type"] = "text/html" if "page" in row.traits else "text/plain"
        declared = (int(status),) if "declared" in row.traits else ()
        body = b"No such luck."
        if "page" in row.traits:
            body = b"<title>No such luck</title>"
        if "may name a run" in row.traits:
            body = b'{"run_id": 1.5}'
        response = Response(int(status), headers, body, early="early" in row.traits)
        yield response, REQUESTS[operation], declared


def errors() -> Iterator[WorkflowAutomationError]:
    """Yield one error of each row."""
    for row in filter(lambda row: row.outcome, ROWS):
        for response, request, declared in responses_of(row):
            if row_of(response, request, busy_statuses=declared) is row:
                yield failure(response, request, declared)
                break
        else:
            raise AssertionError(f"Nothing is decided by {row}")
    yield failure(Response(201, {}, b'{"run_id": "the-key"}'), REQUESTS["path"])
    yield failure(Response(202, {"location": "/runs/7"}, b""), REQUESTS["key"])
    yield failure(Response(307, {}, b"{", httpcore.ReadError("Connection lost")), REQUESTS["key"])
    yield from without_response()


def without_response() -> Iterator[WorkflowAutomationError]:
    """Yield one error of each kind without a response."""
    for name in ("key", "upload"):
        yield lost(name, httpcore.ReadTimeout(), whole=True)
        yield lost(name, StoppedError(), begun=True)
    head = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 201 Created\r\nX Y: 1\r\n\r\n"
    illegal = httpcore.RemoteProtocolError("illegal header line: 'X Y: 1'")
    for name in ("path", "upload"):
        yield lost(name, illegal, whole=True, head=head)
        yield lost(name, illegal, begun=True, head=head)
    yield lost("path", illegal, begun=True, head=b"HTTP/1.1 300 Multiple Choices\r\nX Y: 1\r\n\r\n")
    illegal = httpcore.RemoteProtocolError("illegal status line: 'SSH-2.0'")
    yield lost("key", illegal, whole=True, head=b"SSH-2.0")
    yield lost("upload", httpcore.ReadError("[Errno 104] Connection reset by peer"), begun=True)
    yield lost("upload", ValueError("no display"), begun=True)
    for text in (
        "CERTIFICATE_VERIFY_FAILED",
        "WRONG_VERSION_NUMBER",
        "[Errno 111] Connection refused",
    ):
        yield lost("key", httpcore.ConnectError(text))
    yield lost("key", httpcore.ReadError("tlsv13 alert certificate required"))
    yield lost("key", httpcore.ConnectTimeout(), via=" via the connection's proxy")


def lost(operation: str, error: Exception, via: str = "", **facts: Any) -> WorkflowAutomationError:
    """Return the exception of a request that was sent as far as the facts say."""
    progress = SendProgress(60, lambda: False)
    vars(progress).update({"begun": "whole" in facts} | facts)
    request = REQUESTS[operation]
    return error_without_response(request, error, progress, REDACTOR, via)


def test_messages():
    """With what else the errors know."""
    texts = [
        f"{type(error).__name__}, accepted: {error.accepted.name}, status: {error.status}, "
        f"retry_after: {error.retry_after}\n{error}"
        for error in errors()
    ]
    golden.check("request_errors.txt", texts)
    assert "http://" in lost("key", httpcore.ConnectError("RECORD_LAYER_FAILURE")).next_step
    assert ": ValueError." in lost("key", ValueError()).message


def test_the_page_has_the_statuses_of_each_code():
    """Of each status and operation, the page names the code."""
    rows = re.findall(
        r"^\| (.*[0-9x]{3}) \| `([a-z-]+)` \| `([a-z-]+)` \|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    codes = {status: row[1:] for row in rows for status in re.findall(r"\dxx|\d{3}", row[0])}
    for status, (operation, request) in itertools.product(range(300, 600), REQUESTS.items()):
        of_start, of_upload = codes.get(str(status)) or codes[f"{status // 100}xx"]
        error = failure(Response(status, {}, b""), request)
        code = of_upload if operation == "upload" else of_start
        assert (status, operation, code) == (status, operation, error.code)


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_status_that_the_connection_declares_as_busy(operation):
    error = failure(Response(502, {}, b""), REQUESTS[operation], declared=(502,))
    assert type(error) is BusyError


def test_a_run_that_the_response_names_counts_whenever_it_came():
    for early in (True, False):
        response = Response(201, {}, b'{"run_id": "7"}', early=early)
        assert read_run(response, REQUESTS["path"], REDACTOR).run_id == "7"
