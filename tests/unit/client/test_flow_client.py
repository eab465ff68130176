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
)

from .conftest import check, trigger_flow


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpcore.ConnectTimeout(""), " 20 s "),
        (httpcore.ReadTimeout(""), " 20 s "),
        (httpcore.WriteTimeout(""), " 20 s "),
        (httpcore.ConnectError(""), ": the connection failed."),
        (httpcore.ProxyError("It broke."), ": It broke."),
    ],
)
def test_no_class_name_stands_for_a_failed_connection(monkeypatch, client, trigger, error, words):
    def fail(self, request):
        raise error

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", fail)
    check(trigger.send(client), NotSentError, words)
    with pytest.raises(NotSentError, match=re.escape(words)):
        client.check()


# Faults of our own --------------------------------------------------------------------------------------


def test_close_that_fails_does_not_lose_the_run(client, trigger, monkeypatch):
    close = socket.socket.close
    failed = []

    def fail_to_close(self):
        close(self)
        if threading.current_thread() is threading.main_thread():
            failed.append(1)
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "close", fail_to_close)
        assert type(trigger.send(client)) is Run
    assert failed


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
