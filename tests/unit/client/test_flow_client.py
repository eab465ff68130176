"""What is said of a failure below HTTP, and that a fault of our own loses no run."""

from __future__ import annotations

import socket
import threading

import httpcore
import pytest

from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)

from .conftest import trigger_flow, upload_files

HTTPCORE = [
    getattr(httpcore, name)
    for name in httpcore.__all__
    if name.endswith(("Error", "Timeout", "NotAvailable")) and name != "ConnectionNotAvailable"
]
TIMEOUTS = {
    httpcore.ConnectTimeout: "no connection within 20 s (the timeout)",
    httpcore.ReadTimeout: "no response within 20 s (the timeout)",
    httpcore.WriteTimeout: "no more data could be sent for 20 s (the timeout)",
}


@pytest.mark.parametrize("kind", HTTPCORE)
@pytest.mark.parametrize(("text", "described"), [("", "the connection failed"), ("It broke.", "It broke")])
def test_no_class_name_stands_for_a_failed_connection(monkeypatch, client, attempt, kind, text, described):
    def fail(self, request):
        raise kind(text)

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", fail)
    with pytest.raises(WorkflowAutomationError) as caught:
        attempt.send(client)
    assert caught.value.message.endswith(f": {TIMEOUTS.get(kind, described)}.")
    assert kind.__name__ not in str(caught.value)
    assert client.check().detail == TIMEOUTS.get(kind, described)


def test_an_error_of_our_own_has_its_class(monkeypatch, client, attempt):
    def fail(self, request):
        raise KeyError

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", fail)
    with pytest.raises(WorkflowAutomationError, match=r": KeyError\.\n"):
        attempt.send(client)


def test_timeout_of_a_call_is_the_one_that_is_named(service, key):
    service.faults.add("hang_before")
    with (
        FlowClient(service.base_url, api_key=key, timeout=20) as client,
        pytest.raises(OutcomeUnknownError, match=r"no response within 0\.25 s \(the timeout\)"),
    ):
        trigger_flow(client, {}, timeout=0.25)


# Faults of our own --------------------------------------------------------------------------------------


def test_close_that_fails_does_not_lose_the_run(service, client, attempt, monkeypatch):
    attempt.prepare(service)
    close = socket.socket.close
    failed = []

    def fail_to_close(self):
        close(self)
        if threading.current_thread() is threading.main_thread():
            failed.append(1)
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "close", fail_to_close)
        response = attempt.send(client)
    assert failed
    assert response == "1 file received" if attempt.uploads else response.run_id == "1001"


@pytest.mark.parametrize("body", [None, '{"run_id": ""}'])
def test_response_that_cannot_be_read_for_an_unforeseen_reason(service, client, trigger, monkeypatch, body):
    service.faults.add("response", body=body, times=1)
    real = type(client._redactor).reveals

    def fail_once(self, text, *, key_only=False):
        if not key_only and "run_id" not in text:
            return real(self, text)
        monkeypatch.setattr(type(client._redactor), "reveals", real)
        raise MemoryError

    monkeypatch.setattr(type(client._redactor), "reveals", fail_once)
    with pytest.raises(ResponseUnusableError, match="MemoryError") as caught:
        trigger.send(client)
    assert (caught.value.accepted, caught.value.status) == (Accepted.YES, 201)
    assert len(service.runs) == 1


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (400, {}, RejectedError),
        (400, {"Retry-After": "7"}, RejectedError),
        (429, {"Retry-After": "7"}, BusyError),
        (503, {"Retry-After": "7"}, OutcomeUnknownError),
        (503, {}, OutcomeUnknownError),
        (500, {}, OutcomeUnknownError),
    ],
)
def test_status_counts_where_the_words_cannot_be_read(
    service, client, trigger, monkeypatch, status, headers, kind
):
    service.faults.add("reject", status=status, headers=headers)
    redact = type(client._redactor).text

    def fail_on_words(self, text, **options):
        if "fault" in text:
            raise MemoryError
        return redact(self, text, **options)

    monkeypatch.setattr(type(client._redactor), "text", fail_on_words)
    with pytest.raises(kind) as caught:
        trigger.send(client)
    assert (caught.value.status, caught.value.retry_after) == (status, 7 if headers else None)


def test_callback_that_fails_after_the_last_byte(service, client):
    trigger_flow(client, {}, "demo-flow")

    def progress(total):
        left = total

        def sent(size):
            nonlocal left
            left -= size
            if not left:
                raise ValueError("no display")

        return sent

    with pytest.raises(OutcomeUnknownError, match="ValueError: no display"):
        upload_files(client, "1001", [{"x": 1}], "demo-flow", progress=progress)


def test_callback_that_fails_before_the_last_byte(service, client):
    trigger_flow(client, {}, "demo-flow")

    def progress(total):
        def sent(size):
            raise ValueError("no display")

        return sent

    with pytest.raises(
        NotSentError, match="aborted before all of it was sent: ValueError: no display"
    ) as caught:
        upload_files(client, "1001", [{"x": "y" * 100_000}] * 3, "demo-flow", progress=progress)
    assert "too large" not in str(caught.value)
    assert service.uploads == []
