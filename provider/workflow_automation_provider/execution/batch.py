"""
Start a run for each item of a batch, each at most once.

All items are read and checked, then they are sent in chunks. One write records the results since the last one and opens the
next items, and is durable before one of them is sent (:mod:`~workflow_automation_provider.execution.batch_record`). The next
half of a chunk is opened while the other half is sent, so the threads do not wait for Airflow. After a kill, at most one chunk
is in doubt.

Only the main thread talks to Airflow: the record, the XComs and the log of the progress.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.exceptions import (
    BatchInterruptedError,
    Code,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch_record import counts_text
from workflow_automation_provider.execution.batch_sender import Job, Sender
from workflow_automation_provider.execution.batch_source import (
    DIGEST_BYTES,
    BatchSource,
    check_output,
    write_output,
)
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.batch_record import (
        BatchItem,
        BatchRecord,
        BatchSummary,
    )
    from workflow_automation_provider.execution.batch_source import Batch
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

OnRejected = Literal["fail", "skip"]
"""What the task does at the end if the service rejected items."""

PROGRESS_XCOM = "progress"
"""Key of the XCom with the counts, while the task runs."""

# What a write opens must fit into one entry of the task state store, and a person has to look for it after a kill.
_MAX_CHUNK, _MAX_CHUNK_BYTES = 256, 8 * 1024**2

# In seconds: how long a result may be unrecorded, how long a task that was interrupted waits for the responses to what it has
# sent, and between two lines of progress.
_MAX_UNRECORDED, _MAX_LAST_RESPONSES, _PROGRESS_INTERVAL = 1.0, 5.0, 5.0

# Seconds between two looks at whether something has ended.
_POLL_INTERVAL = 0.1

# About the key, or about one item that a firewall dislikes.
_FORBIDDEN = 403


class BatchStarter:
    """
    Start the runs of a batch that no earlier try started.

    :param record: what the task instance knows about the batch
    :param hook: sends the requests; closed afterwards
    :param retrier: how long the service may be busy or unreachable without interruption
    :param context: of the task, for the XComs
    :param start_again: whether the next try sends what is unknown
    :param fails_if_rejected: whether the batch fails if the service rejected items
    :param output_path: where to write the results; None to return them
    """

    def __init__(
        self,
        record: BatchRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        context: Context,
        *,
        batch: Batch,
        flow_id: str | None,
        max_concurrency: int,
        max_starts_per_second: float | None,
        start_again: bool,
        fails_if_rejected: bool,
        output_path: str | None,
    ) -> None:
        self._record = record
        self._hook = hook
        self._is_ended = retrier.is_ended
        self._log = retrier.log
        self._ti = context["ti"]
        self._source = BatchSource(batch, flow_id)
        self._flow_id = flow_id
        self._threads = max_concurrency
        self._chunk = min(4 * max_concurrency, _MAX_CHUNK)  # items in flight
        # Whether Airflow has a retry left that goes on with what this try recorded.
        self._is_continued = record.outlives_try and not record.is_last_try
        self._start_again = start_again
        self._fails_if_rejected = fails_if_rejected
        self._output = output_path
        self._sender = Sender(hook, retrier, max_starts_per_second)
        self._digests = bytearray()
        # By index, each until a write has recorded its result. An interruption may lose what the main thread takes from a queue,
        # but not this.
        self._open: dict[int, Job] = {}
        self._has_more = True
        self._stop: WorkflowAutomationError | None = None  # why the batch ends before its end
        self._streak = 0
        self._written_to: str | None = None
        self._began = self._logged = time.monotonic()
        self._left = 0  # by earlier tries

    def start(self) -> list[BatchItem] | BatchSummary:
        """
        Start the runs, and return the results of the items.

        :return: all items in the order of the batch; with an ``output_path``, the path and the counts
        :raises WorkflowAutomationError: if runs were not started, or it is unknown whether they were
        """
        try:
            missing = self._check()
            with self._hook:
                template = self._hook.prepare_trigger({}, self._flow_id) if missing else None
                if self._output:
                    check_output(self._output, self._source)
                if template:
                    self._start_missing(missing, template)
            return self._report()
        except BaseException as error:
            failed = error if isinstance(error, WorkflowAutomationError) else None
            if self._record.total and not self._is_continued and not failed:
                self._write_output(None)
            if isinstance(error, Exception):
                failed = failed or self._interrupted(error)
                is_stopped = self._stop is not None
                told = self._record.told(failed, is_stopped=is_stopped, output_path=self._written_to)
                raise told from failed.__cause__
            self._log.warning("%s %s", counts_text(self._record.counts), self._record.where(self._written_to))
            raise

    # Read ---------------------------------------------------------------------------------------------------

    def _check(self) -> int:
        """Read what earlier tries recorded, and check all items of the batch; return how many are to be sent."""
        self._record.read()
        missing = 0
        for item in self._source:
            missing += self._record.is_missing(item)
            self._digests += item.digest
        self._record.has_all(len(self._digests) // DIGEST_BYTES)
        self._left = self._record.counts["remaining"]
        if self._left < self._record.total:
            self._log.info("Earlier tries: %s", counts_text(self._record.counts))
        elif self._record.was_cleared:
            self._log.warning("The task has been cleared since an earlier try: starting all items again.")
        return missing

    def _jobs(self) -> Iterator[Job]:
        """Yield what is to be sent."""
        number = 0
        for number, item in enumerate(self._source, start=1):  # noqa: B007 - used after the loop
            place = item.place
            if self._digests[item.index * DIGEST_BYTES : (item.index + 1) * DIGEST_BYTES] != item.digest:
                break
            if self._record.is_missing(item):
                yield Job(item)
        else:
            if number == self._record.total:
                return
            place = self._source.place_of(number)
        raise InvalidRequestError(
            f"{place} changed while the batch was read.",
            next_step="Let the batch be complete before this task begins.",
        )

    # Open, send and settle ----------------------------------------------------------------------------------

    def _start_missing(self, missing: int, template: Request) -> None:
        threads = min(self._threads, missing)
        self._log.info(
            "Starting %d runs of %s via connection %s, %d at a time.",
            missing,
            f"flow {flow}" if (flow := self._hook.flow_of(template)) else "the flow of the API key",
            self._hook.workflow_automation_conn_id,
            threads,
        )
        self._log.info(
            "If this try is killed, up to %d runs may have been started that only a later try reports. After the last "
            "try, look in the workflow's list of runs.",
            min(self._chunk, missing),
        )
        jobs = self._jobs()
        with self._sender.threads(threads, template, self._record.run_ids()):
            try:
                while self._has_more or self._open:
                    if self._is_ended():
                        self._end_early(NotSentError("The task was ended."))
                    self._write(self._next(jobs))
                    self._collect()
                    self._show_progress()
            except BaseException as error:
                try:
                    self._await_last_responses(error)
                finally:  # also if it is interrupted
                    self._save_what_is_known()
                if not isinstance(error, Exception):
                    raise
                self._stop = self._stop or self._interrupted(error)

    @property
    def _unsettled(self) -> list[Job]:
        return [job for job in self._open.values() if not job.settled]

    def _next(self, jobs: Iterator[Job]) -> list[Job]:
        """Return the items to open: as many as there is room for, but none for less than half a chunk."""
        room, size = self._chunk - len(self._unsettled), 0
        opened: list[Job] = []
        try:
            while self._has_more and self._chunk / 2 <= room > len(opened) and size < _MAX_CHUNK_BYTES / 2:
                if job := next(jobs, None):
                    opened.append(job)
                    size += len(job.item.inputs)
                else:
                    self._has_more = False
        except WorkflowAutomationError as error:
            self._end_early(error)
        return [] if self._stop else opened

    def _write(self, opened: list[Job]) -> None:
        """Record what is known, and open and send the next items."""
        results = [job.settled for job in self._open.values() if job.settled]
        # Before the write: an interruption mentions them, rather than never.
        self._open |= {job.item.index: job for job in opened}
        self._record.write([job.item for job in opened], results)
        if not self._record.outlives_try:
            self._record.log_runs(self._log, results)
        for item in results:
            del self._open[item["index"]]
        for job in opened:
            job.is_open = True
            self._sender.send(job)

    def _collect(self) -> None:
        """Settle what the threads have done, until there is room for half a chunk, or results are to be recorded."""
        until = time.monotonic() + _MAX_UNRECORDED
        least = self._chunk // 2 if self._has_more else 0
        while len(self._unsettled) > least and time.monotonic() < until:
            for job in self._sender.collect(_POLL_INTERVAL):
                self._settle(job)
                self._look_at(job)

    def _settle(self, job: Job) -> None:
        """Note the result of an item; can be repeated after an interruption at any point."""
        if job.result:
            job.settled = job.settled or self._record.of_all_tries(job.result)
            self._record.put(job.settled)

    def _look_at(self, job: Job) -> None:
        """End the batch if an item's result says so."""
        status, error = (job.result or {}).get("status"), job.error
        if status == "not started":
            if error:
                self._end_early(error)
            return
        is_forbidden = error is not None and error.status == _FORBIDDEN
        self._streak = self._streak + 1 if is_forbidden or status in ("unknown", "unidentified") else 0
        # One concurrent burst can fail together; a longer streak means that the service is failing, or the key rejected.
        if error and is_forbidden and self._streak >= min(self._threads + 1, self._record.total):
            self._end_early(error)
        elif self._streak > self._threads:
            what = f"{self._streak} requests in a row had no usable response. The last one: "
            self._end_early(OutcomeUnknownError(what + (job.result or {}).get("why", "")))

    def _end_early(self, error: WorkflowAutomationError) -> None:
        """Send nothing more; what no thread has taken was not started."""
        self._has_more = False
        if self._stop is None:
            self._stop = error
            self._log.warning("Sending nothing more. %s", error.reason)
        for job in self._sender.stop():
            job.end("not started", self._stop.reason)
            self._settle(job)

    # Interruptions ------------------------------------------------------------------------------------------

    def _await_last_responses(self, error: BaseException) -> None:
        """Send nothing more after an error of Airflow or an interruption, and wait for the requests under way."""
        self._hook.stop()  # takes effect before the next hand-over
        self._log.warning("Sending nothing more. The batch ended with %s.", type(error).__name__)
        [*self._sender.stop()]  # no thread has them
        # An exception leaves time for the responses, which all have a timeout; an interruption does not.
        until = time.monotonic() + (float("inf") if isinstance(error, Exception) else _MAX_LAST_RESPONSES)
        while any(job.is_under_way for job in self._open.values()) and time.monotonic() < until:
            time.sleep(_POLL_INTERVAL)

    def _save_what_is_known(self) -> None:
        """Record and log the results of the items in flight, now that the batch is stopped."""
        jobs = [*self._open.values()]
        lost = []
        for job in jobs:
            if job.is_under_way:
                lost.append(job)
                job.end("unknown", "It had no response when the batch was interrupted.")
            elif not job.result:
                job.end("not started", "The batch was interrupted.")
            self._settle(job)
        results = [job.settled for job in jobs if job.settled and job not in lost]  # or the next try says so
        try:
            # The write that opens them raised, but may be durable.
            self._record.write([job.item for job in jobs if not job.is_open], [])
            self._record.write([], results)
            is_recorded = self._record.outlives_try
        except Exception:
            self._log.warning("The last results could not be recorded. They follow.")
            is_recorded = False
        if not is_recorded:
            self._record.log_runs(self._log, results)
        if lost:
            self._log.warning(
                "These items have no response yet, and may have started runs: %s",
                ", ".join(f"batch[{job.item.index}]" for job in lost),
            )

    def _interrupted(self, error: BaseException) -> WorkflowAutomationError:
        """Return the error for a batch that an unexpected one ended, such as of Airflow's task state store."""
        kind = BatchInterruptedError if self._record.outlives_try else WorkflowAutomationError
        text = ""
        with contextlib.suppress(Exception):  # some errors have no text, and some connections no client
            text = self._hook.get_conn().redact(f": {error}")
        happened = kind(f"The batch was interrupted by {type(error).__name__}{text}")
        interruption = kind(happened.reason, code=Code.BATCH_INTERRUPTED)
        interruption.__cause__ = error
        return interruption

    # Report -------------------------------------------------------------------------------------------------

    def _report(self) -> list[BatchItem] | BatchSummary:
        self._show_progress(at_the_end=True)
        error = self._stop or self._record.worst(fails_if_rejected=self._fails_if_rejected)
        also = (OutcomeUnknownError,) if self._start_again else ()
        is_retried = (
            isinstance(error, (*LEFT_TO_AIRFLOW, BatchInterruptedError, *also)) and not self._is_ended()
        )
        # Left to the next try, which may be running already: it starts more than an earlier file would say.
        if not (self._is_continued and is_retried):
            error = self._write_output(error)
        if error:
            raise error
        return {"path": self._output, **self._record.counts} if self._output else list(self._items())

    def _write_output(self, error: WorkflowAutomationError | None) -> WorkflowAutomationError | None:
        """Write the output file, if there is to be one; return the error to end with."""
        if not self._output:
            return error
        try:
            write_output(self._output, self._items())
        except FileUnavailableError as failure:
            if self._is_continued:
                return error or failure  # the next try starts nothing again, and writes it
            self._log.exception("The output file could not be written. Its runs follow.")
            self._record.log_runs(self._log, self._record.in_order())
            return error or WorkflowAutomationError(
                "The output file could not be written. The log names the runs.", code=Code.FILE
            )
        self._written_to = self._output
        return error

    def _items(self) -> Iterator[BatchItem]:
        for item in self._record.in_order(self._stop.reason if self._stop else ""):
            if item["status"] == "started" and self._flow_id is not None:
                # So that an upload can be mapped over the items.
                item["flow_id"] = self._flow_id
            yield item

    def _show_progress(self, *, at_the_end: bool = False) -> None:
        """Log progress and throughput, unless it is too early for that."""
        now = time.monotonic()
        if not at_the_end and now - self._logged < _PROGRESS_INTERVAL:
            return
        self._logged = now
        counts = self._record.counts
        rate = (self._left - counts["remaining"]) / max(now - self._began, 0.001)
        left = f", {counts['remaining'] / rate:.0f} s left" if rate and counts["remaining"] else ""
        self._log.info("%s", f"{counts_text(counts)} {rate:.1f} per second{left}.")
        try:
            self._ti.xcom_push(key=PROGRESS_XCOM, value=counts)
        except Exception:
            self._log.warning("The progress could not be stored as an XCom.", exc_info=True)
