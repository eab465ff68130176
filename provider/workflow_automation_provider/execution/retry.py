"""Retries: within one try for a short time, then by Airflow, and never if a run may have been started."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    NotSentError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.final_errors import final_class

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk import RetryDecision, RetryPolicy
    from airflow.sdk.types import Logger

    from workflow_automation_provider.client.outcome import Failure, Outcome
    from workflow_automation_provider.failures import Outlook, PreviousTry

    RetryPolicyBase = RetryPolicy
else:
    try:
        from airflow.sdk import RetryDecision
        from airflow.sdk import RetryPolicy as RetryPolicyBase
    except ImportError:  # Airflow before 3.3 has no retry policies
        RetryPolicyBase = object

# The longest waits without a Retry-After, in seconds; the last one for all that follow.
_WAITS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)

# Less time left is not worth another attempt, in seconds.
_MIN_LEFT = 0.01

# How soon a wait ends after Airflow ended the task, in seconds.
_POLL_INTERVAL = 0.1

# How often a try is rescheduled without using a retry, and the longest wait for which it is, so that no task
# waits forever. Rescheduling takes at most 50 minutes of each try; after that, and for longer waits, a retry
# is used.
_MAX_RESCHEDULES = 5
_MAX_RESCHEDULE = timedelta(minutes=10)


def max_wait(waits: int) -> float:
    """
    Return the longest wait without a ``Retry-After``, in seconds.

    :param waits: number of waits before it
    """
    return _WAITS[min(waits, len(_WAITS) - 1)]


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
        reason = "The service is busy or cannot be reached."
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
    if delay > _MAX_RESCHEDULE or context.get("task_reschedule_count", 0) >= _MAX_RESCHEDULES:
        return None
    decision: RetryDecision = reschedule(delay, max_reschedules=_MAX_RESCHEDULES, reason=reason)
    return decision


class SendRetrier:
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

    def send(
        self,
        send: Callable[[], Outcome],
        *,
        retry_unknown: bool = False,
        on_retry: Callable[[], None] | None = None,
    ) -> Outcome:
        """
        Send a request, and retry while the service is busy or cannot be reached, until the time is up.

        :param send: sends the request once
        :param retry_unknown: whether to retry after an unknown outcome as well
        :param on_retry: called before each wait for another attempt
        :return: what the last attempt came to, with the number of attempts if it is one to retry after
        """
        from workflow_automation_provider.client.outcome import Attempts, Busy, NotSent, Unknown

        retryable = (Busy, NotSent, Unknown) if retry_unknown else (Busy, NotSent)
        began = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            outcome = send()
            if not isinstance(outcome, retryable):
                return outcome
            wait = self._wait_after(outcome, attempt, self.seconds - (time.monotonic() - began))
            if wait is None or not self._waits(outcome, wait, on_retry):
                took = time.monotonic() - began
                attempts = Attempts(attempt, took, self.seconds, self.limited_by) if attempt > 1 else None
                return dataclasses.replace(outcome, attempts=attempts)

    def _wait_after(self, outcome: Failure, attempt: int, left: float) -> float | None:
        """Return the seconds to wait before the next attempt, None if there is no time for another."""
        asked = outcome.retry_after or 0.0
        # The jitter spreads the retries of mapped tasks, and keeps "Retry-After: 0" from becoming a tight loop.
        wait = asked + random.uniform(0, max_wait(attempt - 1))  # noqa: S311 - for jitter, not for cryptography
        if left < max(_MIN_LEFT, asked) or (not self.caps_last_wait and left <= wait):
            return None
        return min(wait, left)

    def _waits(self, outcome: Failure, seconds: float, on_retry: Callable[[], None] | None) -> bool:
        """Wait, and return whether another attempt may be made: not if Airflow ended the task."""
        from workflow_automation_provider.failures import consequence_of, reason_of

        if not self.is_ended():
            self.log.warning(
                "%s %s Retrying in %.1f s.",
                reason_of(outcome),
                consequence_of(outcome.request.operation, outcome.accepted),
                seconds,
            )
            if on_retry:
                on_retry()
            self._sleep(seconds)
        if is_ended := self.is_ended():
            self.log.warning("Airflow ended the task: nothing more is sent.")
        return not is_ended

    def _sleep(self, seconds: float) -> None:
        # In short naps, because a signal handler cannot end a longer one: setting a threading.Event there may
        # deadlock.
        deadline = time.monotonic() + seconds
        while not self.is_ended() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_INTERVAL))


def error_of_task(
    error: WorkflowAutomationError,
    context: Context,
    advice: Mapping[Accepted, str],
    *,
    also_retry: tuple[type[WorkflowAutomationError], ...] = (),
    is_ended: bool = False,
    may_retry: bool = True,
    later: str = "",
    previous: PreviousTry | None = None,
    run_id: str | None = None,
) -> WorkflowAutomationError:
    """
    Return the error to fail the task with, which says whether Airflow retries it and what to do.

    :param advice: what to do if Airflow does not retry the task, depending on what the service did
    :param also_retry: errors to leave to Airflow's retry, in addition to busy, not sent and an unavailable file
    :param is_ended: whether Airflow ended the task, and therefore knows whether to retry it
    :param may_retry: whether a retry does no harm
    :param later: what to do if a retry may help, but Airflow has none left; by default, clear the task
    :param previous: what an earlier try did, to be mentioned if this one started nothing
    :param run_id: the run that this task started, empty if that is unknown; None if it started none
    :return: one of the same class if a retry may help, otherwise one that is also an ``AirflowFailException``.
        Without a traceback, which would not help a DAG author
    """
    from workflow_automation_provider.failures import Outlook, task_error

    if isinstance(error, AirflowFailException):
        return error.with_traceback(None)  # of a start inside the task: it says all that there is to say
    kind = type(error)
    if not may_retry or not isinstance(error, (BusyError, NotSentError, FileUnavailableError, *also_retry)):
        kind, outlook = final_class(kind), Outlook("fail")
    elif is_ended:
        outlook = Outlook("ended")
    else:
        outlook = _outlook(context, error)
    failed = task_error(error, kind, outlook, advice, later=later, previous=previous, run_id=run_id)
    failed.__cause__ = error.__cause__
    return failed


def _outlook(context: Context, error: WorkflowAutomationError) -> Outlook:
    """Return whether and when Airflow retries the task."""
    from workflow_automation_provider.failures import Outlook

    ti, task = context["ti"], context["task"]
    policy = getattr(task, "retry_policy", None)
    delay: timedelta | None = None
    ours = policy if isinstance(policy, FlowRetryPolicy) else None
    if ours:
        decision = ours.evaluate(error, ti.try_number, ti.max_tries, context)
        delay = decision.retry_delay
        if decision.action.value == "fail":  # of a subclass
            return Outlook("fail by policy")
        if decision.action.value == "reschedule":
            return Outlook("reschedule", delay=delay)
    if ti.try_number > ti.max_tries:
        return Outlook("no retries left")
    if delay is None and not getattr(task, "retry_exponential_backoff", None):
        delay = getattr(task, "retry_delay", None)
    decides = policy is not None and not ours
    return Outlook("by policy" if decides else "retry", ti.try_number + 1, ti.max_tries + 1, delay)
