"""
The driver of a batch: opens items in its ledger, has them sent, and collects their results.

- **Open**: one write records the results since the last one, and opens the next items
  (:mod:`~workflow_automation_provider.execution.batch_state`).
- **Send** the open items, each once, from several threads (:mod:`~.sender`).
- **Collect** the results, and settle them in the ledger.

Only the main thread talks to Airflow: the record, the XComs and the log of the progress. It reads and writes while the
threads send, so that they wait only if the window has no room left.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import WorkflowAutomationError
from workflow_automation_provider.execution.batch.report import Progress, named_runs
from workflow_automation_provider.execution.batch.sender import Job, Sender
from workflow_automation_provider.execution.batch.window import Window
from workflow_automation_provider.execution.batch_state import STATES
from workflow_automation_provider.execution.ledger import State
from workflow_automation_provider.failures import request_error, shortened
from workflow_automation_provider.failures.batch import interrupted, task_ended, too_many_unknown

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.results import ItemResults
    from workflow_automation_provider.execution.batch.source import Batch
    from workflow_automation_provider.execution.batch_state import BatchItem, BatchRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start import OnUnknownStart
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# In seconds: the longest wait for a result, how long a task that was interrupted waits for the responses to what it has
# sent, and how often it looks for them.
_COLLECT_TIMEOUT, _MAX_LAST_RESPONSES, _POLL_INTERVAL = 0.1, 5.0, 0.02


OnRejected = Literal["fail", "skip"]
"""What the task does at the end if the service rejected items."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """
    What to start, and how.

    :param batch: as the DAG author gave it, rendered
    :param flow_id: the flow, None if the API key identifies it
    :param max_concurrency: how many requests are sent at a time
    :param max_starts_per_second: None for no limit
    :param window_size: how many items may be in flight
    :param output_path: where to write the results; None to return them
    """

    batch: Batch
    flow_id: str | None
    max_concurrency: int
    max_starts_per_second: float | None
    window_size: int
    on_unknown_start: OnUnknownStart
    on_rejected: OnRejected
    output_path: str | None


@dataclass(slots=True)
class Stop:
    """Why the batch ends before its end, and the error for it."""

    error: WorkflowAutomationError
    why: str


class BatchDriver:
    """
    Open, send and collect.

    :param record: what the task instance knows about the batch
    :param results: of earlier tries, and their ledger
    :param hook: sends the requests
    :param retrier: how long the service may be busy or unreachable without interruption
    :param progress: logs how far the batch is
    """

    stop: Stop | None = None
    """Why the batch ends before its end."""

    def __init__(
        self,
        record: BatchRecord,
        results: ItemResults,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        plan: BatchPlan,
        progress: Progress,
    ) -> None:
        self._record = record
        record.counts = lambda: results.counts
        self._ledger = results.ledger
        self._results = results
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._telemetry = record.telemetry
        self._plan = plan
        self._progress = progress
        self._sender = Sender(hook, retrier, plan.max_starts_per_second)
        self._window = Window(plan.window_size)
        # All that is open, by index. An interruption may lose what the main thread takes from a queue, but not this.
        self._under_way: dict[int, Job] = {}
        self.is_logged = not record.outlives_try
        """Whether the log names runs that the record does not."""
        self._unknown_in_a_row = 0
        self._writes = 0
        self._writing = 0.0  # seconds

    def run(self, jobs: Iterator[Job], threads: int) -> None:
        """
        Open items and collect their results, until there are no more or the batch ends early, see :attr:`stop`.

        :param threads: how many requests to send at a time
        """
        with self._sender.threads(threads, self._results.run_ids()):
            self._run(jobs)
        if self._record.outlives_try and self._writes:
            self._log.info(
                "The record took %d writes of %.0f ms.", self._writes, self._writing / self._writes * 1000
            )

    def interrupted(self, error: Exception) -> WorkflowAutomationError:
        """Return the error for a batch that an unexpected one ended, such as of Airflow's task state store."""
        return interrupted(
            error,
            lambda text: self._hook.get_conn().redact(text),
            is_continued=self._record.outlives_try,
        )

    def log_runs(self, items: Iterable[BatchItem]) -> None:
        """Name the runs in the log, where no record does."""
        for line in named_runs(items):
            self._log.info("Runs: %s", one_line(line))
        self.is_logged = True

    def _run(self, jobs: Iterator[Job]) -> None:
        """Open items and collect their results, until there are no more."""
        try:
            following = self._next(jobs)
            while True:
                if self._retrier.is_ended() and not self.stop:
                    self._end_early(Stop(task_ended(), "The task was ended by Airflow."))
                more = following is not None and not self.stop
                if not more and not self._window.open:
                    return
                if self._window.is_due(self._sender.waiting, time.monotonic(), more=more):
                    following = self._write(following, jobs)
                else:
                    self._collect(_COLLECT_TIMEOUT)
                self._progress.log(self._results)
        except BaseException as error:
            try:
                self._await_last_responses(error)
            finally:  # also if it is interrupted
                self._save_what_is_known()
            if not isinstance(error, Exception):
                raise
            if self.stop is None:
                self.stop = Stop(self.interrupted(error), "The batch was interrupted.")

    def _next(self, jobs: Iterator[Job]) -> Job | None:
        try:
            return next(jobs, None)
        except WorkflowAutomationError as error:
            self._end_early(Stop(error, shortened(error.message)))
            return None

    def _write(self, following: Job | None, jobs: Iterator[Job]) -> Job | None:
        """Record what is known, and open the next items; return the first that was not opened."""
        opened: list[Job] = []
        while following and not self.stop and len(opened) < self._window.room:
            opened.append(following)
            following = self._next(jobs)
        if self.stop:
            opened = []
        results = self._window.take_results()
        began = time.monotonic()
        for job in opened:
            self._under_way[job.index] = job
        self._record.write([(job.index, job.digest) for job in opened], results)
        self._writes += 1
        self._writing += time.monotonic() - began
        # While its items are under way: an interruption mentions them again, rather than never.
        if not self._record.outlives_try:
            self.log_runs(results)
        for job in opened:
            self._ledger.open(job.index, job.digest)
        self._window.written([job.index for job in opened], results, self._sender.done)
        recorded = [self._under_way.pop(item["index"]) for item in results]
        self._sender.send(opened)
        self._count(recorded)
        return following

    def _count(self, jobs: Iterable[Job]) -> None:
        """Count the outcomes of the requests of items, as for single runs, once they are recorded."""
        counts: Counter[str] = Counter()
        for job in jobs:
            counts["runs.retried"] += job.retried
            if job.metric:
                counts[job.metric] += 1
            for seconds in job.took:
                self._telemetry.time("runs.response_time", seconds)
        for name, number in counts.items():
            self._telemetry.count(name, number)

    def _collect(self, seconds: float) -> None:
        """Settle what the threads have done, waiting for the first of it."""
        for job in self._sender.collect(seconds):
            if job.ends_batch:
                error = request_error(job.ends_batch)
                self._hook.locate(error, self._hook.flow_of(job.request))
                self._end_early(Stop(error, job.result["why"]))
            if stop := self._settle(job):
                self._end_early(stop)

    def _settle(self, job: Job) -> Stop | None:
        """Note the result of an item; return why the batch is to end, None if it is not."""
        self._window.settle(self._settled(job), time.monotonic())
        if job.result["status"] in ("unknown", "unidentified"):
            self._unknown_in_a_row += 1
        elif job.result["status"] != "not started":
            self._unknown_in_a_row = 0
        # One concurrent burst can fail together; a longer streak means that the service is failing.
        if self._unknown_in_a_row <= self._plan.max_concurrency:
            return None
        error = too_many_unknown(self._unknown_in_a_row, job.result.get("why", ""))
        return Stop(error, "Too many outcomes in a row were unknown.")

    def _settled(self, job: Job) -> BatchItem:
        """Settle an item, and return its result in all tries; can be repeated after an interruption at any point."""
        if not job.settled:
            outcome = STATES[job.result["status"]]
            if self._ledger.is_open(job.index):
                self._ledger.settle(job.index, outcome)
            item = job.result
            if self._ledger.state(job.index) is not outcome:
                # This try started nothing, an earlier one may have.
                why = self._results.why(job.index)
                if outcome is State.REJECTED:
                    why = shortened(f"{why} Later rejected: {item['why']}")
                item = {"index": job.index, "status": "unknown", "why": why}
            self._results.put(item)
            job.settled = item
        return job.settled

    def _end_early(self, stop: Stop) -> None:
        """Send nothing more; what is waiting was not started."""
        self._sender.is_stopped = True
        if self.stop is None:
            self.stop = stop
            self._log.warning("Sending nothing more. %s", stop.why)
        for job in self._sender.stop():
            job.end("not started", stop.why)
            self._settle(job)

    # Interruptions ------------------------------------------------------------------------------------------

    def _await_last_responses(self, error: BaseException) -> None:
        """Send nothing more after an error of Airflow or an interruption, and wait for the requests under way."""
        self._hook.stop()  # takes effect before the next hand-over
        self._sender.is_stopped = True
        self._log.warning("Sending nothing more. The batch ended with %s.", type(error).__name__)
        # An exception leaves time for the responses, which all have a timeout; an interruption does not.
        deadline = time.monotonic() + (float("inf") if isinstance(error, Exception) else _MAX_LAST_RESPONSES)
        for _ in self._sender.stop():
            pass  # its job is under way
        while any(job.is_under_way for job in self._under_way.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)

    def _save_what_is_known(self) -> None:
        """Record and log the results of the requests under way, now that the batch is stopped."""
        done: list[Job] = []
        unsettled: list[Job] = []
        for job in self._under_way.values():
            (unsettled if job.is_under_way else done).append(job)
        # The write that opens them raised, but may be durable.
        unopened = [job for job in done if not job.result and not self._ledger.is_open(job.index)]
        for job in unopened:
            self._ledger.open(job.index, job.digest)
        for job in done:
            if not job.result:
                job.end("not started", "The batch was interrupted.")
        results = [self._settled(job) for job in done]
        for job in unsettled:
            job.end("unknown", "It had no response when the batch was interrupted.")
            self._settled(job)
        if not self._record_last(results, unopened):
            self.log_runs(results)
        if unsettled:
            self._log.warning(
                "These items have no response yet, and may have started runs: %s",
                ", ".join(f"batch[{job.index}]" for job in unsettled),
            )
        self._count(done)

    def _record_last(self, results: Sequence[BatchItem], unopened: Sequence[Job]) -> bool:
        """Record the last results; return whether a later try finds them."""
        late = {job.index for job in unopened}
        try:
            if results:
                # An entry has results only of items that it or an earlier one opened.
                self._record.write(
                    [(job.index, job.digest) for job in unopened],
                    [item for item in results if item["index"] not in late],
                )
            if late:
                self._record.write([], [item for item in results if item["index"] in late])
        except Exception:
            self._log.warning("The last results could not be recorded. They follow.")
            return False
        return self._record.outlives_try
