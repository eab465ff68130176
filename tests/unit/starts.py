"""What the tests of starts share: an operator that sends once, what is searched for, and Airflow's timeouts of a task."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from said import MAYBE_STARTED
from workflow_automation_provider.operators.flows import TriggerFlowOperator

MAYBE = MAYBE_STARTED


def trigger(**arguments):
    return TriggerFlowOperator(
        **{"task_id": "trigger", "inputs": {"a": 1}, "send_retry_timeout": 0, **arguments}
    )


def requests(service):
    return len(service.journal.requests())


def mentions(text, *facts):
    """Return whether one line of a log or an error has all of these facts."""
    return any(all(str(fact) in line for fact in facts) for line in text.splitlines())


class TaskTimeout(BaseException):
    """As Airflow's: no ``except Exception`` is meant to catch it."""


class WithoutTextError(Exception):
    """An error whose text cannot be had."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@contextlib.contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Interrupt what is done within, as Airflow does at a task's ``execution_timeout``."""

    def interrupt(*_):
        raise TaskTimeout

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(TaskTimeout):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
