"""The threads of a batch: each sends one item after the other, until the batch is stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.protocol import with_inputs
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.failures import FailureStreak, status_of
from workflow_automation_provider.execution.batch.pace import Pace
from workflow_automation_provider.execution.batch.results import started
from workflow_automation_provider.execution.retry import SendRetrier

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.batch.in_flight import Job
    from workflow_automation_provider.execution.batch.results import BatchItem, Results
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class BatchSender:
    """
    Sends items in threads, each until the service has acted on it.

    Once the batch is stopped, the threads give the items that are left a result, without sending
    them.

    :param hook: sends the requests
    :param retrier: how long the service may be busy or unreachable without interruption
    :param results: the results of earlier tries
    :param max_concurrency: how many requests are sent at a time
    :param max_per_second: the most requests to send in a second, None for no limit
    """

    def __init__(
        self,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        results: Results,
        *,
        max_concurrency: int,
        max_per_second: float | None,
    ) -> None:
        self.stopped_by: WorkflowAutomationError | None = None
        """Why nothing more is sent, None while the batch goes on."""
        self._hook = hook
        self._retrier = retrier
        self._results = results
        self._streak = FailureStreak(max_concurrency)
        self._stop_lock = Lock()

        # In the threads, a wait also ends with the batch.
        in_threads = SendRetrier(retrier.seconds, retrier.log, self._is_over)
        self._pace = Pace(in_threads, max_per_second)

        # What the threads are to send, and None for each to end.
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Wakes the main thread, once for each result.
        self._new_results: SimpleQueue[None] = SimpleQueue()

    # In the main thread ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self, number: int, template: Request) -> Iterator[None]:
        """
        Run the threads, over connections that are kept.

        :param number: how many threads
        :param template: a request without inputs
        """
        # Daemons, so that a request that hangs does not keep the process of an ended task alive.
        threads = [
            Thread(target=self._work, args=(template,), name=f"batch-{n}", daemon=True)
            for n in range(number)
        ]
        items = self._results.in_order()
        known_runs = (item["run_id"] for item in items if "run_id" in item)
        with self._hook.get_conn().keep_connections(known_runs):
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
        return self.stopped_by is not None or self._retrier.is_ended()

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
            result = started(job.index, run)
            self._log_response_not_kept(run, result)
        except BaseException as error:
            failure = _as_known(error)
            self._note_failure(failure)
            return self._results.without_run(job.index, status_of(failure), failure.reason)

        self._streak.end()
        return result

    def _send(self, job: Job, template: Request) -> Run:
        """Send an item until the service has acted on it."""
        request = with_inputs(template, job.item.inputs)

        def send() -> Run:
            # First, so that an interruption cannot miss it.
            job.may_be_sent = True
            try:
                if self._is_over():
                    raise NotSentError("The batch was stopped.")
                return self._hook.get_conn().trigger(request)
            except (BusyError, NotSentError):
                job.may_be_sent = False
                raise

        return self._pace.send(send)

    def _log_response_not_kept(self, run: Run, result: BatchItem) -> None:
        is_kept = result.get("response") == run.response
        if run.run_id is None and not is_kept:
            name = self._results.name_of(result["index"])
            text = one_line(json.dumps(run.response))
            self._retrier.log.info("The response for %s: %s", name, text)

    def _note_failure(self, error: WorkflowAutomationError) -> None:
        """Stop the batch, if no further item may be sent after this error."""
        stopped_by = self._streak.add(error, self._results.total)
        if stopped_by is None:
            return

        # Airflow may have ended the wait for a busy service.
        if self._retrier.is_ended() and isinstance(stopped_by, BusyError | NotSentError):
            stopped_by = NotSentError("The task was ended.")
        self.stop(stopped_by)


def _as_known(error: BaseException) -> WorkflowAutomationError:
    """Return an error of a request as one of ours."""
    if isinstance(error, WorkflowAutomationError):
        return error
    # Without its text, which may contain secrets.
    return OutcomeUnknownError(f"{type(error).__name__} while it was sent.")
