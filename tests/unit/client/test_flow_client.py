"""What is said of a failure below HTTP, and that a fault of our own loses no run."""

from __future__ import annotations

import re
import socket
import threading

import httpcore
import pytest

from workflow_automation_provider.client.protocol import Run
from workflow_automation_provider.exceptions import (
    NotSentError,
    OutcomeUnknownError,
    UnidentifiedError,
)

from .conftest import check, trigger_flow

HTTPCORE = [
    getattr(httpcore, name)
    for name in httpcore.__all__
    if name.endswith(("Error", "Timeout", "NotAvailable")) and name != "ConnectionNotAvailable"
]
TIMEOUTS = (httpcore.ConnectTimeout, httpcore.ReadTimeout, httpcore.WriteTimeout)


@pytest.mark.parametrize("kind", HTTPCORE)
@pytest.mark.parametrize(("text", "described"), [("", "the connection failed"), ("It broke.", "It broke")])
def test_no_class_name_stands_for_a_failed_connection(monkeypatch, client, attempt, kind, text, described):
    def fail(self, request):
        raise kind(text)

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", fail)
    words = " 20 s " if kind in TIMEOUTS else f": {described}."
    check(attempt.send(client), NotSentError, words)
    with pytest.raises(NotSentError, match=re.escape(words)):
        client.check()


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
        outcome = attempt.send(client)
    assert failed
    assert type(outcome) is (str if attempt.uploads else Run)


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
    outcome = trigger.send(client)
    check(outcome, UnidentifiedError, "MemoryError", status=201)
    assert len(service.runs) == 1


@pytest.mark.parametrize("handed_over", [True, False])
def test_callback_that_fails(service, client, handed_over):
    """After the last byte, the outcome is unknown."""
    trigger_flow(client, {}, "demo-flow")

    (request,) = client.upload_requests("1001", [{"x": "y" * 100_000}] * 3, "demo-flow")
    sizes = []

    def sent(size):
        sizes.append(size)
        if not handed_over or sum(sizes) == len(request.content):
            raise ValueError("no display")

    with pytest.raises(OutcomeUnknownError if handed_over else NotSentError) as caught:
        client.send(request, sent=sent)
    assert "ValueError: no display" in caught.value.message
    assert handed_over or service.uploads == []
