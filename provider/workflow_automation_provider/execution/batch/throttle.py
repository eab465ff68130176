"""When the next request of a batch may be sent: all of its threads wait together."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from workflow_automation_provider.execution.retry import max_wait, uncounted

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.exceptions import BusyError, NotSentError

# How soon a wait ends after the batch was stopped, in seconds.
_POLL_INTERVAL = 0.1


class Throttle:
    """
    The rate limit that the user wants, and the back-off that the service asks for, shared by all threads.

    :param retry_timeout: how many seconds the service may be busy or unreachable without interruption, besides the waits
        that it asks for
    :param per_second: how many requests to send in a second at most, spread evenly; None for no limit
    :param log: logger for the waits
    :param is_stopped: returns whether nothing more may be sent
    """

    def __init__(
        self, retry_timeout: float, per_second: float | None, log: Logger, is_stopped: Callable[[], bool]
    ) -> None:
        self._retry_timeout = retry_timeout
        self._interval = 1 / per_second if per_second else 0.0
        self._log = log
        self._is_stopped = is_stopped
        self._lock = threading.Lock()
        self._next = 0.0
        self._paused_at = self._paused_until = 0.0
        self._pauses = 0
        self._busy_since: float | None = None
        self._asked = 0.0  # seconds since then that do not count
        self._responded_at = 0.0

    def wait(self) -> bool:
        """Wait for the turn of the next request; return whether it may be sent, False once stopped."""
        while not self._is_stopped():
            with self._lock:
                now = time.monotonic()
                at = max(self._paused_until, self._next)
                if at <= now:
                    # A thread that wakes up a little late does not delay those after it.
                    is_on_time = now - self._next < self._interval
                    self._next = (self._next if is_on_time else now) + self._interval
                    return True
            time.sleep(min(at - now, _POLL_INTERVAL))
        return False

    def on_response(self) -> None:
        """Note that the service acted on a request."""
        self._responded_at = time.monotonic()
        if self._pauses or self._busy_since is not None:
            with self._lock:
                self._pauses, self._busy_since, self._asked = 0, None, 0.0

    def on_busy(self, error: BusyError | NotSentError, sent_at: float) -> bool:
        """
        Make all threads wait, because the service is busy or cannot be reached.

        :param error: of a request
        :param sent_at: when it was sent, by the monotonic clock
        :return: whether to send the request again after the wait; False if it would take too long
        """
        with self._lock:
            now = time.monotonic()
            since = self._busy_since = min(self._busy_since or sent_at, sent_at)
            # A response that comes late says nothing about the time in which others got through.
            since = max(since, self._responded_at)
            wait = error.retry_after or 0.0
            # One that was sent before the pause says nothing about what comes after it.
            is_news = sent_at >= self._paused_at
            if is_news:
                # The jitter spreads the requests of tasks that were told to wait at the same time.
                wait += random.uniform(0.5, 1.0) * max_wait(self._pauses)  # noqa: S311 - for jitter, not for cryptography
            # Only what this wait adds to a pause.
            left = max(self._paused_until - now, 0.0)
            asked = self._asked + max(uncounted(error.retry_after or 0.0) - left, 0.0)
            until = now + max(wait, left)
            if until - since - asked > self._retry_timeout:
                return False
            self._paused_until, self._asked = until, asked
            if is_news:
                self._paused_at = now
                self._pauses += 1
        if is_news:
            self._log.warning("%s %s The batch continues in %.1f s.", error.reason, error.consequence, wait)
        return True
