"""When a task is tried again: within the try for a short while, then by Airflow, and never blindly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.client.errors import (
    Accepted,
    BusyError,
    FileUnavailableError,
    NotSentError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from airflow.sdk import RetryDecision, RetryPolicy

    RetryPolicyBase = RetryPolicy
else:
    try:
        from airflow.sdk import RetryDecision
        from airflow.sdk import RetryPolicy as RetryPolicyBase
    except ImportError:  # before Airflow 3.3, which knows no retry policies
        RetryPolicyBase = object

__all__ = ["START_ADVICE", "UPLOAD_ADVICE", "FlowRetryPolicy", "call_patiently", "failing_for_good"]

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


def call_patiently(
    call: Callable[[], _Result],
    *,
    seconds: float,
    log: Any,
    is_ended: Callable[[], bool],
    retry: tuple[type[WorkflowAutomationError], ...] = (),
) -> _Result:
    """
    Call again while the service is busy or cannot be reached, as long as there is time.

    :param call: sends one request
    :param seconds: time to go on for, waits included; 0 calls once
    :param log: logger that each wait is announced in
    :param is_ended: tells whether Airflow ended the task: a wait ends then, and nothing is called any more
    :param retry: errors to call again after, besides busy and not sent
    :return: what ``call`` returns
    :raises WorkflowAutomationError: the last error, where the next wait would end after the time; any error
        but busy and not sent, at once
    """
    import tenacity

    retryable = (BusyError, NotSentError, *retry)
    last: BaseException | None = None
    growing = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, BusyError) else None
        # The jitter keeps mapped tasks from coming back all at once, and "Retry-After: 0" from a tight loop.
        return (asked or 0.0) + growing(state)

    def announce(state: tenacity.RetryCallState) -> None:
        nonlocal last
        last = state.outcome.exception() if state.outcome else None
        log.warning("%s Trying again in %.1f s.", last, state.upcoming_sleep)

    def sleep(duration: float) -> None:
        _sleep(duration, is_ended)
        if is_ended() and last:
            log.warning("Airflow ended the task while it waited: nothing more is sent.")
            raise last

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, retryable) and not is_ended()),
        wait=wait,
        stop=tenacity.stop_before_delay(seconds),
        sleep=sleep,
        before_sleep=announce,
        reraise=True,
    )(call)


def _sleep(seconds: float, is_ended: Callable[[], bool]) -> None:
    # In short naps: what a signal handler sets cannot wake a longer one, for a threading.Event may deadlock there.
    deadline = time.monotonic() + seconds
    while not is_ended() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, _NAP))


START_ADVICE = {
    Accepted.NO: "Once that is mended, clear the task to try again.",
    Accepted.MAYBE: (
        "This task starts nothing more by itself. If there is no run, clear the task to start one; if there is, "
        "mark the task as success (tasks after it then get no run_id)."
    ),
    Accepted.YES: (
        "Mark the task as success (tasks after it then get no run_id), or clear it to start another run."
    ),
}
"""What to tell the person on call about a start, by what the service did: what the task does now, and Clear."""

UPLOAD_ADVICE = {
    Accepted.NO: "Once that is mended, clear the task to send everything again.",
    Accepted.MAYBE: (
        "This task sends nothing more by itself. Look at the run's files: if they are there, mark the task as "
        "success; if not, clear the task to send everything again."
    ),
}
"""The same for an upload."""


@contextmanager
def failing_for_good(
    advice: Mapping[Accepted, str], *, but_for: tuple[type[WorkflowAutomationError], ...] = ()
) -> Iterator[None]:
    """
    Fail without a retry, but for what a retry can mend.

    :param advice: what to tell the person on call, by what the service did
    :param but_for: errors to leave to Airflow's retry besides busy, not sent and a missing file
    :raises AirflowFailException: in place of an error that a retry cannot mend or could make worse
    """
    retryable: tuple[type[WorkflowAutomationError], ...] = (
        BusyError,
        NotSentError,
        FileUnavailableError,
        *but_for,
    )
    try:
        yield
    except retryable:
        raise
    except WorkflowAutomationError as error:
        raise AirflowFailException(f"{error} {advice[error.accepted]}") from error
