"""
What the tests of starts share.

Operators that send once, and what is searched for.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from sentences import MAYBE_STARTED
from workflow_automation_provider.operators.flows import TriggerFlowOperator
from world_calls import TRIGGER

MAYBE = MAYBE_STARTED


def trigger(**arguments):
    """Make an operator that sends once; it looks for a claim for no time."""
    return TriggerFlowOperator(
        **{
            "task_id": "trigger",
            "inputs": {"a": 1},
            "retries": 2,
            "send_retry_timeout": 0,
            "claim_timeout": timedelta(microseconds=1),
            **arguments,
        }
    )


def claims(**arguments):
    return trigger(**{"on_unknown_start": "claim", **arguments})


def waits(**arguments):
    return trigger(**{"wait_for_completion": True, **arguments})


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


# Of a task whose tries a world executes.


def struck(world, operator, fault="drop_after", *scripts, **extra):
    """
    Make a task whose first try was struck by a fault.

    By default, one that leaves it in doubt.
    """
    task = world(operator, **extra)
    task.faults.add(fault)
    task.try_(*scripts)
    return task


def triggers(task):
    """Return how many requests to start a run were sent."""
    return task.requests.count(TRIGGER)


def entries(task, key):
    """Return the entries whose keys begin so, by the rest of the key."""
    found = {
        name.removeprefix(key): value
        for name, value in task.rows.entries.items()
        if name.startswith(key)
    }
    return {name: json.loads(value) for name, value in found.items()}


def ends_at(task):
    """Return until when a task says that it waits."""
    (until,) = re.findall(r"until (\S+) at the latest", task.last.log)
    return datetime.fromisoformat(until)


def later(task, **passed):
    """Let time pass for a task: all that it has recorded was earlier."""

    def earlier(text):
        def moved(time):
            return (datetime.fromisoformat(time[0]) - timedelta(**passed)).isoformat()

        return json.loads(re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)", moved, text))

    for key, text in task.rows.entries.items():
        task.rows.put(key, earlier(text))
    ti = task.rows.ti
    if task.state == "awaiting_input":
        task.rows.suspend(ti.next_method, ti.next_kwargs, ti.trigger_timeout - datetime.now(UTC))
