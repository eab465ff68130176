"""A start within a limited time: what is logged at its end, and what after it. ``FlowNotifier``'s tests have the rest."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from workflow_automation_provider.exceptions import Accepted, RejectedError
from workflow_automation_provider.execution.timed_start import TimedStart, log_failure
from workflow_automation_provider.failures import run_of
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

from ..starts import MAYBE, requests


class Log:
    """A logger that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def write(self, text, *values):
        self.lines.append(text % values)

    info = warning = error = write


@pytest.fixture
def start(service):
    """Start a run in 0.5 seconds; return the lines that were logged then, and once the thread had ended."""

    def run():
        log: Any = Log()
        TimedStart(WorkflowAutomationHook(), 0.5, log).run({}, None)
        # Before the request is sent, each start is announced.
        at_the_end = [line for line in log.lines if not line.startswith(("Triggering ", "If no later line"))]
        number = len(log.lines)
        for thread in threading.enumerate():
            if thread.name == "FlowNotifier":
                thread.join(10)
        return at_the_end, log.lines[number:]

    return run


def test_in_time(service, start):
    assert start() == ([f"Started run 1001: {service.url}/runs/1001"], [])


def test_a_late_run_is_logged(service, start):
    service.faults.add("delay", seconds=2)
    (line,), late = start()
    assert MAYBE in line
    assert late == [f"Started run 1001: {service.url}/runs/1001"]


def test_a_late_rejection_is_logged(service, start, monkeypatch):
    """It settles what was unknown."""
    service.faults.add("delay", seconds=1.5)
    real = WorkflowAutomationHook.send_trigger

    def without_key(self, request, **options):
        outcome = real(self, request, **options)
        raise RejectedError(f"Not {run_of(outcome).run_id}", consequence="No run was started.")

    monkeypatch.setattr(WorkflowAutomationHook, "send_trigger", without_key)
    (line,), (late,) = start()
    assert MAYBE in line
    assert late.startswith("FlowNotifier: [rejected] Not 1001\nNo run was started.")


def test_what_is_never_sent_is_logged_once(service, start, monkeypatch):
    real = WorkflowAutomationHook.send_trigger

    def slow(self, *arguments, **options):
        time.sleep(2)
        return real(self, *arguments, **options)

    monkeypatch.setattr(WorkflowAutomationHook, "send_trigger", slow)
    (line,), late = start()
    assert "was not sent within 0.5 s (timeout).\nNo run was started." in line
    assert late == []
    assert requests(service) == 0


@pytest.mark.parametrize("kind", [PermissionError, AirflowNotFoundException, RuntimeError, RejectedError])
@pytest.mark.parametrize("is_raised", [True, False])
def test_an_error_that_has_no_text_is_logged(kind, is_raised):
    """As one whose message is made when it is asked for, of what is gone by then."""

    class WithoutTextError(kind):  # type: ignore[misc, valid-type]
        def __str__(self):
            raise RuntimeError("no text")

    error: Exception = WithoutTextError("never seen")
    if is_raised:
        try:
            raise error
        except kind as raised:
            error = raised
    log: Any = Log()
    log_failure(log, error, Accepted.MAYBE)
    (line,) = log.lines
    assert line.startswith("FlowNotifier: WithoutTextError")
    assert MAYBE in line
    assert "never seen" not in line
