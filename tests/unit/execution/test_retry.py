"""When a request is sent again: how long a try waits, and what it leaves to Airflow."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.client.outcome import (
    Attempts,
    Busy,
    NotSent,
    Reason,
    Rejected,
    Started,
    Unidentified,
    Unknown,
)
from workflow_automation_provider.client.protocol import Operation, Run, trigger_request
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
)
from workflow_automation_provider.execution import retry
from workflow_automation_provider.execution.retry import FlowRetryPolicy, SendRetrier, error_of_task
from workflow_automation_provider.failures import (
    START_ADVICE,
    UPLOAD_ADVICE,
    PreviousTry,
    consequence_of,
    reason_of,
)

RetryDecision: Any = getattr(retry, "RetryDecision", None)
needs_policies = pytest.mark.skipif(
    RetryDecision is None, reason="Before Airflow 3.3 there are no retry policies"
)

LOG: Any = logging.getLogger("test_retries")


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


REQUEST = trigger_request("https://there/api", {})
BUSY = Busy(request=REQUEST, status=429)
NOT_SENT = NotSent(request=REQUEST, reason=Reason.STOPPED)
UNKNOWN = Unknown(request=REQUEST, status=502)
REJECTED = Rejected(request=REQUEST, status=400)
DONE = Started(request=REQUEST, run=Run("1", None))


def busy(retry_after):
    return replace(BUSY, retry_after=retry_after)


class Call:
    """Returns each outcome in turn, then that a run was started; knows how long it was between its calls."""

    def __init__(self, *outcomes):
        self._outcomes = list(outcomes)
        self._times = []

    def __call__(self):
        self._times.append(time.monotonic())
        return self._outcomes.pop(0) if self._outcomes else DONE

    @property
    def waits_in_seconds(self):
        return [later - earlier for earlier, later in pairwise(self._times)]

    @property
    def waits(self):
        return [pytest.approx(seconds) for seconds in self.waits_in_seconds]


def sent(call, seconds=60, *, log=LOG, is_ended=lambda: False, **options):
    return SendRetrier(seconds, log, is_ended).send(call, **options)


@pytest.mark.parametrize("options", [{}, {"retry_unknown": True}])
@pytest.mark.parametrize("outcome", [BUSY, NOT_SENT])
def test_busy_and_not_sent_are_sent_again(clock, outcome, options):
    call = Call(outcome)
    assert sent(call, **options) is DONE
    assert len(call.waits) == 1


def test_it_is_sent_again_for_hours(clock):
    assert sent(Call(*[BUSY] * 1100), seconds=7 * 86400) is DONE


@pytest.mark.parametrize("outcome", [UNKNOWN, REJECTED, Unidentified(request=REQUEST, status=200)])
def test_nothing_else_is_sent_again(clock, outcome):
    call = Call(outcome)
    assert sent(call) is outcome
    assert call.waits == []


def test_an_unknown_outcome_may_be_sent_again_too(clock):
    call = Call(UNKNOWN)
    assert sent(call, retry_unknown=True) is DONE
    assert len(call.waits) == 1


def test_waits_grow_from_one_second_to_thirty(clock, largest_jitter):
    call = Call(*[BUSY] * 8)
    assert sent(call, seconds=1000) is DONE
    assert call.waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_retry_after_is_waited_for_and_jitter_beside_it(clock, largest_jitter):
    call = Call(busy(5), busy(0))
    assert sent(call) is DONE
    assert call.waits == [5 + 1, 0 + 2]


@pytest.mark.parametrize("outcome", [NOT_SENT, UNKNOWN])
def test_retry_after_is_waited_for_whatever_the_outcome(clock, smallest_jitter, outcome):
    """Such as a 502 that came before all of the request was sent."""
    call = Call(replace(outcome, retry_after=5), outcome)
    assert sent(call, retry_unknown=True) is DONE
    assert call.waits == [5, 0]


@given(asked=st.floats(0, 50))
def test_no_wait_is_shorter_than_the_service_asked_for(asked):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "sleep", clock.sleep)
        patch.setattr(time, "monotonic", lambda: clock.now)
        sent(Call(busy(asked)))

    assert asked - 1e-6 <= clock.now - 1000 <= asked + 1 + 1e-6


@pytest.mark.parametrize(("seconds", "calls"), [(0, 1), (0.5, 2), (2.9, 3), (6.9, 4), (7.1, 5)])
def test_the_last_wait_ends_with_the_time(clock, largest_jitter, seconds, calls):
    """The waits would be 1, 2, 4 and 8 seconds."""
    call = Call(*[BUSY] * 10)
    outcome = sent(call, seconds=seconds)

    assert len(call.waits) == calls - 1
    assert sum(call.waits_in_seconds) == pytest.approx(seconds)
    took: Any = pytest.approx(sum(call.waits_in_seconds))
    assert outcome.attempts == (Attempts(calls, took, seconds, "send_retry_timeout") if calls > 1 else None)


def test_a_wait_that_the_service_asked_for_is_not_cut_short(clock, largest_jitter):
    call = Call(busy(30), busy(30))
    assert sent(call).attempts == Attempts(2, cast("Any", pytest.approx(31)), 60, "send_retry_timeout")
    assert call.waits == [31]


@pytest.mark.parametrize(("caps_last_wait", "waits"), [(True, [5]), (False, [])])
def test_a_wait_may_take_all_the_time_if_the_last_may_be_capped(
    clock, smallest_jitter, caps_last_wait, waits
):
    call = Call(busy(5))
    SendRetrier(5, LOG, caps_last_wait=caps_last_wait).send(call)
    assert call.waits == waits


@given(asked=st.floats(0, 20), seconds=st.floats(0, 60))
def test_the_time_is_used_up_unless_the_service_asks_for_more(asked, seconds):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "sleep", clock.sleep)
        patch.setattr(time, "monotonic", lambda: clock.now)
        assert isinstance(sent(Call(*[busy(asked)] * 10_000), seconds=seconds), Busy)

    assert seconds - max(asked, 0.01) - 1e-6 <= clock.now - 1000 <= seconds + 1e-6


def test_each_wait_is_announced(clock, largest_jitter, caplog):
    retries: list[int] = []
    of_upload = replace(NOT_SENT, request=replace(REQUEST, operation=Operation.UPLOAD))
    sent(
        Call(BUSY, of_upload),
        log=logging.getLogger("of the task"),
        on_retry=lambda: retries.append(len(caplog.records)),
    )

    assert retries == [1, 2]
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        (
            "of the task",
            "WARNING",
            f"{reason_of(outcome)} {consequence} Retrying in {seconds} s.",
        )
        for outcome, consequence, seconds in (
            (BUSY, consequence_of(Operation.TRIGGER_BY_KEY, Accepted.NO), "1.0"),
            (of_upload, consequence_of(Operation.UPLOAD, Accepted.NO), "2.0"),
        )
    ]


@pytest.mark.parametrize("after", [0, 0.05, 2.5])
def test_a_wait_ends_when_the_task_is_ended(clock, largest_jitter, after, caplog):
    call = Call(busy(40))
    outcome = sent(call, is_ended=lambda: clock.now >= 1000 + after)
    assert (outcome, outcome.attempts) == (busy(40), None)
    assert call.waits == []
    assert clock.now <= 1000 + after + 0.1
    assert len([record for record in caplog.records if record.msg]) == (2 if after else 1)


def test_an_outcome_that_is_not_sent_again_after_a_wait_does_not_count_the_attempts(clock):
    assert sent(Call(BUSY, REJECTED)).attempts is None


# How a task ends -----------------------------------------------------------------------------------------


def context(*, count=0, retry_delay=300.0, try_number=1, max_tries=3, **task):
    return {
        "ti": SimpleNamespace(try_number=try_number, max_tries=max_tries),
        "task": SimpleNamespace(retry_delay=timedelta(seconds=retry_delay), **task),
        "task_reschedule_count": count,
    }


FIRST_TRY = context()


def ended(error, advice=START_ADVICE, context=FIRST_TRY, **options):
    failed = error_of_task(error, context, advice, **options)
    assert failed.__traceback__ is None
    return failed


@pytest.mark.parametrize("advice", [START_ADVICE, UPLOAD_ADVICE])
@pytest.mark.parametrize(
    "error", [RejectedError("Rejected.", status=400), OutcomeUnknownError("Unknown.", next_step="Look.")]
)
def test_fails_without_a_retry_with_advice(advice, error):
    error.locate("my_connection", "my-flow")
    failed = ended(error, advice)

    assert isinstance(failed, AirflowFailException)
    assert isinstance(failed, type(error))
    assert (failed.status, failed.accepted, failed.args) == (error.status, error.accepted, error.args)
    assert (failed.conn_id, failed.flow_id) == ("my_connection", "my-flow")
    assert str(failed).splitlines() == [
        f"[{failed.code}] {error.message}",
        "Airflow will not retry this task.",
        *([error.next_step] if error.next_step else []),
        *advice[error.accepted].splitlines(),
        "Connection: my_connection",
        "Flow: my-flow",
    ]


def test_an_error_that_fails_without_a_retry_already_keeps_its_class():
    """As one of a start inside a task, where it ends an operator as well."""
    first = ended(RejectedError("Rejected."))
    assert type(ended(first)) is type(first)


def test_an_invalid_request_stays_a_value_error():
    assert isinstance(ended(InvalidRequestError("No.")), ValueError)


def test_the_cause_that_tells_something_new_is_kept():
    cause = KeyError("a user's own")
    error = InvalidRequestError("file_format raised KeyError.")
    error.__cause__ = cause
    assert ended(error).__cause__ is cause


@pytest.mark.parametrize(
    "error", [BusyError("busy"), NotSentError("not sent"), FileUnavailableError("no file")]
)
def test_what_a_retry_can_help_is_left_to_airflow(error):
    failed = ended(error)
    assert type(failed) is type(error)
    assert "Airflow retries this task in 300 s (try 2 of 4)." in str(failed).splitlines()


@pytest.mark.parametrize(
    "error", [BusyError("busy"), NotSentError("not sent"), FileUnavailableError("no file", consequence="-")]
)
def test_nothing_is_foretold_of_a_task_that_airflow_ended(error):
    failed = ended(error, is_ended=True)
    assert type(failed) is type(error)
    assert failed.next_step == ""


def test_an_unknown_outcome_is_left_to_airflow_where_the_user_says_so():
    error = OutcomeUnknownError("unknown")
    assert type(ended(error, also_retry=(OutcomeUnknownError,))) is OutcomeUnknownError


@pytest.mark.parametrize(
    ("context", "told"),
    [
        (context(try_number=4), "Clear the task later."),
        (context(try_number=1, max_tries=0), "Clear the task later."),
        (context(try_number=3), "Airflow retries this task in 300 s (try 4 of 4)."),
        (
            {**FIRST_TRY, "task": SimpleNamespace()},
            "Airflow retries this task after its retry_delay (try 2 of 4).",
        ),
        (
            context(retry_exponential_backoff=True),
            "Airflow retries this task after its retry_delay (try 2 of 4).",
        ),
        (
            context(retry_policy=object()),
            "The task's retry_policy decides whether Airflow retries this task (try 2 of 4).",
        ),
    ],
)
def test_whether_and_when_airflow_retries_is_told(context, told):
    assert str(ended(BusyError("busy", retry_after=7), context=context)).splitlines()[-1] == told


@needs_policies
def test_the_retry_that_the_policy_decides_on_is_told(cannot_reschedule):
    failed = ended(BusyError("busy", retry_after=7), context=context(retry_policy=FlowRetryPolicy()))
    assert str(failed).splitlines()[-1] == "Airflow retries this task in 7 s (try 2 of 4)."


@needs_policies
def test_a_policy_that_decides_by_the_number_of_the_try_is_given_it(cannot_reschedule):
    class Sooner(FlowRetryPolicy):
        def evaluate(self, exception, try_number, max_tries, context=None):
            return RetryDecision.retry(delay=timedelta(seconds=100 * try_number + max_tries))

    failed = ended(BusyError("busy"), context=context(retry_policy=Sooner(), try_number=2))
    assert str(failed).splitlines()[-1] == "Airflow retries this task in 203 s (try 3 of 4)."


@needs_policies
def test_that_a_policy_of_the_users_retries_nothing_is_told(cannot_reschedule):
    class Never(FlowRetryPolicy):
        def evaluate(self, exception, try_number, max_tries, context=None):
            return RetryDecision.fail()

    failed = ended(BusyError("busy"), context=context(retry_policy=Never()))
    assert "retry_policy" in failed.next_step


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"later": "In the evening."}, "In the evening."),
        ({"previous": PreviousTry(Accepted.YES, "try 1 started run 77.")}, "try 1 started run 77."),
        ({"run_id": "77"}, "77"),
    ],
)
def test_what_else_is_known_of_the_task_is_told(options, word):
    assert word in str(ended(BusyError("busy"), context=context(try_number=4), **options))


@needs_policies
@pytest.mark.parametrize("max_tries", [0, 3])
def test_a_reschedule_is_told(can_reschedule, max_tries):
    failed = ended(
        BusyError("busy", retry_after=7), context=context(retry_policy=FlowRetryPolicy(), max_tries=max_tries)
    )
    told = "Airflow reschedules this task in 7 s, without using a retry."
    assert str(failed).splitlines()[-1] == told


# When Airflow comes back ---------------------------------------------------------------------------------


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
    assert bool(decision.reason) is (decision.action.value != "default")
    return decision.action.value, None if delay is None else delay.total_seconds()


@needs_policies
@pytest.mark.parametrize("context", [None, context(), context(count=5)])
@pytest.mark.parametrize(
    "error",
    [OutcomeUnknownError("unknown"), FileUnavailableError("no file"), RejectedError("no"), KeyError()],
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
        (NotSentError("not sent", retry_after=7), 300),
    ],
)
def test_no_retry_is_spent_where_nothing_was_started(error, delay):
    assert decide(error, context()) == ("reschedule", delay)
    assert decide(error, context(count=4)) == ("reschedule", delay)
    uncounted = context()
    del uncounted["task_reschedule_count"]
    assert decide(error, uncounted) == ("reschedule", delay)


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
