"""When a task is tried again: how long a try waits, and what it leaves to Airflow."""

from __future__ import annotations

import logging
import random
import time
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.client.errors import (
    Accepted,
    BusyError,
    FileUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    ReplyUnusableError,
)
from workflow_automation_provider.operators import retries
from workflow_automation_provider.operators.retries import (
    START_ADVICE,
    UPLOAD_ADVICE,
    FlowRetryPolicy,
    call_patiently,
    failing_for_good,
)

RetryDecision = getattr(retries, "RetryDecision", None)
needs_policies = pytest.mark.skipif(
    RetryDecision is None, reason="Before Airflow 3.3 there are no retry policies"
)

LOG = logging.getLogger("test_retries")


# Waits within a try --------------------------------------------------------------------------------------


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def largest_jitter(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda _, high: high)


@pytest.fixture
def smallest_jitter(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, _: low)


class Call:
    """Raises each error in turn, then returns "done"; knows how long it was between its calls."""

    def __init__(self, *errors):
        self._errors = list(errors)
        self._times = []

    def __call__(self):
        self._times.append(time.monotonic())
        if self._errors:
            raise self._errors.pop(0)
        return "done"

    @property
    def waits(self):
        return [pytest.approx(later - earlier) for earlier, later in pairwise(self._times)]


def patiently(call, seconds=60, **options):
    return call_patiently(call, **{"seconds": seconds, "log": LOG, "is_ended": lambda: False, **options})


def test_what_the_call_returns_is_returned(clock):
    call = Call()
    assert patiently(call, seconds=0) == "done"
    assert call.waits == []


@pytest.mark.parametrize("error", [BusyError("busy"), NotSentError("not sent")])
def test_busy_and_not_sent_are_called_again(clock, error):
    call = Call(error)
    assert patiently(call) == "done"
    assert len(call.waits) == 1


@pytest.mark.parametrize(
    "error",
    [OutcomeUnknownError("unknown"), RefusedError("refused"), ReplyUnusableError("unusable"), KeyError()],
)
def test_nothing_else_is_called_again(clock, error):
    call = Call(error)
    with pytest.raises(type(error)):
        patiently(call)
    assert call.waits == []


def test_errors_that_the_caller_names_are_called_again_too(clock):
    call = Call(OutcomeUnknownError("?"))
    assert patiently(call, retry=(OutcomeUnknownError,)) == "done"
    assert len(call.waits) == 1


def test_waits_grow_from_one_second_to_thirty(clock, largest_jitter):
    call = Call(*[BusyError("busy")] * 8)
    assert patiently(call, seconds=1000) == "done"
    assert call.waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_waits_are_random(clock, smallest_jitter):
    call = Call(*[NotSentError("not sent")] * 3)
    assert patiently(call, seconds=1000) == "done"
    assert call.waits == [0, 0, 0]


def test_retry_after_is_waited_for_and_jitter_beside_it(clock, largest_jitter):
    call = Call(BusyError("busy", retry_after=5), BusyError("busy", retry_after=0))
    assert patiently(call) == "done"
    assert call.waits == [5 + 1, 0 + 2]


@given(asked=st.floats(0, 50))
def test_no_wait_is_shorter_than_the_service_asked_for(asked):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "sleep", clock.sleep)
        patch.setattr(time, "monotonic", lambda: clock.now)
        patiently(Call(BusyError("busy", retry_after=asked)))

    assert asked - 1e-6 <= clock.now - 1000 <= asked + 1 + 1e-6


@pytest.mark.parametrize(("seconds", "calls"), [(0, 1), (0.5, 1), (6.9, 3), (7.1, 4)])
def test_no_wait_ends_after_the_time(clock, largest_jitter, seconds, calls):
    """The waits would be 1, 2 and 4 seconds."""
    call = Call(*[BusyError(str(n)) for n in range(10)])

    with pytest.raises(BusyError, match=f"^{calls - 1}$"):
        patiently(call, seconds=seconds)
    assert len(call.waits) == calls - 1


def test_each_wait_is_announced(clock, largest_jitter, caplog):
    patiently(Call(BusyError("It is busy."), NotSentError("No way.")), log=logging.getLogger("of the task"))

    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("of the task", "WARNING", "It is busy. Trying again in 1.0 s."),
        ("of the task", "WARNING", "No way. Trying again in 2.0 s."),
    ]


@pytest.mark.parametrize("after", [0, 0.05, 2.5])
def test_a_wait_ends_when_the_task_is_ended(clock, largest_jitter, after):
    """The last call is there for what it says: the client refuses to send."""
    call = Call(BusyError("busy", retry_after=40), NotSentError("The task was ended."), KeyError())
    with pytest.raises((BusyError, NotSentError)):
        patiently(call, is_ended=lambda: clock.now >= 1000 + after)
    assert clock.now <= 1000 + after + 0.1


# What no retry can help ----------------------------------------------------------------------------------


@pytest.mark.parametrize("advice", [START_ADVICE, UPLOAD_ADVICE])
@pytest.mark.parametrize("error", [RefusedError("Refused."), OutcomeUnknownError("Unknown.")])
def test_fails_for_good_with_advice(advice, error):
    with pytest.raises(AirflowFailException) as raised, failing_for_good(advice):
        raise error

    assert str(raised.value) == f"{error} {advice[error.accepted]}"
    assert raised.value.__cause__ is error


def test_a_run_without_its_id_fails_for_good():
    with (
        pytest.raises(AirflowFailException, match=r"clear it to start another run\.$"),
        failing_for_good(START_ADVICE),
    ):
        raise ReplyUnusableError("A run was started.")


@pytest.mark.parametrize(
    "error", [BusyError("busy"), NotSentError("not sent"), FileUnavailableError("no file")]
)
def test_what_a_retry_can_help_is_left_to_airflow(error):
    with pytest.raises(type(error)) as raised, failing_for_good(START_ADVICE):
        raise error
    assert raised.value is error


def test_an_unknown_outcome_is_left_to_airflow_where_the_user_says_so():
    with pytest.raises(OutcomeUnknownError), failing_for_good(START_ADVICE, but_for=(OutcomeUnknownError,)):
        raise OutcomeUnknownError("unknown")


def test_other_exceptions_are_not_touched():
    with pytest.raises(KeyError), failing_for_good(START_ADVICE):
        raise KeyError


def test_there_is_advice_for_all_that_the_service_may_have_done():
    assert set(START_ADVICE) == set(Accepted)
    # An upload that the service took is not an error, whatever the reply.
    assert set(UPLOAD_ADVICE) == set(Accepted) - {Accepted.YES}


# When Airflow comes back ---------------------------------------------------------------------------------


def context(*, count=0, retry_delay=300.0):
    task = SimpleNamespace(retry_delay=timedelta(seconds=retry_delay))
    return {"task": task, "task_reschedule_count": count}


def reschedule(delay=None, *, max_reschedules=None, reschedule_timeout=None, reason=None):
    """Stand in for Airflow 3.4's, in Airflow 3.3."""
    assert max_reschedules or reschedule_timeout
    return SimpleNamespace(
        action=SimpleNamespace(value="reschedule"),
        retry_delay=delay,
        max_reschedules=max_reschedules,
        reason=reason,
    )


@pytest.fixture
def can_reschedule(monkeypatch):
    if not hasattr(RetryDecision, "reschedule"):
        monkeypatch.setattr(RetryDecision, "reschedule", reschedule, raising=False)


@pytest.fixture
def cannot_reschedule(monkeypatch):
    monkeypatch.delattr(RetryDecision, "reschedule", raising=False)


def decide(error, context):
    """Return the action, and the delay in seconds."""
    decision = FlowRetryPolicy().evaluate(error, 1, 3, context)
    delay = decision.retry_delay
    return decision.action.value, None if delay is None else delay.total_seconds()


@needs_policies
@pytest.mark.parametrize("context", [None, context(), context(count=5)])
@pytest.mark.parametrize(
    "error", [OutcomeUnknownError("unknown"), FileUnavailableError("no file"), RefusedError("no"), KeyError()]
)
def test_all_else_takes_airflows_course(error, context):
    assert decide(error, context) == ("default", None)


@needs_policies
@pytest.mark.usefixtures("cannot_reschedule")
def test_a_retry_comes_when_the_service_said():
    assert decide(BusyError("busy", retry_after=7), context()) == ("retry", 7)
    assert decide(BusyError("busy", retry_after=0), context()) == ("retry", 0)
    assert decide(BusyError("busy"), context()) == ("default", None)
    assert decide(NotSentError("not sent"), context()) == ("default", None)


@needs_policies
@pytest.mark.usefixtures("can_reschedule")
@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (BusyError("busy", retry_after=7), 7),
        (BusyError("busy", retry_after=0), 0),
        (BusyError("busy", retry_after=600), 600),
        (BusyError("busy"), 300),
        (NotSentError("not sent"), 300),
    ],
)
def test_no_retry_is_spent_where_nothing_was_started(error, delay):
    assert decide(error, context()) == ("reschedule", delay)
    assert decide(error, context(count=4)) == ("reschedule", delay)


@needs_policies
@pytest.mark.usefixtures("can_reschedule")
def test_airflow_keeps_to_the_bound_as_well():
    decision = FlowRetryPolicy().evaluate(NotSentError("not sent"), 1, 3, context())

    assert decision.max_reschedules == 5


@needs_policies
@pytest.mark.usefixtures("can_reschedule")
@pytest.mark.parametrize("context", [None, context(count=5), context(count=6)])
def test_past_the_bound_a_retry_is_spent(context):
    assert decide(BusyError("busy", retry_after=7), context) == ("retry", 7)
    assert decide(BusyError("busy"), context) == ("default", None)
    assert decide(NotSentError("not sent"), context) == ("default", None)


@needs_policies
@pytest.mark.usefixtures("can_reschedule")
def test_a_long_wait_spends_a_retry():
    assert decide(BusyError("busy", retry_after=601), context()) == ("retry", 601)
    assert decide(BusyError("busy"), context(retry_delay=601)) == ("default", None)
    assert decide(NotSentError("not sent"), context(retry_delay=601)) == ("default", None)
    assert decide(NotSentError("not sent"), context(retry_delay=600)) == ("reschedule", 600)


@needs_policies
@pytest.mark.usefixtures("can_reschedule")
def test_a_context_without_a_count_is_that_of_a_first_reschedule():
    assert decide(NotSentError("not sent"), {"task": context()["task"]}) == ("reschedule", 300)


@needs_policies
def test_the_reason_is_told():
    reason = FlowRetryPolicy().evaluate(BusyError("busy", retry_after=6.6), 1, 3, context()).reason

    assert reason == "The service asked to wait 7 s."


@needs_policies
@pytest.mark.usefixtures("can_reschedule")
@pytest.mark.parametrize("error", [BusyError("busy"), NotSentError("not sent")])
def test_the_reason_is_told_where_the_service_asked_for_no_wait(error):
    reason = FlowRetryPolicy().evaluate(error, 1, 3, context()).reason

    assert reason == "The service is busy or cannot be reached."
