"""The threads of a batch: each sends one item after the other, until the batch is stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

from workflow_automation_provider.client.protocol import with_inputs
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.failures import FailureStreak, status_of
from workflow_automation_provider.execution.batch.item_results import started
from workflow_automation_provider.execution.retry import SendRetrier

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.batch.item_results import BatchItem, Results
    from workflow_automation_provider.execution.batch.options import BatchOptions
    from workflow_automation_provider.execution.batch.source import Item
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


@dataclass(eq=False)
class Job:
    """An item in flight: from the write that opens it to the one that records its result."""

    item: Item
    may_be_sent: bool = False
    """Whether a thread is sending its request, so that a run may have been started."""
    result: BatchItem | None = None
    """The result over all tries, None until it is known."""


class BatchThreads:
    """
    Send items in threads, each until the service has acted on it.

    Once the batch is stopped, the threads give the items that are left a result, without sending
    them.

    :param hook: sends the requests
    :param retrier: how long the service may be busy or unreachable
    :param results: the results of earlier tries
    :param inputs_of: returns the inputs that are sent for an item, encoded
    :param options: what the task asks for
    """

    def __init__(
        self,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        results: Results,
        inputs_of: Callable[[Item], bytes],
        options: BatchOptions,
    ) -> None:
        self.stopped_by: WorkflowAutomationError | None = None
        """Why nothing more is sent, None while the batch goes on."""
        self._hook = hook
        self._task_retrier = retrier
        self._results = results
        self._inputs_of = inputs_of
        self._max_concurrency = options.max_concurrency
        self._streak = FailureStreak(options.max_concurrency)
        self._stop_lock = Lock()
        self._retrier = _RatedRetrier(
            retrier.seconds, retrier.log, self._is_over, options.max_starts_per_second
        )

        # What the threads are to send, and None for each to end.
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Wakes the main thread, once for each result.
        self._new_results: SimpleQueue[None] = SimpleQueue()

    # In the main thread ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self, number: int, template: Request) -> Iterator[None]:
        """
        Run the threads.

        :param number: how many items there are: no more threads than that are started
        :param template: a request without inputs
        """
        # Daemons, so that a request that hangs does not keep the process of an ended task alive.
        threads = [
            Thread(target=self._work, args=(template,), name=f"batch-{n}", daemon=True)
            for n in range(min(number, self._max_concurrency))
        ]
        for thread in threads:
            thread.start()

        try:
            yield
        finally:
            for _ in threads:
                self._jobs.put(None)

    def send(self, jobs: Iterable[Job]) -> None:
        """Hand items to the threads, which send them and set their results."""
        for job in jobs:
            self._jobs.put(job)

    def await_result(self, seconds: float) -> None:
        """Wait until another item has its result, but not for longer than this."""
        with contextlib.suppress(Empty):
            self._new_results.get(timeout=seconds)

    # In any thread --------------------------------------------------------------------------------

    def stop(self, error: WorkflowAutomationError) -> None:
        """Send nothing more: items that no thread has sent are *not started*."""
        with self._stop_lock:
            if self.stopped_by is not None:
                return
            self.stopped_by = error
        self._retrier.log.warning("Sending nothing more. %s", error.reason)

    def _is_over(self) -> bool:
        return self.stopped_by is not None or self._task_retrier.is_ended()

    # In the threads -------------------------------------------------------------------------------

    def _work(self, template: Request) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job.result = self._result_of(job, template)
            self._new_results.put(None)

    def _result_of(self, job: Job, template: Request) -> BatchItem:
        """Send an item; return its result, whatever happens."""
        try:
            run = self._send(job, template)
            result = started(job.item.index, run)
        except BaseException as error:
            failure = _as_known(error)
            self._note_failure(failure)
            return self._results.without_run(job.item.index, status_of(failure), failure.reason)

        self._streak.end()
        return result

    def _send(self, job: Job, template: Request) -> Run:
        """Send an item until the service has acted on it."""

        def send() -> Run:
            request = with_inputs(template, self._inputs_of(job.item))
            # Before it is sent, so that an interruption cannot miss it.
            job.may_be_sent = True
            try:
                if self._is_over():
                    raise NotSentError("The batch was stopped.")
                return self._hook.get_conn().trigger(request)
            except (BusyError, NotSentError):
                job.may_be_sent = False
                raise

        return self._retrier.send(send)

    def _note_failure(self, error: WorkflowAutomationError) -> None:
        """Stop the batch, if no further item may be sent after this error."""
        stopped_by = self._streak.add(error, self._results.total)
        if stopped_by is None:
            return

        # Airflow may have ended the wait for a busy service.
        if self._task_retrier.is_ended() and isinstance(stopped_by, BusyError | NotSentError):
            stopped_by = NotSentError("The task was ended.")
        self.stop(stopped_by)


class _RatedRetrier(SendRetrier):
    """
    A retrier for all threads, which together keep to a rate.

    :param max_per_second: the most requests to send in a second, None for no limit
    """

    def __init__(
        self,
        seconds: float,
        log: Logger,
        is_ended: Callable[[], bool],
        max_per_second: float | None,
    ) -> None:
        super().__init__(seconds, log, is_ended)
        self._interval = 0.0
        if max_per_second:
            self._interval = 1 / max_per_second

        # The thread that holds it waits until the next request may be sent.
        self._turn = Lock()
        self._next = time.monotonic()
        self._logged_at = float("-inf")

    def await_turn(self) -> None:
        """Wait until the rate allows another request."""
        with self._turn:
            self.sleep(self._next - time.monotonic())
            # A thread that wakes up a little late does not delay those after it.
            due = max(self._next, time.monotonic() - self._interval / 2)
            self._next = due + self._interval

    def log_wait(self, error: WorkflowAutomationError, seconds: float) -> None:
        """Log a wait, but not those of the other threads for the same reason."""
        now = time.monotonic()
        is_new = now - self._logged_at >= 1
        if is_new:
            self._logged_at = now
            super().log_wait(error, seconds)

    def log_ended(self) -> None:
        """Log nothing: why the batch was stopped is logged once."""


def _as_known(error: BaseException) -> WorkflowAutomationError:
    """Return an error of a request as one of ours."""
    if isinstance(error, WorkflowAutomationError):
        return error
    # Without its text, which may contain secrets.
    return OutcomeUnknownError(f"{type(error).__name__} while it was sent.")
