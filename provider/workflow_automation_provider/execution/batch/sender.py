"""
Start a run for each item of a batch, each at most once.

All items are read and checked, then they are sent in chunks. One write records the results since
the last one and opens the next items, and is durable before one of them is sent
(:mod:`~workflow_automation_provider.execution.batch.record`). The next half of a chunk is opened
while the other half is sent, so the threads do not wait for Airflow. After a kill, at most one
chunk is in doubt.

Once the batch is stopped, the threads take what is open without sending it. Only the main thread
talks to Airflow: the record, the XComs and the log of the progress.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Literal, cast

from workflow_automation_provider.client.protocol import with_inputs
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    BatchInterruptedError,
    BusyError,
    Code,
    FileUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.pace import Pace
from workflow_automation_provider.execution.batch.record import counts_text, started, status_of
from workflow_automation_provider.execution.batch.source import (
    BatchSource,
    check_output,
    write_output,
)
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW, SendRetrier

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.batch.record import (
        BatchItem,
        BatchRecord,
        BatchSummary,
    )
    from workflow_automation_provider.execution.batch.source import Batch, Item
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

OnRejected = Literal["fail", "skip"]
"""What the task does at the end if the service rejected items."""

PROGRESS_XCOM = "progress"
"""Key of the XCom with the counts, while the task runs."""

# What one write opens must fit into one entry, and after a kill a person has to look for all of it.
_MAX_CHUNK = 256
_MAX_CHUNK_BYTES = 8 * 1024**2

# Seconds that a result may stay unrecorded.
_MAX_UNRECORDED = 1.0

# Seconds that an interrupted task waits for the responses to what it has sent.
_MAX_LAST_RESPONSES = 5.0

# Seconds between two lines of progress.
_PROGRESS_INTERVAL = 5.0

# Seconds between two looks at whether something has ended.
_POLL_INTERVAL = 0.1


@dataclass(eq=False)
class _Job:
    """An item in flight: a write opens it, and none has recorded its result yet."""

    item: Item
    may_be_sent: bool = False
    """Whether a thread sends it, unless the batch is stopped."""
    result: BatchItem | None = None
    """The result over all tries, None until it is known."""


class BatchStarter:
    """
    Start the runs of a batch that no earlier try started.

    :param record: what earlier tries recorded, and this one records
    :param hook: sends the requests
    :param retrier: how long the service may be busy or unreachable without interruption
    :param context: the task's context, for the XComs
    :param fails_if_rejected: whether the batch fails if the service rejected items
    :param output_path: where to write the results; None to return them
    :param key: the name of the input by which people recognize an item, None for none
    :raises InvalidRequestError: if it cannot be a batch
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
        fails_if_rejected: bool,
        output_path: str | None,
        key: str | None,
    ) -> None:
        self.record = record
        self.hook = hook
        self.retrier = retrier
        self.context = context
        self.flow_id = flow_id
        self.max_concurrency = max_concurrency
        self.fails_if_rejected = fails_if_rejected
        self.output_path = output_path
        self._has_key = key is not None
        self._log = retrier.log
        self._source = BatchSource(
            batch, flow_id, key, redact=lambda text: hook.get_conn().redact(text)
        )

        # Whether Airflow has a retry left that goes on with what this try recorded.
        self._is_continued = record.outlives_try and not record.is_last_try

        # Once it is known that it can be written.
        self._output: str | None = None

        # The items in flight, by index.
        self._open: dict[int, _Job] = {}
        self._chunk = min(4 * max_concurrency, _MAX_CHUNK)
        self._has_more = True

        # Why the batch ends early.
        self._stop: WorkflowAutomationError | None = None

        # What the threads are to send, and None for each to end; what wakes the main thread.
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()

        # In the threads, a wait also ends with the batch.
        in_threads = SendRetrier(retrier.seconds, retrier.log, lambda: not self._goes_on)
        self._pace = Pace(in_threads, max_starts_per_second)

        # Requests in a row that had no usable response, in all threads.
        self._failures = 0
        self._failures_lock = Lock()

        # For the progress: the items that earlier tries left, and when it was logged.
        self._left = 0
        self._began = time.monotonic()
        self._logged = self._began

    def start(self) -> list[BatchItem] | BatchSummary:
        """
        Start the runs, and return the results of the items.

        :return: all items in the order of the batch; with an ``output_path``, the path and the
            counts
        :raises WorkflowAutomationError: if runs were not started, or it is unknown whether they
            were
        """
        try:
            missing = self._check()
            template = self.hook.prepare_trigger({}, self.flow_id) if missing else None
            if self.output_path:
                check_output(self.output_path, self._source)
                self._output = self.output_path
            if template:
                self._start_missing(missing, template)
            return self._report()
        except WorkflowAutomationError as error:
            raise self.record.told(error) from error.__cause__
        except Exception as error:
            raise self.record.told(self._interrupted(error)) from error
        except BaseException:
            if not self._is_continued:
                self._write_output()
            self._log.warning("%s %s", counts_text(self.record.counts), self.record.where())
            raise

    def _check(self) -> int:
        """
        Read what earlier tries recorded, and check all items; return how many are to be sent.

        :raises WorkflowAutomationError: if an item cannot be sent, or has changed
        """
        self.record.read()
        if self._has_key:
            self.hook.get_conn()  # each key is searched for secrets
        missing = self.record.check(self._source)
        counts = self.record.counts
        self._left = counts["remaining"]
        if self._left < counts["total"]:
            self._log.info("Earlier tries: %s", counts_text(counts))
        elif self.record.was_cleared:
            self._log.warning(
                "The task has been cleared since an earlier try: starting all items again."
            )
        return missing

    # Open and record ------------------------------------------------------------------------------

    def _start_missing(self, missing: int, template: Request) -> None:
        target = {
            "conn_id": self.hook.workflow_automation_conn_id,
            "flow_id": template.flow_id,
        }
        if self.output_path:
            target["output_path"] = without_credentials(self.output_path)
        self.record.target = target
        threads = min(self.max_concurrency, missing)
        flow = "the flow of the API key"
        if template.flow_id:
            flow = f"flow {template.flow_id}"
        self._log.info(
            "Starting %d runs of %s via connection %s, %d at a time.",
            missing,
            flow,
            self.hook.workflow_automation_conn_id,
            threads,
        )
        self._log.info(
            "If this try is killed, up to %d runs may have been started that only a later try "
            "reports. After the last try, look in the workflow's list of runs.",
            min(self._chunk, missing),
        )

        items = self.record.to_send(self._source)
        with self._running_threads(threads, template):
            try:
                while self._has_more or self._open:
                    if self.retrier.is_ended():
                        self._end_early(NotSentError("The task was ended."))
                    self._write(self._next(items))
                    self._await_results()
                    self._show_progress()
            except BaseException as error:
                try:
                    self._await_last_responses(error)
                finally:  # also if it is interrupted
                    self._save_what_is_known()
                if not isinstance(error, Exception):
                    raise

    def _unanswered(self) -> list[_Job]:
        """Return the items in flight that have no result yet."""
        return [job for job in self._open.values() if not job.result]

    def _next(self, items: Iterator[Item]) -> list[Item]:
        """Return the next items to open: as many as there is room for, or none."""
        opened: list[Item] = []
        room = self._chunk - len(self._unanswered())
        if self._stop or room < self._chunk / 2:
            return opened

        size = 0
        try:
            while self._has_more and len(opened) < room and size < _MAX_CHUNK_BYTES / 2:
                item = next(items, None)
                if item is None:
                    self._has_more = False
                    break
                opened.append(item)
                size += len(item.inputs)
        except WorkflowAutomationError as error:
            self._end_early(error)

        # A thread may have ended the batch meanwhile.
        if self._stop:
            return []
        return opened

    def _write(self, opened: list[Item]) -> None:
        """Record what is known, and open and send the next items."""
        results: list[BatchItem] = []
        unanswered: list[int] = []
        for index, job in self._open.items():
            if job.result:
                results.append(job.result)
            else:
                unanswered.append(index)

        # Before the write, so that an interruption mentions them.
        jobs = [_Job(item) for item in opened]
        self._open |= {job.item.index: job for job in jobs}

        self.record.write(opened, results, in_flight=unanswered)
        if not self.record.outlives_try:
            self.record.log_runs(self._log, results)
        for item in results:
            del self._open[item["index"]]
        for job in jobs:
            self._waiting.put(job)

    def _await_results(self) -> None:
        """Wait until there is room for half a chunk, or results are to be recorded."""
        until = time.monotonic() + _MAX_UNRECORDED
        while time.monotonic() < until:
            most = self._chunk // 2 if self._has_more else 0
            has_room = len(self._unanswered()) <= most
            if has_room:
                return
            with contextlib.suppress(Empty):
                self._done.get(timeout=_POLL_INTERVAL)

    def _end_early(self, error: WorkflowAutomationError) -> None:
        """Send nothing more; what no thread has sent was not started."""
        self._has_more = False
        if self._stop is None:
            self._stop = error
            self._log.warning("Sending nothing more. %s", error.reason)

    # In the threads -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _running_threads(self, number: int, template: Request) -> Iterator[None]:
        # Daemons, so that a request that hangs does not keep the process of an ended task alive.
        threads = [
            Thread(target=self._work, args=(template,), name=f"batch-{n}", daemon=True)
            for n in range(number)
        ]
        known_runs = (item["run_id"] for item in self.record.in_order() if "run_id" in item)
        with self.hook.get_conn().keep_connections(known_runs):
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                for _ in threads:
                    self._waiting.put(None)

    @property
    def _goes_on(self) -> bool:
        return not self._stop and not self.retrier.is_ended()

    def _work(self, template: Request) -> None:
        while job := self._waiting.get():
            index = job.item.index
            try:
                run = self._request(job, template)
                job.result = started(index, run, self._log, self.record.name_of(index))
                self._note_success()
            except BaseException as error:
                known = _as_known(error)
                self._note_failure(known)
                job.result = self.record.without_run(index, status_of(known), known.reason)
            self._done.put(None)

    def _request(self, job: _Job, template: Request) -> Run:
        """Send an item until the service has acted on it."""
        request = with_inputs(template, job.item.inputs)

        def send() -> Run:
            # First, so that an interruption cannot miss it.
            job.may_be_sent = True
            try:
                if not self._goes_on:
                    raise NotSentError("The batch was stopped.")
                return cast("Run", self.hook.get_conn().send(request))
            except (BusyError, NotSentError):
                job.may_be_sent = False
                raise

        return self._pace.send(send)

    def _note_success(self) -> None:
        with self._failures_lock:
            self._failures = 0

    def _note_failure(self, error: WorkflowAutomationError) -> None:
        """End the batch if the outcome of a request says so."""
        status = status_of(error)
        # It is about the key, or about one item that a firewall dislikes.
        is_forbidden = error.status == HTTPStatus.FORBIDDEN
        with self._failures_lock:
            if status == "not started":
                # Airflow may have ended the wait for a busy service.
                if self.retrier.is_ended() and isinstance(error, BusyError | NotSentError):
                    error = NotSentError("The task was ended.")
                self._end_early(error)
                return

            is_usable = status == "rejected" and not is_forbidden
            self._failures = 0 if is_usable else self._failures + 1

            # One concurrent burst can fail together; a longer streak means that the service is
            # failing, or the key rejected.
            if is_forbidden:
                if self._failures >= min(self.max_concurrency + 1, self.record.total):
                    self._end_early(error)
            elif self._failures > self.max_concurrency:
                what = f"{self._failures} requests in a row had no usable response."
                last = f"The last one: {error.reason}"
                self._end_early(OutcomeUnknownError(f"{what} {last}"))

    # Interruptions --------------------------------------------------------------------------------

    def _await_last_responses(self, error: BaseException) -> None:
        """Send nothing more, and wait for the responses to the requests under way."""
        # Takes effect before the next hand-over.
        self.hook.stop()
        self._end_early(self._interrupted(error))

        # An exception leaves time for the responses, which all have a timeout; an interruption
        # does not.
        until = float("inf")
        if not isinstance(error, Exception):
            until = time.monotonic() + _MAX_LAST_RESPONSES
        while any(job.may_be_sent for job in self._unanswered()) and time.monotonic() < until:
            time.sleep(_POLL_INTERVAL)

    def _save_what_is_known(self) -> None:
        """Record and log the results of the items in flight, now that the batch is stopped."""
        lost = []
        for job in self._unanswered():
            index = job.item.index
            status, why = "not started", "The batch was interrupted."
            if job.may_be_sent:
                lost.append(self.record.name_of(index))
                status, why = "unknown", "It had no response when the batch was interrupted."
            job.result = self.record.without_run(index, status, why)

        results = [job.result for job in self._open.values() if job.result]
        try:
            # Twice: a write that was interrupted may yet take the place of the first one.
            for _ in range(2):
                self.record.write([], results)
            is_recorded = self.record.outlives_try
        except Exception:
            self._log.warning("The last results could not be recorded. They follow.")
            is_recorded = False

        if not is_recorded:
            self.record.log_runs(self._log, results)
        if lost:
            what = "These items have no response yet, and may have started runs: %s"
            self._log.warning(what, ", ".join(lost))

    def _interrupted(self, error: BaseException) -> WorkflowAutomationError:
        """Return the error for a batch that an unexpected error ended."""
        kind = BatchInterruptedError if self.record.outlives_try else WorkflowAutomationError
        text = ""
        # Some errors have no text, and some connections no client.
        with contextlib.suppress(Exception):
            text = self.hook.get_conn().redact(f": {error}")
        reason = kind(f"The batch was interrupted by {type(error).__name__}{text}").reason
        interruption = kind(reason, code=Code.BATCH_INTERRUPTED)
        interruption.__cause__ = error
        return interruption

    # Report ---------------------------------------------------------------------------------------

    def _report(self) -> list[BatchItem] | BatchSummary:
        self._show_progress(at_the_end=True)
        error = self._stop or self.record.worst(fails_if_rejected=self.fails_if_rejected)

        # The next try, which may be running already, writes the file: it starts more than this one
        # knows.
        if not (self._is_continued and self._is_retried(error)):
            failure = self._write_output()
            error = error or failure
        if error:
            raise error

        if self._output:
            return {"path": self._output, **self.record.counts}
        return list(self._items())

    def _is_retried(self, error: WorkflowAutomationError | None) -> bool:
        """Return whether Airflow retries the task after an error, if it has a retry left."""
        if self.retrier.is_ended():
            return False
        if isinstance(error, OutcomeUnknownError):
            return self.record.start_again
        return isinstance(error, (*LEFT_TO_AIRFLOW, BatchInterruptedError))

    def _write_output(self) -> WorkflowAutomationError | None:
        """Write the output file, if there is to be one; return the error if that fails."""
        if not self._output:
            return None
        try:
            write_output(self._output, self._items())
        except FileUnavailableError as failure:
            if self._is_continued:
                return failure  # the next try starts nothing again, and writes it
            self._log.exception("The output file could not be written. Its runs follow.")
            self.record.log_runs(self._log, self.record.in_order())
            what = "The output file could not be written. The log names the runs."
            return WorkflowAutomationError(what, code=Code.FILE)
        self.record.output_path = self._output
        return None

    def _items(self) -> Iterator[BatchItem]:
        for item in self.record.in_order(self._stop.reason if self._stop else ""):
            if item["status"] == "started" and self.flow_id is not None:
                # So that an upload can be mapped over the items.
                item["flow_id"] = self.flow_id
            yield item

    def _show_progress(self, *, at_the_end: bool = False) -> None:
        """Log progress and throughput, unless it is too early for that."""
        now = time.monotonic()
        if not at_the_end and now - self._logged < _PROGRESS_INTERVAL:
            return
        self._logged = now

        counts = self.record.counts
        remaining = counts["remaining"]
        rate = (self._left - remaining) / max(now - self._began, 0.001)
        left = ""
        if rate and remaining:
            left = f", {remaining / rate:.0f} s left"
        self._log.info(f"{counts_text(counts)} {rate:.1f} per second{left}.")

        try:
            self.context["ti"].xcom_push(key=PROGRESS_XCOM, value=counts)
        except Exception:
            self._log.warning("The progress could not be stored as an XCom.", exc_info=True)


def _as_known(error: BaseException) -> WorkflowAutomationError:
    """Return an error of a request as one of ours."""
    if isinstance(error, WorkflowAutomationError):
        return error
    # Without its text, which nothing has redacted.
    return OutcomeUnknownError(f"{type(error).__name__} while it was sent.")
