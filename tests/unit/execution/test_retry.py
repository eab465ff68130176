"""When a request is sent again: how long a try waits, and what it leaves to Airflow."""

from __future__ import annotations

import logging
import random
import time
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
)
from workflow_automation_provider.execution import retry
from workflow_automation_provider.execution.retry import (
    START_ADVICE,
    UPLOAD_ADVICE,
    FlowRetryPolicy,
    Patience,
    run_advice,
    start_advice,
    task_error,
)

RetryDecision: Any = getattr(retry, "RetryDecision", None)
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
    def waits_in_seconds(self):
        return [later - earlier for earlier, later in pairwise(self._times)]

    @property
    def waits(self):
        return [pytest.approx(seconds) for seconds in self.waits_in_seconds]


def patiently(call, seconds=60, *, log=LOG, is_ended=lambda: False, **options):
    return Patience(seconds, log, is_ended).call(call, **options)


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
    [
        OutcomeUnknownError("unknown"),
        RejectedError("rejected"),
        ResponseUnusableError("unusable"),
        KeyError(),
    ],
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


@pytest.mark.parametrize("kind", [NotSentError, OutcomeUnknownError])
def test_retry_after_is_waited_for_whatever_the_error(clock, smallest_jitter, kind):
    """Such as a 502 that came before all of the request was sent."""
    call = Call(kind("?", retry_after=5), kind("?"))
    assert patiently(call, retry=(OutcomeUnknownError,)) == "done"
    assert call.waits == [5, 0]


@given(asked=st.floats(0, 50))
def test_no_wait_is_shorter_than_the_service_asked_for(asked):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "sleep", clock.sleep)
        patch.setattr(time, "monotonic", lambda: clock.now)
        patiently(Call(BusyError("busy", retry_after=asked)))

    assert asked - 1e-6 <= clock.now - 1000 <= asked + 1 + 1e-6


@pytest.mark.parametrize(("seconds", "calls"), [(0, 1), (0.5, 2), (2.9, 3), (6.9, 4), (7.1, 5)])
def test_the_last_wait_ends_with_the_time(clock, largest_jitter, seconds, calls):
    """The waits would be 1, 2, 4 and 8 seconds."""
    call = Call(*[BusyError(str(n)) for n in range(10)])

    with pytest.raises(BusyError, match=f"^{calls - 1}") as raised:
        patiently(call, seconds=seconds)
    assert len(call.waits) == calls - 1
    assert sum(call.waits_in_seconds) == pytest.approx(seconds)
    told = f"Tried {calls} times in {sum(call.waits_in_seconds):.0f} s (send_retry_timeout: {seconds:g} s)."
    assert str(raised.value) == (f"{calls - 1}\n{told}" if calls > 1 else "0")


def test_a_wait_that_the_service_asked_for_is_not_cut_short(clock, largest_jitter):
    call = Call(BusyError("busy", retry_after=30), BusyError("busy", retry_after=30))
    with pytest.raises(BusyError) as raised:
        patiently(call)
    assert call.waits == [31]
    assert str(raised.value) == (
        "busy\nTried 2 times in 31 s (send_retry_timeout: 60 s). The service asks for a longer wait."
    )


@given(asked=st.floats(0, 20), seconds=st.floats(0, 60))
def test_the_time_is_used_up_unless_the_service_asks_for_more(asked, seconds):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "sleep", clock.sleep)
        patch.setattr(time, "monotonic", lambda: clock.now)
        with pytest.raises(BusyError):
            patiently(Call(*(BusyError("busy", retry_after=asked) for _ in range(10_000))), seconds=seconds)

    assert seconds - max(asked, 0.01) - 1e-6 <= clock.now - 1000 <= seconds + 1e-6


def test_each_wait_is_announced(clock, largest_jitter, caplog):
    errors = (
        BusyError("It is busy.", consequence="No run was started.", next_step="Wait."),
        NotSentError("No way."),
    )
    patiently(Call(*errors), log=logging.getLogger("of the task"))

    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("of the task", "WARNING", "It is busy. No run was started. Retrying in 1.0 s."),
        ("of the task", "WARNING", "No way. Retrying in 2.0 s."),
    ]


@pytest.mark.parametrize("after", [0, 0.05, 2.5])
def test_a_wait_ends_when_the_task_is_ended(clock, largest_jitter, after):
    error = BusyError("busy", retry_after=40)
    call = Call(error, KeyError())
    with pytest.raises(BusyError) as caught:
        patiently(call, is_ended=lambda: clock.now >= 1000 + after)
    assert caught.value is error
    assert str(error) == "busy"
    assert call.waits == []
    assert clock.now <= 1000 + after + 0.1


def test_no_wait_begins_once_the_task_is_ended(clock, caplog):
    with pytest.raises(BusyError):
        patiently(Call(BusyError("busy"), KeyError()), is_ended=lambda: True)
    assert caplog.records == []


def test_the_end_of_a_wait_is_announced_where_the_task_was_ended(clock, largest_jitter, caplog):
    with pytest.raises(BusyError):
        patiently(Call(BusyError("busy"), KeyError()), is_ended=lambda: clock.now > 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "busy Retrying in 1.0 s.",
        "Airflow ended the task while it was waiting: nothing more is sent.",
    ]


def test_an_error_that_is_not_sent_again_after_a_wait_does_not_count_the_attempts(clock):
    call = Call(BusyError("busy"), RejectedError("rejected"))
    with pytest.raises(RejectedError) as caught:
        patiently(call)
    assert str(caught.value) == "rejected"


def test_attempts_are_counted_for_errors_that_the_caller_names(clock, largest_jitter):
    call = Call(*[OutcomeUnknownError("?")] * 9)
    with pytest.raises(
        OutcomeUnknownError, match=r"^\?\nTried 3 times in 2 s \(send_retry_timeout: 2 s\)\.$"
    ):
        patiently(call, seconds=2, retry=(OutcomeUnknownError,))


@pytest.mark.parametrize("accepted", [Accepted.MAYBE, Accepted.YES])
def test_the_advice_says_how_a_run_is_entered(accepted):
    lines = start_advice({"task_state_store": cast("Any", object())}, "ada")[accepted].splitlines()
    assert (
        'To enter it: the task instance\'s tab Storage, key workflow_automation_run/ada, value "RUN_ID" with the quotes.'
        in lines
    )
    # Airflow's UI cuts longer ones on a screen of 1,440 pixels.
    assert (
        max(map(len, start_advice({"task_state_store": cast("Any", object())})[accepted].splitlines())) <= 110
    )


def test_the_advice_has_the_run_id_as_json():
    lines = run_advice({"task_state_store": cast("Any", object())}, 'a"b').splitlines()
    assert lines[1].endswith(r'value "a\"b" with the quotes.')


# How a task ends -----------------------------------------------------------------------------------------


def context(*, count=0, retry_delay=300.0, try_number=1, max_tries=3, **task):
    return {
        "ti": SimpleNamespace(try_number=try_number, max_tries=max_tries),
        "task": SimpleNamespace(retry_delay=timedelta(seconds=retry_delay), **task),
        "task_reschedule_count": count,
    }


FIRST_TRY = context()


def ended(error, advice=START_ADVICE, context=FIRST_TRY, **options):
    failed = task_error(error, context, advice, **options)
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
        error.message,
        "Airflow will not retry this task.",
        *([error.next_step] if error.next_step else []),
        *advice[error.accepted].splitlines(),
        "Connection: my_connection",
        "Flow: my-flow",
    ]


def test_what_is_shown_of_its_class_is_that_of_the_error():
    kind = type(ended(RejectedError("Rejected.")))
    assert (kind.__name__, kind.__module__) == ("RejectedError", "workflow_automation_provider.exceptions")
    assert kind.__doc__ == RejectedError.__doc__


def test_an_error_that_fails_without_a_retry_already_keeps_its_class():
    """As one of a start inside a task, where it ends an operator as well."""
    first = ended(RejectedError("Rejected."))
    assert type(ended(first)) is type(first)


def test_an_invalid_request_stays_a_value_error():
    assert isinstance(ended(InvalidRequestError("No.")), ValueError)


def test_a_run_without_its_id_fails_without_a_retry():
    failed = ended(ResponseUnusableError("A run was started."))
    assert isinstance(failed, AirflowFailException)
    assert str(failed).endswith("clear the task to start another run.")


def test_the_cause_that_tells_something_new_is_kept():
    cause = KeyError("a user's own")
    error = InvalidRequestError("file_format raised KeyError.")
    error.__cause__ = cause
    assert ended(error).__cause__ is cause


@pytest.mark.parametrize(
    "error", [BusyError("busy"), NotSentError("not sent"), FileUnavailableError("no file")]
)
def test_what_a_retry_can_help_is_left_to_airflow(error):
    assert ended(error) is error
    assert "Airflow retries this task in 300 s (try 2 of 4)." in str(error).splitlines()


@needs_policies
def test_a_missing_file_takes_airflows_course_under_the_policy_as_well(can_reschedule):
    failed = ended(
        FileUnavailableError("No file.", retry_after=7),
        UPLOAD_ADVICE,
        context(retry_policy=FlowRetryPolicy()),
    )
    assert str(failed).splitlines() == [
        "No file.",
        "Nothing was sent.",
        "Airflow retries this task in 300 s (try 2 of 4).",
    ]


@pytest.mark.parametrize(
    "error", [BusyError("busy"), NotSentError("not sent"), FileUnavailableError("no file", consequence="-")]
)
def test_nothing_is_foretold_of_a_task_that_airflow_ended(error):
    assert ended(error, is_ended=True) is error
    assert error.next_step == ""


def test_an_unknown_outcome_is_left_to_airflow_where_the_user_says_so():
    error = OutcomeUnknownError("unknown")
    assert ended(error, but_for=(OutcomeUnknownError,)) is error


@pytest.mark.parametrize(
    ("context", "told"),
    [
        (context(try_number=4), "Clear the task later."),
        (context(try_number=1, max_tries=0), "Clear the task later."),
        (context(try_number=3), "Airflow retries this task in 300 s (try 4 of 4)."),
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


def test_a_file_that_is_missing_at_the_last_try_is_what_to_wait_for():
    failed = ended(FileUnavailableError("No file."), context=context(try_number=4))
    assert str(failed).splitlines() == [
        "No file.",
        "Nothing was sent.",
        "Airflow has no retries left for this task.",
        "Clear the task once the file is available.",
    ]


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
@pytest.mark.parametrize("max_tries", [0, 3])
def test_a_reschedule_is_told(can_reschedule, max_tries):
    failed = ended(
        BusyError("busy", retry_after=7), context=context(retry_policy=FlowRetryPolicy(), max_tries=max_tries)
    )
    told = "Airflow reschedules this task in 7 s, without using a retry."
    assert str(failed).splitlines()[-1] == told


def test_there_is_advice_for_all_that_the_service_may_have_done():
    assert set(START_ADVICE) == set(Accepted)
    # An upload that the service took is not an error, whatever the response.
    assert set(UPLOAD_ADVICE) == set(Accepted) - {Accepted.YES}


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
@pytest.mark.usefixtures("cannot_reschedule")
def test_only_a_busy_service_sets_when_the_retry_comes():
    assert decide(NotSentError("not sent", retry_after=7), context()) == ("default", None)


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


@needs_policies
@pytest.mark.usefixtures("can_reschedule")
def test_airflow_keeps_to_the_bound_as_well():
    decision = FlowRetryPolicy().evaluate(NotSentError("not sent"), 1, 3, context())

    assert decision.max_reschedules == 5  # type: ignore[attr-defined]  # of Airflow 3.4


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
