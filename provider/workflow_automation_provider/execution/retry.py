"""When a request is sent again: within a try for a short while, then by Airflow's retry, and never blindly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    NotSentError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk import RetryDecision, RetryPolicy
    from airflow.sdk.types import Logger

    RetryPolicyBase = RetryPolicy
else:
    try:
        from airflow.sdk import RetryDecision
        from airflow.sdk import RetryPolicy as RetryPolicyBase
    except ImportError:  # before Airflow 3.3, which knows no retry policies
        RetryPolicyBase = object

__all__ = ["START_ADVICE", "UPLOAD_ADVICE", "FlowRetryPolicy", "Patience", "task_error"]

_Result = TypeVar("_Result")

# The wait between two attempts where the service names none, in seconds: grows from the first to the second.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0

# How soon a wait ends after the task was ended, in seconds.
_NAP = 0.1

# How often a try comes back without spending a retry, and the longest wait for which it does: no task is held for
# ever. Rescheduling takes at most 50 minutes of each try; after that, and for longer waits, a retry is spent.
_MOST_RESCHEDULES = 5
_LONGEST_RESCHEDULE = timedelta(minutes=10)


class FlowRetryPolicy(RetryPolicyBase):
    """
    Lets Airflow come back when the service said, rather than after ``retry_delay`` (Airflow 3.3+).

    Where nothing was started and Airflow can reschedule a failed task (3.4+), no retry is spent on it at first.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> RetryDecision:
        """
        Decide when the task comes back, and whether that takes a retry.

        :param exception: what ended this try
        :param context: the task's context; without it, a retry is spent
        :return: where the service is busy or could not be reached, a bounded number of reschedules; then a retry
            after the service's ``Retry-After``; Airflow's usual course for all else
        """
        if not isinstance(exception, BusyError | NotSentError):
            return RetryDecision.default()
        asked = exception.retry_after if isinstance(exception, BusyError) else None
        wait = None if asked is None else timedelta(seconds=asked)
        reason = (
            "The service is busy or cannot be reached."
            if asked is None
            else f"The service asked to wait {asked:.0f} s."
        )
        if rescheduled := _reschedule(wait, reason, context):
            return rescheduled
        return RetryDecision.default() if wait is None else RetryDecision.retry(delay=wait, reason=reason)


def _reschedule(wait: timedelta | None, reason: str, context: Any) -> RetryDecision | None:
    """Return the decision to come back without spending a retry, None where that is not possible or not bounded."""
    reschedule = getattr(RetryDecision, "reschedule", None)  # Airflow 3.4+
    if reschedule is None or context is None:
        return None
    delay = context["task"].retry_delay if wait is None else wait
    # Airflow keeps to the bound as well, but the retry that it then makes knows no Retry-After.
    if delay > _LONGEST_RESCHEDULE or context.get("task_reschedule_count", 0) >= _MOST_RESCHEDULES:
        return None
    decision: RetryDecision = reschedule(delay, max_reschedules=_MOST_RESCHEDULES, reason=reason)
    return decision


class Patience:
    """
    How long one try goes on while the service is busy or cannot be reached.

    :param seconds: time to go on for, waits included; 0 sends once
    :param log: logger that each wait is announced in
    :param is_ended: tells whether Airflow ended the task: a wait ends then, and nothing is sent any more
    """

    def __init__(self, seconds: float, log: Logger, is_ended: Callable[[], bool] = lambda: False) -> None:
        self.seconds = seconds
        self.log = log
        self.is_ended = is_ended

    def call(
        self, send: Callable[[], _Result], *, retry: tuple[type[WorkflowAutomationError], ...] = ()
    ) -> _Result:
        """
        Send, again and again while the service is busy or cannot be reached, as long as there is time.

        :param send: sends one request
        :param retry: errors to send again after, besides busy and not sent
        :return: what ``send`` returns
        :raises WorkflowAutomationError: the last error, where the next wait would end after the time; any error
            but busy and not sent, at once
        """
        import tenacity

        retryable: tuple[type[WorkflowAutomationError], ...] = (BusyError, NotSentError, *retry)
        last: WorkflowAutomationError | None = None
        growing = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT)
        began = time.monotonic()
        attempts = 0

        def attempt() -> _Result:
            nonlocal attempts
            attempts += 1
            return send()

        def error_of(state: tenacity.RetryCallState) -> WorkflowAutomationError | None:
            error = state.outcome.exception() if state.outcome else None
            return error if isinstance(error, WorkflowAutomationError) else None

        def wait(state: tenacity.RetryCallState) -> float:
            error = error_of(state)
            # The jitter keeps mapped tasks from coming back all at once, and "Retry-After: 0" from a tight loop.
            return ((error and error.retry_after) or 0.0) + growing(state)

        def announce(state: tenacity.RetryCallState) -> None:
            nonlocal last
            last = error_of(state)
            if last:
                text = " ".join(filter(None, (last.message, last.consequence)))
                self.log.warning("%s Retrying in %.1f s.", text, state.upcoming_sleep)

        def sleep(duration: float) -> None:
            self._sleep(duration)
            if self.is_ended() and last:
                self.log.warning("Airflow ended the task while it waited: nothing more is sent.")
                raise last

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, retryable) and not self.is_ended()
            ),
            wait=wait,
            stop=tenacity.stop_before_delay(self.seconds),
            sleep=sleep,
            before_sleep=announce,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except retryable as error:
            # Not tenacity's count, which has the next attempt before its wait is over.
            if attempts > 1:
                waited = time.monotonic() - began
                error.message += (
                    f"\nSent {attempts} times in {waited:.0f} s (send_retry_timeout: {self.seconds:g} s)."
                )
            raise

    def _sleep(self, seconds: float) -> None:
        # In short naps: what a signal handler sets cannot wake a longer one, for a threading.Event may deadlock there.
        deadline = time.monotonic() + seconds
        while not self.is_ended() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _NAP))


START_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task.",
    Accepted.MAYBE: (
        "If there is no run, clear the task to start one.\n"
        "If there is one, mark the task as success: downstream tasks then get no run_id."
    ),
    Accepted.YES: (
        "Mark the task as success: downstream tasks then get no run_id.\n"
        "Or clear the task to start another run."
    ),
}
"""What to tell the person on call about a start that Airflow does not retry, by what the service did, line by line."""

UPLOAD_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task to upload all files.",
    Accepted.MAYBE: (
        "If the files are there, mark the task as success.\nIf not, clear the task to upload all files again."
    ),
}
"""The same for an upload."""


def task_error(
    error: WorkflowAutomationError,
    context: Context,
    advice: Mapping[Accepted, str],
    *,
    but_for: tuple[type[WorkflowAutomationError], ...] = (),
    is_ended: bool = False,
) -> WorkflowAutomationError:
    """
    Return the error to end the task with, which says whether Airflow retries it and what to do.

    :param error: what went wrong
    :param advice: what to tell the person on call, by what the service did
    :param but_for: errors to leave to Airflow's retry besides busy, not sent and a missing file
    :param is_ended: whether Airflow ended the task, and so knows what becomes of it
    :return: the same error where a retry may help; otherwise one of its class that is an ``AirflowFailException``
        as well. Without the frames that lead to it, which tell a DAG author nothing
    """
    retryable: tuple[type[WorkflowAutomationError], ...] = (
        BusyError,
        NotSentError,
        FileUnavailableError,
        *but_for,
    )
    if isinstance(error, retryable):
        outlook, then = "" if is_ended else _outlook(context, error), ""
        failed = error
    else:
        outlook, then = "Airflow will not retry this task.", advice[error.accepted]
        kind = _without_retry(type(error))
        failed = kind.__new__(kind, *error.args)
        failed.__dict__.update(error.__dict__)
        failed.__cause__ = error.__cause__
    failed.next_step = "\n".join(filter(None, (outlook, failed.next_step, then)))
    return failed.with_traceback(None)


def _without_retry(kind: type[WorkflowAutomationError]) -> type[WorkflowAutomationError]:
    """Return a class of the same name that Airflow does not retry a task after."""
    if issubclass(kind, AirflowFailException):
        return kind
    return type(
        kind.__name__, (kind, AirflowFailException), {"__doc__": kind.__doc__, "__module__": kind.__module__}
    )


def _outlook(context: Context, error: WorkflowAutomationError) -> str:
    """Say whether and when Airflow retries the task."""
    ti, task = context["ti"], context["task"]
    policy = getattr(task, "retry_policy", None)
    delay: timedelta | None = None
    if isinstance(policy, FlowRetryPolicy):
        decision = policy.evaluate(error, ti.try_number, ti.max_tries, context)
        delay = decision.retry_delay
        if decision.action.value == "reschedule":
            return f"Airflow reschedules this task{_in(delay)}, without using a retry."
    if ti.try_number > ti.max_tries:
        return "Airflow has no retries left for this task: clear it later."
    number = f"try {ti.try_number + 1} of {ti.max_tries + 1}"
    if policy is not None and not isinstance(policy, FlowRetryPolicy):
        return f"The task's retry_policy decides whether Airflow retries this task ({number})."
    if delay is None and not getattr(task, "retry_exponential_backoff", None):
        delay = getattr(task, "retry_delay", None)
    return f"Airflow retries this task{_in(delay)} ({number})."


def _in(delay: timedelta | None) -> str:
    return " after its retry_delay" if delay is None else f" in {delay.total_seconds():.0f} s"
