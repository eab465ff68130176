"""The words of failed requests: each kind once, in golden/request_errors.txt. No other test asserts them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from workflow_automation_provider.client.outcome import (
    Attempts,
    Busy,
    Check,
    Confirmed,
    Failure,
    NotSent,
    Proxy,
    Reason,
    Rejected,
    Started,
    Unidentified,
    Unknown,
    Unquoted,
)
from workflow_automation_provider.client.protocol import (
    Operation,
    Response,
    Run,
    trigger_request,
    upload_request,
)
from workflow_automation_provider.client.redaction import Redactor
from workflow_automation_provider.client.responses import read
from workflow_automation_provider.client.upload_body import upload_body
from workflow_automation_provider.exceptions import Accepted, WorkflowAutomationError
from workflow_automation_provider.failures import (
    check_text,
    code_of,
    reason_of,
    request_error,
    response_of,
    run_of,
)

GOLDEN = Path(__file__).parent / "golden" / "request_errors.txt"
"""Renewed by ``python -m tests.unit.test_failures``: read the difference before it is committed."""

URL = "https://service.example/api"
BY_PATH = trigger_request(URL, {}, "demo-flow")
BY_KEY = trigger_request(URL, {})
UPLOAD = upload_request(URL, "demo-flow", upload_body("demo-flow", "7", []), [])
REQUESTS = (BY_PATH, BY_KEY, UPLOAD)

NEW = "https://new.example/é"


def unusable(body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> Failure:
    """Return the failure of a run whose response cannot be used."""
    outcome = read(Response(201, headers, body), BY_PATH, Redactor([], key="the-key"))
    assert isinstance(outcome, Unidentified)
    return outcome


def failures() -> Iterator[Failure]:
    """Yield one failure of each kind that is worded differently."""
    for status, request in itertools.product((400, 401, 404, 405, 413), REQUESTS):
        yield Rejected(request=request, status=status)
    yield Rejected(request=BY_KEY, status=409, quote="No such luck")
    yield Rejected(request=BY_KEY, status=499)
    for quote in Unquoted:
        yield Rejected(request=BY_KEY, status=407, quote=quote)
    yield Rejected(request=BY_KEY, status=307, location=NEW)
    yield Rejected(request=UPLOAD, status=308)
    yield Busy(request=BY_KEY, status=429, quote="later", retry_after=17.0)
    yield Busy(request=UPLOAD, status=403)
    yield Busy(
        request=BY_KEY,
        status=425,
        retry_after=30.0,
        attempts=Attempts(2, 35.0, 60.0, "send_retry_timeout"),
    )
    for request in (BY_KEY, UPLOAD):
        yield Unknown(
            request=request, reason=Reason.CONNECTION, detail="no response within 60 s (the timeout)"
        )
        yield Unknown(request=request, status=502)
        yield Unknown(request=request, status=503, retry_after=5.0)
        yield Unknown(request=request, status=302, location=NEW)
    yield Unknown(request=BY_KEY, reason=Reason.REPEATED, detail="7")
    yield Unknown(request=UPLOAD, status=200, detail="with a web page", quote=Unquoted.NOT_TEXT)
    for body in (
        b"",
        b"<html>",
        b"[]",
        b'{"run_id": 1.5}',
        b'{"run_id": "\\u0000"}',
        b'{"run_id": "the-key"}',
    ):
        yield unusable(body)
    yield unusable(b"{}", {"content-encoding": "gzip"})
    yield NotSent(request=BY_KEY, reason=Reason.STOPPED)
    yield NotSent(request=UPLOAD, reason=Reason.STOPPED, begun=True)
    for via in (None, *Proxy):
        yield NotSent(
            request=BY_KEY, reason=Reason.UNREACHABLE, detail="[Errno 111] Connection refused", via=via
        )
    yield NotSent(request=BY_KEY, reason=Reason.CERTIFICATE, detail="CERTIFICATE_VERIFY_FAILED")
    yield NotSent(request=BY_KEY, reason=Reason.NO_TLS, detail="WRONG_VERSION_NUMBER")
    yield NotSent(request=UPLOAD, reason=Reason.WRITE, detail="[Errno 32] Broken pipe", begun=True)
    yield NotSent(request=UPLOAD, reason=Reason.CONNECTION, detail="ValueError: no display", begun=True)
    yield NotSent(
        request=BY_KEY, status=201, early=True, begun=True, detail="it is not JSON", quote=Unquoted.NOT_TEXT
    )
    yield NotSent(request=UPLOAD, status=500, early=True, begun=True)
    yield NotSent(
        request=UPLOAD,
        reason=Reason.UNREACHABLE,
        detail="refused",
        attempts=Attempts(4, 61.2, 60.0, "send_retry_timeout"),
    )


def checks() -> Iterator[Check]:
    """Yield one check of each kind that is worded differently."""
    yield Check(url=URL, status=404)
    yield Check(url=URL, status=308, location=NEW)
    yield Check(url=URL, status=301)
    yield Check(url=URL, status=503)
    yield Check(url=URL, reason=Reason.STOPPED)
    yield Check(url=URL, reason=Reason.CONNECTION, detail="no response within 5 s (the timeout)")
    yield Check(url=URL, reason=Reason.UNREACHABLE, detail="refused", via=Proxy.CONNECTION)
    yield Check(url=URL, reason=Reason.CERTIFICATE, detail="CERTIFICATE_VERIFY_FAILED")


def rendered() -> str:
    """Return all that is said of failed requests and checks."""
    errors = [f"{type(error).__name__}\n{error}" for error in map(request_error, failures())]
    text = "\n\n".join([*errors, "Checks of the connection", *map(check_text, checks())]) + "\n"
    return text.replace("413 Content Too Large", "413 Request Entity Too Large")  # Python 3.13 and before


def test_words():
    assert rendered() == GOLDEN.read_text(encoding="utf-8")


def test_each_status_has_words_that_hold_the_status():
    for status, request, kind in itertools.product(
        range(300, 600), REQUESTS, (Rejected, Busy, Unknown, NotSent)
    ):
        error = request_error(kind(request=request, status=status))
        assert str(status) in error.message.splitlines()[0]
        assert error.code == code_of(kind(request=request, status=status))


def test_an_error_has_the_facts_of_its_failure():
    for failure in failures():
        error = request_error(failure)
        assert (error.status, error.retry_after, error.accepted) == (
            failure.status,
            failure.retry_after,
            failure.accepted,
        )
        lines = str(error).splitlines()
        assert lines[0].startswith(f"[{error.code}] POST {failure.request.url} ")
        assert error.consequence in lines
        assert ("Look in" in lines[-1]) is (failure.accepted is not Accepted.NO)
        assert "\n" not in reason_of(failure)
        assert reason_of(failure).startswith(error.message.splitlines()[0])


def test_what_a_request_returned():
    run = Run("7", None)
    assert run_of(Started(request=BY_KEY, run=run)) is run
    assert response_of(Confirmed(request=UPLOAD, response="fine")) == "fine"
    for failure in failures():
        reader = response_of if failure.request.operation is Operation.UPLOAD else run_of
        with pytest.raises(WorkflowAutomationError) as caught:
            reader(failure)
        assert str(caught.value) == str(request_error(failure))


@pytest.mark.parametrize(("status", "is_passed"), [(200, True), (404, True), (500, False), (None, False)])
def test_a_check_passes_unless_the_service_is_out_of_order(status, is_passed):
    assert Check(url=URL, status=status).is_passed is is_passed


if __name__ == "__main__":
    GOLDEN.write_text(rendered(), encoding="utf-8")
