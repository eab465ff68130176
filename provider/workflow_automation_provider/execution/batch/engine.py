"""
Open the items of a batch in its ledger, have them sent, settle and record them, in chunks.

One write records the results since the last one and opens the next items, and is durable before one of them is sent
(:mod:`~workflow_automation_provider.execution.batch_state`). The next half of a chunk is opened while the other half is
sent, so the threads do not wait for Airflow. After a kill, at most one chunk is in doubt.

Only the main thread talks to Airflow: the record, the XComs and the log of the progress.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import OutcomeUnknownError, WorkflowAutomationError
from workflow_automation_provider.execution.batch.errors import interrupted, task_ended, too_many_unknown
from workflow_automation_provider.execution.batch.report import Progress, named_runs
from workflow_automation_provider.execution.batch.sender import Job, Sender
from workflow_automation_provider.execution.batch_state import STATES
from workflow_automation_provider.execution.ledger import State

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.results import ItemResults
    from workflow_automation_provider.execution.batch.source import Batch
    from workflow_automation_provider.execution.batch_state import BatchItem, BatchRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start import OnUnknownStart
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# What a write opens must fit into one entry of the task state store, and a person has to look for it after a kill.
_MAX_CHUNK, _MAX_CHUNK_BYTES = 256, 8 * 1024**2

# In seconds: how long a result may be unrecorded, and how long a task that was interrupted waits for the responses to
# what it has sent.
_MAX_UNRECORDED, _MAX_LAST_RESPONSES = 1.0, 5.0

# Seconds between two looks at whether the task was ended, or the last responses are there.
_POLL_INTERVAL = 0.1

# What a service that is failing makes of items.
_UNUSABLE = ("unknown", "unidentified")

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
    :param output_path: where to write the results; None to return them
    """

    batch: Batch
    flow_id: str | None
    max_concurrency: int
    max_starts_per_second: float | None
    on_unknown_start: OnUnknownStart
    on_rejected: OnRejected
    output_path: str | None

    @property
    def chunk(self) -> int:
        """How many items may be in flight: opened by a write, and without a recorded result."""
        return min(4 * self.max_concurrency, _MAX_CHUNK)


@dataclass(slots=True)
class Stop:
    """Why the batch ends before its end, and the error for it."""

    error: WorkflowAutomationError
    why: str


class BatchEngine:
    """
    Open, send, settle and record.

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
        self._plan = plan
        self._progress = progress
        self._sender = Sender(hook, retrier, plan.max_starts_per_second)
        # The items in flight, by index, each until a write has recorded its result. An interruption may lose what the main
        # thread takes from a queue, but not this.
        self._open: dict[int, Job] = {}
        self._has_more = True
        self.is_logged = not record.outlives_try
        """Whether the log names runs that the record does not."""
        self._streak = 0

    def run(self, jobs: Iterator[Job], threads: int) -> None:
        """
        Open items and settle them, until there are no more or the batch ends early, see :attr:`stop`.

        :param threads: how many requests to send at a time
        """
        with self._sender.threads(threads, self._results.run_ids()):
            try:
                while self._has_more or self._open:
                    if self._retrier.is_ended() and not self.stop:
                        self._end_early(Stop(task_ended(), "The task was ended by Airflow."))
                    self._write(self._next(jobs))
                    self._collect()
                    self._progress.log(self._results)
            except BaseException as error:
                try:
                    self._await_last_responses(error)
                finally:  # also if it is interrupted
                    self._save_what_is_known()
                self.stop = self.stop or Stop(self.interrupted(error), "The batch was interrupted.")
                if not isinstance(error, Exception):
                    raise

    def interrupted(self, error: BaseException) -> WorkflowAutomationError:
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

    # Open ---------------------------------------------------------------------------------------------------

    @property
    def _unsettled(self) -> int:
        return sum(not job.settled for job in self._open.values())

    def _next(self, jobs: Iterator[Job]) -> list[Job]:
        """Return the items to open: as many as there is room for, but none for less than half a chunk."""
        room, size = self._plan.chunk - self._unsettled, 0
        opened: list[Job] = []
        try:
            while (
                self._has_more
                and room >= self._plan.chunk / 2
                and len(opened) < room
                and size < _MAX_CHUNK_BYTES / 2
            ):
                if job := next(jobs, None):
                    opened.append(job)
                    size += len(job.request.content)
                else:
                    self._has_more = False
        except WorkflowAutomationError as error:
            self._end_early(Stop(error, error.reason))
        return [] if self.stop else opened

    def _write(self, opened: Sequence[Job]) -> None:
        """Record what is known, and open the next items."""
        results = [job.settled for job in self._open.values() if job.settled]
        if not opened and not results:
            return
        # Before the write: an interruption mentions them, rather than never.
        self._open |= {job.index: job for job in opened}
        self._record.write([(job.index, job.digest) for job in opened], results)
        if not self._record.outlives_try:
            self.log_runs(results)
        for job in opened:
            self._ledger.open(job.index, job.digest)
        for item in results:
            del self._open[item["index"]]
        self._sender.send(opened)

    # Settle -------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Settle what the threads have done, until there is room for half a chunk, or results are to be recorded."""
        until = time.monotonic() + _MAX_UNRECORDED
        least = self._plan.chunk // 2 if self._has_more else 0
        while self._unsettled > least and time.monotonic() < until:
            for job in self._sender.collect(_POLL_INTERVAL):
                self._settle(job)

    def _settle(self, job: Job) -> None:
        """Note the result of an item, and end the batch if it says so."""
        self._settled(job)
        status = job.result["status"]
        if job.ends_batch:
            self._end_early(Stop(job.ends_batch, job.result["why"]))
        if status == "not started":
            return None
        self._streak = self._streak + 1 if job.forbidden or status in _UNUSABLE else 0
        # One concurrent burst can fail together; a longer streak means that the service is failing, or the key rejected.
        is_whole_batch = job.forbidden is not None and self._streak == self._results.total
        if self._streak <= self._plan.max_concurrency and not is_whole_batch:
            return None
        if job.forbidden:
            return self._end_early(Stop(job.forbidden, job.result["why"]))
        error = too_many_unknown(self._streak, job.result.get("why", ""))
        return self._end_early(Stop(error, "Too many outcomes in a row were unknown."))

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
                    why = OutcomeUnknownError(f"{why} Later rejected: {item['why']}").reason
                item = {"index": job.index, "status": "unknown", "why": why}
            self._results.put(item)
            job.settled = item
        return job.settled

    def _end_early(self, stop: Stop) -> None:
        """Send nothing more; what no thread has taken was not started."""
        self._has_more = False
        if self.stop is None:
            self.stop = stop
            self._log.warning("Sending nothing more. %s", stop.why)
        for job in self._sender.stop():
            job.end("not started", self.stop.why)
            self._settled(job)

    # Interruptions ------------------------------------------------------------------------------------------

    def _await_last_responses(self, error: BaseException) -> None:
        """Send nothing more after an error of Airflow or an interruption, and wait for the requests under way."""
        self._hook.stop()  # takes effect before the next hand-over
        self._log.warning("Sending nothing more. The batch ended with %s.", type(error).__name__)
        for _ in self._sender.stop():
            pass  # no thread has it
        # An exception leaves time for the responses, which all have a timeout; an interruption does not.
        until = time.monotonic() + (float("inf") if isinstance(error, Exception) else _MAX_LAST_RESPONSES)
        while any(job.is_under_way for job in self._open.values()) and time.monotonic() < until:
            time.sleep(_POLL_INTERVAL)

    def _save_what_is_known(self) -> None:
        """Record and log the results of the items in flight, now that the batch is stopped."""
        jobs = [*self._open.values()]
        lost = {job.index: job for job in jobs if job.is_under_way}
        # The write that opens them raised, but may be durable.
        unopened = [
            job for job in jobs if not job.result and not job.is_taken and not self._ledger.is_open(job.index)
        ]
        for job in unopened:
            self._ledger.open(job.index, job.digest)
        for job in jobs:
            if job.index in lost:
                job.end("unknown", "It had no response when the batch was interrupted.")
            elif not job.result:
                job.end("not started", "The batch was interrupted.")
        results = [self._settled(job) for job in jobs if job.index not in lost]
        for job in lost.values():
            self._settled(job)  # not recorded: the next try says so as well
        try:
            # An entry has results only of items that an earlier one opened.
            if unopened:
                self._record.write([(job.index, job.digest) for job in unopened], [])
            if results:
                self._record.write([], results)
            is_recorded = self._record.outlives_try
        except Exception:
            self._log.warning("The last results could not be recorded. They follow.")
            is_recorded = False
        if not is_recorded:
            self.log_runs(results)
        if lost:
            self._log.warning(
                "These items have no response yet, and may have started runs: %s",
                ", ".join(f"batch[{index}]" for index in lost),
            )
