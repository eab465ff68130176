"""
When a request is sent again: within one try for a short time, then by Airflow's retry.

Never if a run may have been started.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from workflow_automation_provider.exceptions import (
    BusyError,
    ConnectionUnusableError,
    FileUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from airflow.sdk import RetryDecision, RetryPolicy
    from airflow.sdk.types import Logger
else:
    try:
        from airflow.sdk import RetryDecision, RetryPolicy
    except ImportError:  # Airflow before 3.3 has no retry policies
        RetryPolicy = object

_Result = TypeVar("_Result")

# The longest waits without a Retry-After, in seconds; the last one repeats.
_WAITS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)

# A longer wait that the service asks for is left to Airflow, unless there is time for it; in
# seconds.
_MAX_ASKED = 600.0

# Less time left is not worth another attempt, in seconds.
_MIN_LEFT = 0.01

# How soon a wait ends after Airflow ended the task, in seconds.
_POLL_INTERVAL = 0.1

LEFT_TO_AIRFLOW = (BusyError, NotSentError, FileUnavailableError, ConnectionUnusableError)
"""Errors after which Airflow may retry a task: nothing was done, or a retry looks for its run."""


# How often the service may put a try off, on Airflow 3.4, before that spends a retry.
MAX_RESCHEDULES = 20

_BUSY = "The service is busy."


class FlowRetryPolicy(RetryPolicy):
    """
    Retry after the service's ``Retry-After`` instead of ``retry_delay`` (Airflow 3.3+).

    From Airflow 3.4 on, the same try is executed again: a wait that the service asked for spends
    no retry.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> RetryDecision:
        """
        Decide when the task is retried.

        :param exception: what ended this try
        :param context: the task's, which has how often this try was rescheduled
        :return: if the service asked for a wait, the next execution after it; otherwise Airflow's
            default
        """
        if not isinstance(exception, BusyError) or exception.retry_after is None:
            return RetryDecision.default()

        delay = timedelta(seconds=exception.retry_after)
        decision = RetryDecision.retry(delay, reason=_BUSY)
        reschedules = (context or {}).get("task_reschedule_count") or 0
        # At its own limit, Airflow would retry after retry_delay.
        if hasattr(RetryDecision, "reschedule") and reschedules < MAX_RESCHEDULES:
            decision = RetryDecision.reschedule(
                delay, max_reschedules=MAX_RESCHEDULES, reason=_BUSY
            )

        return decision


@dataclass
class SendRetrier:
    """
    Retries within one try of the task, while the service is busy or cannot be reached.

    :param seconds: how long to keep retrying, waits included, but not those that the service asks
        for; 0 sends once
    :param log: logger for the waits
    :param is_ended: returns whether Airflow ended the task: that ends a wait, and nothing more is
        sent
    """

    seconds: float
    log: Logger
    is_ended: Callable[[], bool] = lambda: False

    def send(
        self,
        send: Callable[[], _Result],
        *,
        retry_unknown: bool = False,
        longest: float = math.inf,
    ) -> _Result:
        """
        Send a request until it succeeds, or the time is up for a busy or unreachable service.

        :param send: sends the request once
        :param retry_unknown: whether to retry after an unknown outcome as well
        :param longest: within how many seconds the last attempt must begin
        :return: what the last attempt returned
        :raises WorkflowAutomationError: what the last attempt raised
        """
        retryable: tuple[type[WorkflowAutomationError], ...] = (BusyError, NotSentError)
        if retry_unknown:
            retryable = (BusyError, NotSentError, OutcomeUnknownError)

        began = time.monotonic()
        attempt, spent = 0, 0.0
        while True:
            attempt += 1
            self.await_turn()
            sent_at = time.monotonic()
            try:
                return send()
            except retryable as error:
                now = time.monotonic()
                spent += now - sent_at
                wait = self._wait_after(error, attempt, self.seconds - spent)
                if wait is not None and now - began + wait > longest:
                    wait = None

                if wait is None or not self._waits(error, wait):
                    raise

                spent += wait - _not_counted(error.retry_after)

    def await_turn(self) -> None:
        """Wait until a request may be sent: at once, where no rate is given."""

    def _wait_after(
        self, error: WorkflowAutomationError, attempt: int, left: float
    ) -> float | None:
        """
        Return the seconds to wait before the next attempt, None if there is no time for another.

        :param attempt: how many attempts were made
        :param left: how many seconds are left for further attempts
        """
        asked = error.retry_after or 0.0
        # The jitter spreads the retries of mapped tasks, and keeps "Retry-After: 0" from becoming a
        # tight loop.
        wait = asked + random.uniform(0, _WAITS[min(attempt, len(_WAITS)) - 1])  # noqa: S311 - for jitter, not for cryptography
        free = _not_counted(asked)
        if left < max(_MIN_LEFT, asked - free):
            return None

        return min(wait, left + free)

    def _waits(self, error: WorkflowAutomationError, seconds: float) -> bool:
        """Wait, and return whether another attempt may be made: not if Airflow ended the task."""
        if not self.is_ended():
            self.log_wait(error, seconds)
            self.sleep(seconds)
        if self.is_ended():
            self.log_ended()
            return False

        return True

    def log_wait(self, error: WorkflowAutomationError, seconds: float) -> None:
        """Log why, and in how many seconds, another attempt is made."""
        self.log.warning("%s %s Retrying in %.1f s.", error.reason, error.consequence, seconds)

    def log_ended(self) -> None:
        """Log that no further attempt is made."""
        self.log.warning("Airflow ended the task: nothing more is sent.")

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until Airflow ends the task."""
        # In short naps, because a signal handler cannot end a longer one: setting a threading.Event
        # there may deadlock.
        deadline = time.monotonic() + seconds
        while not self.is_ended() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_INTERVAL))


def _not_counted(asked: float | None) -> float:
    """Return how many seconds of a wait do not count, because the service asked for them."""
    return asked if asked and asked <= _MAX_ASKED else 0.0
