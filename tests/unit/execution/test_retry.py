"""When a request is sent again: how long a try waits, and what it leaves to Airflow."""

from __future__ import annotations

import logging
import random
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution import retry
from workflow_automation_provider.execution.retry import FlowRetryPolicy, SendRetrier

from ..starts import claims, trigger, waits

LOG: Any = logging.getLogger("test_retries")


# Waits within a try -------------------------------------------------------------------------------


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, patch):
        self.now = 1000.0
        patch.setattr(time, "sleep", self.sleep)
        patch.setattr(time, "monotonic", lambda: self.now)

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """Return the time; the jitter is the largest."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high - low)
    return Clock(monkeypatch)


BUSY = BusyError("Busy.", status=429)
NOT_SENT = NotSentError("Not sent.")
UNKNOWN = OutcomeUnknownError("No response.")
REJECTED = RejectedError("No.", status=400)
DONE = "done"


def busy(retry_after):
    return BusyError("Busy.", retry_after=retry_after)


class Call:
    """Raises each error in turn, then returns; knows how long it was between its calls."""

    def __init__(self, *errors):
        self._errors = list(errors)
        self._times = []

    def __call__(self):
        self._times.append(time.monotonic())
        if self._errors:
            raise self._errors.pop(0)
        return DONE

    @property
    def waits(self):
        return [pytest.approx(later - earlier) for earlier, later in pairwise(self._times)]


def sent(call, seconds=60, *, log=LOG, is_ended=lambda: False, **options):
    """Return what the last call returned or raised."""
    try:
        return SendRetrier(seconds, log, is_ended).send(call, **options)
    except WorkflowAutomationError as error:
        return error


@pytest.mark.parametrize(
    ("outcome", "retry_unknown", "is_sent_again"),
    [
        (BUSY, False, True),
        (NOT_SENT, False, True),
        (BUSY, True, True),
        (NOT_SENT, True, True),
        (UNKNOWN, True, True),
        (UNKNOWN, False, False),
        (REJECTED, True, False),
        (UnidentifiedError("No id."), True, False),
    ],
)
def test_what_is_sent_again(clock, outcome, retry_unknown, is_sent_again):
    call = Call(outcome)
    options = {"retry_unknown": True} if retry_unknown else {}
    assert sent(call, **options) is (DONE if is_sent_again else outcome)
    assert len(call.waits) == is_sent_again


@pytest.mark.parametrize(
    ("seconds", "errors", "waits"),
    [
        (1000, [BUSY] * 8, [1, 2, 4, 8, 16, 30, 30, 30]),
        # What was asked for, and the jitter beside it; also after a 502 that came before all was
        # sent.
        (60, [busy(5), busy(0)], [5 + 1, 0 + 2]),
        (60, [NotSentError("No.", retry_after=5), NOT_SENT], [5 + 1, 2]),
        # The last wait ends with the time.
        (0, [BUSY], []),
        (2.9, [BUSY] * 3, [1, 1.9]),
        (7.1, [BUSY] * 5, [1, 2, 4, 0.1]),
        # What was asked for does not count; but longer than ten minutes, it does, and is not cut
        # short.
        (60, [busy(600)] * 7, [601, 602, 604, 608, 616, 629]),
        (60, [busy(601)], []),
        (700, [busy(601)] * 2, [602]),
        (601, [busy(601)], [601]),
    ],
)
def test_waits(clock, seconds, errors, waits):
    call = Call(*errors)
    assert sent(call, seconds=seconds) is [*errors, DONE][len(waits)]
    assert call.waits == waits


def test_no_attempt_begins_after_the_longest_time(clock):
    call = Call(*[BUSY] * 9)
    assert sent(call, longest=3) is BUSY
    assert call.waits == [1, 2]


def test_what_an_attempt_takes_is_of_the_time(clock):
    call = Call(*[BUSY] * 9)

    def send():
        clock.sleep(4)
        return call()

    assert sent(send, seconds=10) is BUSY
    # The last wait ends with the time.
    assert call.waits == [1 + 4, 1 + 4]


def test_each_attempt_waits_for_its_turn(clock):
    """As the threads of a batch do, which together keep to a rate."""
    turns = []

    class Rated(SendRetrier):
        def await_turn(self):
            turns.append(clock.now)

    assert Rated(60, LOG).send(Call(BUSY, BUSY)) is DONE
    assert turns == [1000, 1001, 1003]


@given(asked=st.floats(0, 50))
def test_no_wait_is_shorter_than_the_service_asked_for(asked):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        sent(Call(busy(asked)))

    assert asked - 1e-6 <= clock.now - 1000 <= asked + 1 + 1e-6


@given(asked=st.floats(0, 20), seconds=st.floats(0, 60))
def test_the_time_is_used_up_besides_what_the_service_asks_for(asked, seconds):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        call = Call(*[busy(asked)] * 10_000)
        assert isinstance(sent(call, seconds=seconds), BusyError)

    counted = clock.now - 1000 - asked * len(call.waits)
    assert seconds - 0.01 - 1e-6 <= counted <= seconds + 1e-6


def test_each_wait_is_announced(clock, caplog):
    of_upload = NotSentError("Not sent.", consequence="No files.", quote="No")
    sent(Call(BUSY, of_upload), log=logging.getLogger("of the task"))

    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("of the task", "WARNING", f"{error.reason} {error.consequence} Retrying in {seconds} s.")
        for error, seconds in ((BUSY, "1.0"), (of_upload, "2.0"))
    ]


@pytest.mark.parametrize("after", [0, 0.05, 2.5])
def test_a_wait_ends_when_the_task_is_ended(clock, after, caplog):
    call = Call(error := busy(40))
    assert sent(call, is_ended=lambda: clock.now >= 1000 + after) is error
    assert call.waits == []
    assert clock.now <= 1000 + after + 0.1
    assert len([record for record in caplog.records if record.msg]) == (2 if after else 1)


# When Airflow comes back --------------------------------------------------------------------------


# Airflow 3.4 executes the same try again.
_DECISION = getattr(retry, "RetryDecision", None)
LATER = "reschedule" if hasattr(_DECISION, "reschedule") else "retry"


@pytest.mark.parametrize(
    ("error", "action", "delay"),
    [
        (busy(7), LATER, timedelta(seconds=7)),
        (busy(0), LATER, timedelta()),
        (BUSY, "default", None),
        (NotSentError("No.", retry_after=7), "default", None),
        (KeyError(), "default", None),
    ],
)
def test_a_retry_comes_when_the_service_asks(error, action, delay):
    decision = FlowRetryPolicy().evaluate(error, 1, 3)
    assert (decision.action.value, decision.retry_delay) == (action, delay)
    assert bool(decision.reason) is (action == LATER)


@pytest.mark.parametrize(
    ("reschedules", "action"),
    [(None, LATER), (retry.MAX_RESCHEDULES - 1, LATER), (retry.MAX_RESCHEDULES, "retry")],
)
def test_a_try_that_was_put_off_too_often_is_retried_when_the_service_asks(reschedules, action):
    context = {"task_reschedule_count": reschedules}
    decision = FlowRetryPolicy().evaluate(busy(7), 1, 3, context)
    assert (decision.action.value, decision.retry_delay) == (action, timedelta(seconds=7))


@pytest.mark.since_3_3
@pytest.mark.parametrize(
    ("reschedules", "is_executed_again"),
    [(None, True), (retry.MAX_RESCHEDULES - 1, True), (retry.MAX_RESCHEDULES, False)],
)
def test_how_often_the_same_try_is_executed_again(monkeypatch, reschedules, is_executed_again):
    """As Airflow 3.4 is asked to, on 3.3 as well."""

    def reschedule(delay, *, max_reschedules, reason):
        return delay.total_seconds(), max_reschedules, bool(reason)

    monkeypatch.setattr(_DECISION, "reschedule", staticmethod(reschedule), raising=False)
    context = {"task_reschedule_count": reschedules}
    decision: Any = FlowRetryPolicy().evaluate(busy(7), 1, 3, context)
    assert (decision == (7, retry.MAX_RESCHEDULES, True)) is is_executed_again


@pytest.mark.since_3_3
@pytest.mark.parametrize("make", [trigger, waits, claims])
def test_a_wait_that_the_service_asks_for(world, make):
    """It spends a retry on Airflow 3.3, and none from 3.4 on; there is one run."""
    task = world(make(retries=1, send_retry_timeout=0))
    task.faults.add("busy", retry_after="0", times=3)
    task.until_end()
    if LATER == "retry":
        assert (task.state, len(task.processes), len(task.flow.runs)) == ("failed", 2, 0)
        return
    assert task.state in ("success", "awaiting_input")
    assert [process.try_number for process in task.processes] == [1, 1, 1, 1]
    assert len(task.requests) == 4
    assert len(task.flow.runs) == 1
