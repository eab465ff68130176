"""Retries: within one try for a short time, then by Airflow, and never if a run may have been started."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    NotSentError,
    RunFailedError,
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
    except ImportError:  # Airflow before 3.3 has no retry policies
        RetryPolicyBase = object

__all__ = [
    "BATCH_ADVICE",
    "GIVEN_RUN",
    "START_ADVICE",
    "UPLOAD_ADVICE",
    "FlowRetryPolicy",
    "Patience",
    "PreviousTry",
    "how_to_enter",
    "run_advice",
    "run_started",
    "start_advice",
    "task_error",
]

_Result = TypeVar("_Result")

# The wait between two attempts without a Retry-After, in seconds: it grows from the first to the second
# value.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0

# Less time left is not worth another attempt, in seconds.
_MIN_LEFT = 0.01

# How soon a wait ends after Airflow ended the task, in seconds.
_NAP = 0.1

# How often a try is rescheduled without using a retry, and the longest wait for which it is, so that no task
# waits forever. Rescheduling takes at most 50 minutes of each try; after that, and for longer waits, a retry
# is used.
_MOST_RESCHEDULES = 5
_LONGEST_RESCHEDULE = timedelta(minutes=10)


class FlowRetryPolicy(RetryPolicyBase):
    """
    Retry after the service's ``Retry-After`` instead of ``retry_delay`` (Airflow 3.3+).

    If Airflow can reschedule a failed task (3.4+), a busy or unreachable service does not use a retry at
    first.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> RetryDecision:
        """
        Decide when the task is retried, and whether that uses a retry.

        :param exception: what ended this try
        :param context: the task's context; without it, a retry is used
        :return: if the service is busy or cannot be reached, a limited number of reschedules, then a retry
            after the service's ``Retry-After``; otherwise Airflow's default
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
    """Return the decision to reschedule without using a retry, None if that is not possible or allowed."""
    reschedule = getattr(RetryDecision, "reschedule", None)  # Airflow 3.4+
    if reschedule is None or context is None:
        return None
    delay = context["task"].retry_delay if wait is None else wait
    # Airflow enforces the limit as well, but its retry would then ignore the Retry-After.
    if delay > _LONGEST_RESCHEDULE or context.get("task_reschedule_count", 0) >= _MOST_RESCHEDULES:
        return None
    decision: RetryDecision = reschedule(delay, max_reschedules=_MOST_RESCHEDULES, reason=reason)
    return decision


class Patience:
    """
    Retries within one try of the task, while the service is busy or cannot be reached.

    :param seconds: how long to keep retrying, waits included; 0 sends once
    :param log: logger for the waits
    :param is_ended: returns whether Airflow ended the task, which ends a wait, and after which nothing is
        sent
    :param limited_by: the argument that the time comes from
    :param caps_last_wait: whether to shorten the last wait, so that the last attempt is made when the time is up
    """

    def __init__(
        self,
        seconds: float,
        log: Logger,
        is_ended: Callable[[], bool] = lambda: False,
        *,
        limited_by: str = "send_retry_timeout",
        caps_last_wait: bool = True,
    ) -> None:
        self.seconds = seconds
        self.log = log
        self.is_ended = is_ended
        self.limited_by = limited_by
        self.caps_last_wait = caps_last_wait

    def call(
        self,
        send: Callable[[], _Result],
        *,
        retry: tuple[type[WorkflowAutomationError], ...] = (),
        on_retry: Callable[[], None] | None = None,
    ) -> _Result:
        """
        Send a request, and retry while the service is busy or cannot be reached, until the time is up.

        :param send: sends the request once
        :param retry: errors to retry after, in addition to busy and not sent
        :param on_retry: called before each wait for another attempt
        :return: what ``send`` returns
        :raises WorkflowAutomationError: if an error is not to be retried, at once; otherwise the last error, if the
            time is up, or the service asks for a longer wait
        """
        retryable: tuple[type[WorkflowAutomationError], ...] = (BusyError, NotSentError, *retry)
        began = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                return send()
            except retryable as error:
                waited = time.monotonic() - began
                wait = self._wait_after(error, attempt, self.seconds - waited)
                if wait is None or self.is_ended() or not self._waits(error, wait, on_retry):
                    if attempt > 1:
                        error.message += self._tried(error, attempt, time.monotonic() - began)
                    raise

    def _wait_after(self, error: WorkflowAutomationError, attempt: int, left: float) -> float | None:
        """Return the seconds to wait before the next attempt, None if there is no time for another."""
        asked = error.retry_after or 0.0
        # The jitter spreads the retries of mapped tasks, and keeps "Retry-After: 0" from becoming a tight loop.
        wait = asked + random.uniform(0, min(_FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT))  # noqa: S311
        if left < max(_MIN_LEFT, asked) or (not self.caps_last_wait and left <= wait):
            return None
        return min(wait, left)

    def _waits(
        self, error: WorkflowAutomationError, seconds: float, on_retry: Callable[[], None] | None
    ) -> bool:
        """Wait, and return whether another attempt may be made: not if Airflow ended the task meanwhile."""
        text = " ".join(filter(None, (error.message, error.consequence)))
        self.log.warning("%s Retrying in %.1f s.", text, seconds)
        if on_retry:
            on_retry()
        self._sleep(seconds)
        if self.is_ended():
            self.log.warning("Airflow ended the task while it was waiting: nothing more is sent.")
            return False
        return True

    def _tried(self, error: WorkflowAutomationError, attempts: int, waited: float) -> str:
        is_longer = (error.retry_after or 0.0) > max(self.seconds - waited, 0)
        longer = " The service asks for a longer wait." if is_longer else ""
        return f"\nTried {attempts} times in {waited:.0f} s ({self.limited_by}: {self.seconds:g} s).{longer}"

    def _sleep(self, seconds: float) -> None:
        # In short naps, because a signal handler cannot end a longer one: setting a threading.Event there may
        # deadlock.
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
"""What to do about a start that Airflow does not retry, depending on what the service did."""

GIVEN_RUN = "workflow_automation_run"
"""The entry of the task state store by which a person gives a task its run."""


def start_advice(context: Context, name: str | None = None) -> Mapping[Accepted, str]:
    """
    Return what to do about a start that Airflow does not retry, on the Airflow of this task.

    :param name: of one of several starts within the task
    """
    if "task_state_store" not in context:
        return START_ADVICE
    how = how_to_enter(f"{GIVEN_RUN}/{name}" if name else GIVEN_RUN)
    if name:
        how += "\nA Clear starts every other run of the task again."
    return {
        **START_ADVICE,
        Accepted.MAYBE: (
            "If there is no run, clear the task to start one.\n"
            f"If there is one, enter its run_id, then clear the task to return that run.\n{how}"
        ),
        Accepted.YES: (
            f"Find the run and enter its run_id, then clear the task to return that run.\n{how}\n"
            "Or clear the task to start another run."
        ),
    }


def how_to_enter(entry: str = GIVEN_RUN, run_id: str | None = None) -> str:
    """Return how a person gives a task its run, on Airflow 3.3 and later."""
    value = json.dumps(run_id or "RUN_ID", ensure_ascii=False)
    return f"To enter it: the task instance's tab Storage, key {entry}, value {value} with the quotes."


def run_started(run_id: str | None) -> str:
    """Say that a run was started, and which one if that is known."""
    return f"Run {run_id} was started." if run_id else "A run was started."


def run_advice(context: Context, run_id: str | None) -> str:
    """Return what to do about a task that failed after it had started its run, on the Airflow of this task."""
    if "task_state_store" not in context:
        return "Clearing the task starts another run: upload the files with UploadFilesOperator instead."
    return (
        "To continue with that run, fix the cause, enter its run_id, then clear the task.\n"
        f"{how_to_enter(run_id=run_id)}\nWithout that entry, a Clear starts another run."
    )


BATCH_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task.",
    Accepted.MAYBE: (
        "Start the items that have no run in a batch of their own: clearing the task starts all items again."
    ),
    Accepted.YES: (
        "Fix the cause, then start the items that have no run in a batch of their own: clearing the task starts all "
        "items again."
    ),
}
"""What to do about a batch that Airflow does not retry, depending on what the service did."""

UPLOAD_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task to upload all files.",
    Accepted.MAYBE: (
        "If the files are there, mark the task as success.\nIf not, clear the task to upload all files again."
    ),
}
"""What to do about an upload that Airflow does not retry, depending on what the service did."""


class PreviousTry(NamedTuple):
    """
    What an earlier try of the task did, which an error must mention if this try started nothing.

    :param text: that in words, beginning with the number of the try
    """

    accepted: Accepted
    text: str


def task_error(
    error: WorkflowAutomationError,
    context: Context,
    advice: Mapping[Accepted, str],
    *,
    but_for: tuple[type[WorkflowAutomationError], ...] = (),
    is_ended: bool = False,
    may_retry: bool = True,
    later: str = "",
    previous: PreviousTry | None = None,
) -> WorkflowAutomationError:
    """
    Return the error to fail the task with, which says whether Airflow retries it and what to do.

    :param advice: what to do if Airflow does not retry the task, depending on what the service did
    :param but_for: errors to leave to Airflow's retry, in addition to busy, not sent and an unavailable file
    :param is_ended: whether Airflow ended the task, and therefore knows whether to retry it
    :param may_retry: whether a retry does no harm
    :param later: what to do if a retry may help, but Airflow has none left; by default, clear the task
    :param previous: what an earlier try did, to be mentioned if this one started nothing
    :return: the same error if a retry may help; otherwise one of the same class that is also an
        ``AirflowFailException``. Without a traceback, which would not help a DAG author
    """
    retryable: tuple[type[WorkflowAutomationError], ...] = (
        BusyError,
        NotSentError,
        FileUnavailableError,
        *but_for,
    )
    if isinstance(error, AirflowFailException):
        return error.with_traceback(None)  # of a start inside the task: it says all that there is to say
    if previous and error.accepted is Accepted.NO:
        _mention(previous, error)
    failed = error
    if not may_retry or not isinstance(error, retryable):
        outlook = "Airflow will not retry this task."
        # What to do about a run that failed, whoever found it knows.
        then = "" if isinstance(error, RunFailedError) else advice[error.accepted]
        failed = _rebuild(type(error), error.args, error.__dict__)
        failed.__cause__ = error.__cause__
    elif is_ended:
        outlook = then = ""
    else:
        outlook, then = _outlook(context, error, advice, later)
    failed.next_step = "\n".join(filter(None, (outlook, failed.next_step, then)))
    return failed.with_traceback(None)


def _mention(previous: PreviousTry, error: WorkflowAutomationError) -> None:
    """Have the error say that nothing was started by this try, but by an earlier one, or perhaps."""
    from workflow_automation_provider.client.protocol import Operation
    from workflow_automation_provider.failures import where_to_look

    error.accepted = previous.accepted
    error.consequence += f"\nBut {previous.text}"
    look = where_to_look(Operation.TRIGGER_BY_KEY) if previous.accepted is Accepted.MAYBE else ""
    error.next_step = "\n".join(filter(None, (error.next_step, look)))


_kinds: dict[type[WorkflowAutomationError], type[WorkflowAutomationError]] = {}


def _without_retry(kind: type[WorkflowAutomationError]) -> type[WorkflowAutomationError]:
    """Return a class of the same name that Airflow does not retry a task after."""
    if kind not in _kinds:
        body = {
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
            # pickle looks for a class by its name, and would find the one that Airflow retries after.
            "__reduce__": lambda self: (_rebuild, (kind, self.args, self.__dict__)),
        }
        _kinds[kind] = type(kind.__name__, (kind, AirflowFailException), body)
    return _kinds[kind]


def _rebuild(
    kind: type[WorkflowAutomationError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> WorkflowAutomationError:
    kind = _without_retry(kind)
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def _outlook(
    context: Context, error: WorkflowAutomationError, advice: Mapping[Accepted, str], later: str
) -> tuple[str, str]:
    """Say whether and when Airflow retries the task, and what to do about it."""
    ti, task = context["ti"], context["task"]
    policy = getattr(task, "retry_policy", None)
    delay: timedelta | None = None
    ours = policy if isinstance(policy, FlowRetryPolicy) else None
    if ours:
        decision = ours.evaluate(error, ti.try_number, ti.max_tries, context)
        delay = decision.retry_delay
        if decision.action.value == "fail":  # of a subclass
            return "Airflow will not retry this task: its retry_policy says so.", advice[error.accepted]
        if decision.action.value == "reschedule":
            return f"Airflow reschedules this task{_in(delay)}, without using a retry.", ""
    in_doubt = error.accepted is not Accepted.NO
    if ti.try_number > ti.max_tries:
        then = advice[error.accepted] if in_doubt else later or _later(error)
        return "Airflow has no retries left for this task.", then
    number = f"try {ti.try_number + 1} of {ti.max_tries + 1}"
    # Files may be uploaded twice, and so their advice knows no run that was started for certain. Runs that a batch
    # started for certain are not started again.
    is_risky = error.accepted is Accepted.MAYBE and Accepted.YES in advice
    again = ", which may start a second run" if is_risky else ""
    then = "If the run is there, mark the task as success before then." if again else ""
    if policy is not None and not ours:
        return f"The task's retry_policy decides whether Airflow retries this task ({number}){again}.", then
    if delay is None and not getattr(task, "retry_exponential_backoff", None):
        delay = getattr(task, "retry_delay", None)
    return f"Airflow retries this task{_in(delay)} ({number}){again}.", then


def _later(error: WorkflowAutomationError) -> str:
    if isinstance(error, FileUnavailableError):
        return "Clear the task once the file is available."
    return "Clear the task later."


def _in(delay: timedelta | None) -> str:
    return " after its retry_delay" if delay is None else f" in {delay.total_seconds():.0f} s"
