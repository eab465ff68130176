"""When the threads of a batch send: at its rate, and one at a time while the service is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from workflow_automation_provider.exceptions import BusyError, NotSentError
from workflow_automation_provider.execution.retry import not_counted

if TYPE_CHECKING:
    from workflow_automation_provider.execution.retry import SendRetrier

_Result = TypeVar("_Result")

# How soon a thread notices that the time of the next request has changed, in seconds.
_POLL_INTERVAL = 0.1


@dataclass
class _BusyTime:
    """A time in which no request gets through."""

    began: float
    responses: int = 0
    """The busy responses so far."""
    asked: float = 0.0
    """How many of its seconds the service asked for, which do not count."""


class Pace:
    """
    When the next request of a batch may be sent, by any of its threads.

    One time holds for all of them. Each request moves it on by the interval of the rate. A response
    that says *busy* moves it to the end of a wait. Then one request is sent, and no other until it
    has its response: *busy* begins the next wait, and anything else ends the waiting.

    After a wait, whichever thread is first asks again. So an item for which the service is always
    busy does not hold the others. It gives up once the waits after its own responses have taken
    ``send_retry_timeout``; all give up once nothing got through for so long.

    :param retrier: how long the service may be busy or unreachable; its waits end with the batch
    :param max_per_second: the most requests to send in a second, None for no limit
    """

    def __init__(self, retrier: SendRetrier, max_per_second: float | None) -> None:
        self._retrier = retrier
        self._interval = 0.0
        if max_per_second:
            self._interval = 1 / max_per_second

        # The thread that holds it watches the time; the others wait for it, without any work.
        self._turn = Lock()

        # Guards all that follows.
        self._lock = Lock()
        self._not_before = time.monotonic()
        # None while requests get through.
        self._busy: _BusyTime | None = None
        # Counts how often a wait began or the waiting ended. A response to a request of an earlier
        # period says nothing of the service now.
        self._period = 0

    def send(self, send: Callable[[], _Result]) -> _Result:
        """
        Send a request when it is its turn, and again while the service is busy or unreachable.

        :param send: sends the request once
        :raises WorkflowAutomationError: what the last attempt raised
        :raises NotSentError: once the batch has ended
        """
        waited = 0.0
        while True:
            period = self._await_turn()
            try:
                result = send()
            except (BusyError, NotSentError) as error:
                waited += self._begin_wait(error, period, waited)
            except BaseException:
                self._end_waiting(period)
                raise
            else:
                self._end_waiting(period)
                return result

    def _await_turn(self) -> int:
        """Wait until a request may be sent; return the period in which it is."""
        with self._turn:
            while not self._retrier.is_ended():
                with self._lock:
                    now = time.monotonic()
                    seconds_left = self._not_before - now
                    if seconds_left <= 0:
                        self._not_before = self._after_a_request(now)
                        return self._period

                self._retrier.sleep(min(seconds_left, _POLL_INTERVAL))

        raise NotSentError("The batch was stopped.")

    def _after_a_request(self, now: float) -> float:
        """Return when the next request may follow one that is about to be sent."""
        if self._busy:
            # Not until this one has its response.
            return float("inf")
        # A thread that wakes up a little late does not delay those after it.
        due = max(self._not_before, now - self._interval / 2)
        return due + self._interval

    def _begin_wait(self, error: BusyError | NotSentError, period: int, waited: float) -> float:
        """
        Let all threads wait, and return for how many seconds that counts; 0 for a late response.

        :param waited: how many seconds the waits after this item's earlier responses counted
        :raises WorkflowAutomationError: the error, if there is no time for another attempt
        """
        asked = not_counted(error.retry_after)
        with self._lock:
            is_late = period != self._period
            if is_late:
                return 0.0

            wait = self._next_wait(error, waited)
            self._not_before = time.monotonic() + max(wait, self._interval)
            self._period += 1

        self._retrier.log_wait(error, wait)
        return max(wait - asked, 0.0)

    def _next_wait(self, error: BusyError | NotSentError, waited: float) -> float:
        """
        Count a busy response, and return for how many seconds to wait after it.

        :raises WorkflowAutomationError: the error, if there is no time for another attempt
        """
        now = time.monotonic()
        if self._busy is None:
            self._busy = _BusyTime(began=now)

        busy = self._busy
        busy.responses += 1

        took = now - busy.began
        left = self._retrier.seconds - max(took - busy.asked, waited)
        wait = self._retrier.wait_after(error, busy.responses, left)
        if wait is None:
            self._retrier.log_tries(busy.responses, took)
            raise error

        busy.asked += not_counted(error.retry_after)
        return wait

    def _end_waiting(self, period: int) -> None:
        """Let all threads go on, if a request of this period was the one that asked again."""
        with self._lock:
            if self._busy and period == self._period:
                self._busy = None
                self._not_before = time.monotonic() + self._interval
                self._period += 1
