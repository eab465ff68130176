"""
Start a run for each item of a batch at most once: the only place that does.

1. **Read** what earlier tries recorded, and all items of the batch, to check them. Nothing is sent yet.
2. **Open** items: one write records the results since the last one, and opens the next items
   (:mod:`~workflow_automation_provider.execution.batch_state`).
3. **Send** the open items, each once, from several threads over one client; :class:`~.pace.Pace` makes all of
   them wait while the service is busy.
4. **Report**, in the order of the batch.

Only the main thread talks to Airflow: the record, the XComs and the log of the progress. It reads and writes while
the threads send, so that they wait only if the window has no room left.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.client.protocol import Operation, with_inputs
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.earlier import EarlierTries
from workflow_automation_provider.execution.batch.output import OutputFile
from workflow_automation_provider.execution.batch.pace import Pace
from workflow_automation_provider.execution.batch.report import BatchSummary, Outcomes
from workflow_automation_provider.execution.batch.source import Batch, BatchSource
from workflow_automation_provider.execution.batch.windows import Windows
from workflow_automation_provider.execution.batch_state import DIGEST_BYTES, BatchItem
from workflow_automation_provider.execution.telemetry import metric_of
from workflow_automation_provider.failures import run_of, where_to_look

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.batch.report import BatchCounts
    from workflow_automation_provider.execution.batch_state import BatchRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start import OnUnknownStart
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = [
    "PROGRESS_XCOM",
    "BatchInterruptedError",
    "BatchPlan",
    "BatchStarter",
    "OnRefused",
    "mentions_earlier_tries",
]

OnRefused = Literal["fail", "skip"]
"""What the task does at the end if the service rejected items."""

PROGRESS_XCOM = "progress"
"""Key of the XCom with the counts, while the task runs."""

# Rejections that the next item would meet as well: they are about the key, the flow or the URL, not the inputs.
_DOOMED = frozenset({401, 402, 403, 404, 405, 407, 410})

# Seconds between two lines of progress, the longest wait for a result, and how long a task that was interrupted
# waits for the responses to what it has sent.
_PROGRESS_EVERY, _LOOK_UP_EVERY, _LAST_RESPONSES = 5.0, 0.1, 5.0

# Seconds between two looks for these responses.
_NAP = 0.02

# How much of a reason is kept, in characters, and of a response without run_id, which may have up to 1 MiB.
_KEPT_REASON, _KEPT_RESPONSE = 500, 2000

# How many runs a line of the log names.
_NAMED_IN_A_LINE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """
    What to start, and how.

    :param batch: as the DAG author gave it, rendered
    :param flow_id: the flow, None if the API key identifies it
    :param max_concurrency: how many requests are sent at a time
    :param max_starts_per_second: None for no limit
    :param window_size: how many items may be open at a time
    :param output_path: where to write what became of the items; None to return it
    """

    batch: Batch
    flow_id: str | None
    max_concurrency: int
    max_starts_per_second: float | None
    window_size: int
    on_unknown_start: OnUnknownStart
    on_refused: OnRefused
    output_path: str | None


@dataclass(slots=True)
class _Job:
    """
    An item to be sent.

    :param doubt: why an earlier try may have started a run for it, empty if none may have
    :param is_taken: whether a thread has it; once the batch is stopped, no thread sends what it takes
    :param outcome: what became of it in this try
    :param metric: the counter for the outcome of its last request, if it had one
    :param retried: how often it was sent again
    :param took: how long each response took, in seconds
    """

    index: int
    request: Request
    doubt: str = ""
    is_taken: bool = False
    outcome: BatchItem | None = None
    metric: str | None = None
    retried: int = 0
    took: list[float] = field(default_factory=list)


class BatchInterruptedError(WorkflowAutomationError):
    """An unexpected error ended the batch; a retry continues it."""


@dataclass(slots=True)
class _Stop:
    """Why the batch ends before its end, and the error for it."""

    error: WorkflowAutomationError
    why: str


class BatchStarter:
    """
    Start the runs of a batch that no earlier try started.

    :param record: what the task instance knows about the batch
    :param hook: sends the requests; closed afterwards
    :param patience: how long the service may be busy or unreachable at a stretch
    :param context: of the task, for the XComs
    """

    def __init__(
        self,
        record: BatchRecord,
        hook: WorkflowAutomationHook,
        patience: SendRetrier,
        context: Context,
        plan: BatchPlan,
    ) -> None:
        self._record = record
        self._hook = hook
        self._patience = patience
        self._log = patience.log
        self._ti = context["ti"]
        self._telemetry = record.telemetry
        self._plan = plan
        self._source = BatchSource(plan.batch, plan.flow_id)
        self._digests = bytearray()
        self._windows = Windows(plan.window_size)
        # All that is open, by index. An interruption may lose what the main thread takes from a queue, but not this.
        self._under_way: dict[int, _Job] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._settled: SimpleQueue[BatchItem | _Stop] = SimpleQueue()
        self._stop: _Stop | None = None
        self._is_stopped = False
        self._is_logged = not record.outlives_try  # whether the log names runs that the record does not
        self._output_path: str | None = None  # once it is written
        self._unknown_in_a_row = 0
        self._writes = 0
        self._writing = 0.0  # seconds
        self._progress = _Progress()

    def start(self) -> list[BatchItem] | BatchSummary:
        """
        Start the runs, and return what became of the items.

        :return: all items in the order of the batch; with an ``output_path``, the path and the counts
        :raises WorkflowAutomationError: if runs were not started, or it is unknown whether they were
        """
        began = time.monotonic()
        try:
            attributes = {
                "conn_id": self._hook.workflow_automation_conn_id,
                "flow_id": self._plan.flow_id,
            }
            with self._telemetry.span("batch", attributes) as told:
                result = self._start()
                told.update(self._outcomes.counts)
        except Exception:
            self._telemetry.count("batches.failed")
            raise
        self._telemetry.count("batches.succeeded")
        self._telemetry.time("batches.duration", time.monotonic() - began)
        return result

    def _start(self) -> list[BatchItem] | BatchSummary:
        output = OutputFile(self._plan.output_path) if self._plan.output_path else None
        with Outcomes() as self._outcomes:
            try:
                self._check()
                if output and self._source.is_read_from(output.path):
                    raise InvalidRequestError(
                        f"output_path is {output.path!r}, the file of the batch: expected another file."
                    )
                with self._hook:
                    missing = sum(map(self._is_missing, range(self._outcomes.total)))
                    template = self._hook.prepare_trigger({}, self._plan.flow_id) if missing else None
                    if output:
                        output.prepare()
                    if template:
                        self._start_missing(missing, template)
                return self._report(output)
            except WorkflowAutomationError as error:
                self._account(error)
                raise
            except BaseException as error:
                if not self._outcomes.total:
                    raise  # nothing was sent
                if isinstance(error, Exception):
                    interrupted = self._interrupted(error)
                    self._account(interrupted)
                    raise interrupted from error
                where = _where(self._outcomes, self._record, is_logged=self._is_logged)
                self._log.warning("%s", f"{_consequence(self._outcomes.counts)} {where}".strip())
                raise

    def _check(self) -> None:
        """Read what earlier tries recorded, and check all items of the batch."""
        earlier = EarlierTries(self._record, self._outcomes)
        if not self._record.outlives_try:
            self._log.warning(
                "Task state does not persist across tries before Airflow 3.3: if this try fails after it started runs, "
                "the next starts all items again. The log names the runs."
            )
        if self._record.was_cleared:
            self._log.warning("The task has been cleared since an earlier try: starting all items again.")
        for item in self._source:
            earlier.check(item)
            self._digests += item.digest
        total = len(self._digests) // DIGEST_BYTES
        earlier.check_length(total)
        self._outcomes.total = total
        if earlier.are_known:
            self._log.info("Earlier tries: %s", _consequence(self._outcomes.counts))
            self._telemetry.count("runs.returned", self._outcomes.number("started"))

    def _is_missing(self, index: int) -> bool:
        match self._outcomes.status(index):
            case None | "not started":
                return True
            case "unknown":
                return self._plan.on_unknown_start == "start_again"
        return False

    def _start_missing(self, missing: int, template: Request) -> None:
        self._pace = Pace(
            self._patience.seconds, self._plan.max_starts_per_second, self._log, lambda: self._is_stopped
        )
        number = min(self._plan.max_concurrency, self._plan.window_size, missing)
        self._log.info(
            "Starting %d runs of %s via connection %s, %d at a time.",
            missing,
            f"flow {flow}" if (flow := self._hook.flow_of(template)) else "the flow of the API key",
            self._hook.workflow_automation_conn_id,
            number,
        )
        self._log.info(
            "If this try is killed, up to %d runs may have been started that only a later try reports. After the last "
            "try, look in the workflow's list of runs.",
            min(self._plan.window_size, missing),
        )
        # Daemons, so that a request that hangs does not keep the process of an ended task alive.
        threads = [Thread(target=self._work, name=f"batch-{n}", daemon=True) for n in range(number)]
        with self._hook.get_conn().keep_connections(self._outcomes.run_ids()):
            for thread in threads:
                thread.start()
            try:
                self._run(self._jobs_of(template))
            finally:
                self._is_stopped = True
                for _ in threads:
                    self._jobs.put(None)
        if self._record.outlives_try and self._writes:
            self._log.info(
                "The record took %d writes of %.0f ms.", self._writes, self._writing / self._writes * 1000
            )

    def _jobs_of(self, template: Request) -> Iterator[tuple[_Job, bytes]]:
        """Yield what is to be sent, and its digest."""
        number = 0
        for number, item in enumerate(self._source, start=1):  # noqa: B007 - used after the loop
            if self._digests[item.index * DIGEST_BYTES : (item.index + 1) * DIGEST_BYTES] != item.digest:
                raise _changed(item.place)
            if self._is_missing(item.index):
                is_in_doubt = self._outcomes.status(item.index) == "unknown"
                doubt = self._outcomes.why(item.index) if is_in_doubt else ""
                yield _Job(item.index, with_inputs(template, item.inputs), doubt), item.digest
        if number < self._outcomes.total:
            raise _changed(self._source.place_of(number))

    def _run(self, jobs: Iterator[tuple[_Job, bytes]]) -> None:
        """Open items and collect what becomes of them, until there are no more."""
        try:
            following = self._next(jobs)
            while True:
                if self._patience.is_ended() and not self._stop:
                    self._end_early(
                        _Stop(NotSentError("The task was ended."), "The task was ended by Airflow.")
                    )
                more = following is not None and not self._stop
                if not more and not self._windows.open:
                    return
                if self._windows.is_due(self._jobs.qsize(), time.monotonic(), more=more):
                    following = self._write(following, jobs)
                else:
                    self._collect(_LOOK_UP_EVERY)
                self._tell_progress()
        except BaseException as error:
            try:
                self._await_last_responses(error)
            finally:  # also if it is interrupted
                self._save_what_is_known()
            if not isinstance(error, Exception):
                raise
            if self._stop is None:
                self._stop = _Stop(self._interrupted(error), "The batch was interrupted.")

    def _next(self, jobs: Iterator[tuple[_Job, bytes]]) -> tuple[_Job, bytes] | None:
        try:
            return next(jobs, None)
        except WorkflowAutomationError as error:
            self._end_early(_Stop(error, _reason(error)))
            return None

    def _write(
        self, following: tuple[_Job, bytes] | None, jobs: Iterator[tuple[_Job, bytes]]
    ) -> tuple[_Job, bytes] | None:
        """Record what is known, and open the next items; return the first that was not opened."""
        opened: list[tuple[_Job, bytes]] = []
        while following and not self._stop and len(opened) < self._windows.room:
            opened.append(following)
            following = self._next(jobs)
        if self._stop:
            opened = []
        results = self._windows.take_results()
        began = time.monotonic()
        for job, _ in opened:
            self._under_way[job.index] = job
        self._record.write([(job.index, digest) for job, digest in opened], results)
        self._writes += 1
        self._writing += time.monotonic() - began
        # While its items are under way: an interruption mentions them again, rather than never.
        if not self._record.outlives_try:
            self._mention(results)
        self._windows.written([job.index for job, _ in opened], results, self._settled.qsize())
        recorded = [self._under_way.pop(item["index"]) for item in results]
        for job, _ in opened:
            self._jobs.put(job)
        self._count(recorded)
        return following

    def _count(self, jobs: Iterable[_Job]) -> None:
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
        """Take all that the threads have settled, waiting for the first of it."""
        with contextlib.suppress(Empty):
            found = self._settled.get(timeout=seconds)
            while True:
                stop = found if isinstance(found, _Stop) else self._settle(found)
                if stop:
                    self._end_early(stop)
                found = self._settled.get_nowait()

    def _settle(self, item: BatchItem) -> _Stop | None:
        """Note what became of an item; return why the batch is to end, None if it is not."""
        known = _in_all_tries(item, self._under_way[item["index"]].doubt)
        self._windows.settle(known, time.monotonic())
        self._outcomes.put(known)
        if item["status"] in ("unknown", "unidentified"):
            self._unknown_in_a_row += 1
        elif item["status"] != "not started":
            self._unknown_in_a_row = 0
        # One concurrent burst can fail together; a longer streak means that the service is failing.
        if self._unknown_in_a_row <= self._plan.max_concurrency:
            return None
        error = OutcomeUnknownError(
            f"{self._unknown_in_a_row} requests in a row were sent without a usable response. The last one: "
            f"{item.get('why', '')}"
        )
        return _Stop(error, "Too many outcomes in a row were unknown.")

    def _end_early(self, stop: _Stop) -> None:
        """Send nothing more; what is waiting was not started."""
        self._is_stopped = True
        if self._stop is None:
            self._stop = stop
            self._log.warning("Sending nothing more. %s", stop.why)
        with contextlib.suppress(Empty):
            while job := self._jobs.get_nowait():
                self._settle(_not_started(job.index, stop.why))

    def _await_last_responses(self, error: BaseException) -> None:
        """Send nothing more after an error of Airflow or an interruption, and wait for the requests under way."""
        self._hook.stop()  # takes effect before the next hand-over
        self._is_stopped = True
        self._log.warning("Sending nothing more. The batch ended with %s.", type(error).__name__)
        # An exception leaves time for the responses, which all have a timeout; an interruption does not.
        deadline = time.monotonic() + (float("inf") if isinstance(error, Exception) else _LAST_RESPONSES)
        with contextlib.suppress(Empty):
            while True:
                self._jobs.get_nowait()
        while any(map(_is_sent, self._under_way.values())) and time.monotonic() < deadline:
            time.sleep(_NAP)

    def _save_what_is_known(self) -> None:
        """Record and log what became of the requests under way, now that the batch is stopped."""
        results, unsettled = [], []
        for job in self._under_way.values():
            if _is_sent(job):
                unsettled.append(job.index)
            else:
                item = job.outcome or _not_started(job.index, "The batch was interrupted.")
                results.append(_in_all_tries(item, job.doubt))
        is_recorded = self._record.outlives_try
        for index in unsettled:
            self._outcomes.put(_unknown(index, "It had no response when the batch was interrupted."))
        for item in results:
            self._outcomes.put(item)
        try:
            if results:
                self._record.write([], results)
        except Exception:
            self._log.warning("The last results could not be recorded. They follow.")
            is_recorded = False
        if not is_recorded:
            self._mention(results)
            self._is_logged = True
        if unsettled:
            self._log.warning(
                "These items have no response yet, and may have started runs: %s",
                ", ".join(f"batch[{index}]" for index in unsettled),
            )
        self._count(self._under_way[item["index"]] for item in results)

    def _mention(self, results: Iterable[BatchItem]) -> None:
        """Name the runs in the log, where no record does."""
        named = (
            f"batch[{item['index']}]: {item.get('run_id', item['status'])}"
            for item in results
            if item["status"] != "not started"
        )
        while line := ", ".join(itertools.islice(named, _NAMED_IN_A_LINE)):
            self._log.info("Runs: %s", line)

    # In the threads -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while job := self._jobs.get():
            job.is_taken = True
            try:
                job.outcome = self._send(job)
            except BaseException as error:
                # Without its text, which nothing has redacted.
                job.outcome = _unknown(job.index, f"{type(error).__name__} while it was sent.")
                job.metric = "runs.unknown"
            self._settled.put(job.outcome)

    def _send(self, job: _Job) -> BatchItem:
        """Send an item until the service has acted on it, or the batch is stopped."""
        is_again = False
        while self._pace.wait():
            job.retried += is_again
            is_again = True
            sent_at = time.monotonic()
            try:
                run = self._request(job)
            except (BusyError, NotSentError) as error:
                if self._is_stopped or self._patience.is_ended():
                    break
                if not self._pace.held_up(error, sent_at):
                    why = _reason(error)
                    self._settled.put(_Stop(error, why))
                    return _not_started(job.index, why)
            except RejectedError as error:
                self._pace.got_through()
                if error.status in _DOOMED or 300 <= (error.status or 0) < 400:
                    why = _reason(error)
                    self._settled.put(_Stop(error, why))
                    return _not_started(job.index, why)
                return {"index": job.index, "status": "rejected", "why": _reason(error)}
            except ResponseUnusableError as error:
                self._pace.got_through()
                return {"index": job.index, "status": "unidentified", "why": _reason(error)}
            except OutcomeUnknownError as error:
                return _unknown(job.index, _reason(error))
            else:
                self._pace.got_through()
                return _started(job.index, run)
        return _not_started(job.index, "The batch was stopped.")

    def _request(self, job: _Job) -> Run:
        """Send an item once, and note what the metrics tell of it."""
        began = time.monotonic()
        try:
            outcome = self._hook.send_trigger(job.request)
            job.metric = metric_of(outcome)
            run = run_of(outcome)
        except WorkflowAutomationError as error:
            if error.status is not None:
                job.took.append(time.monotonic() - began)
            raise
        job.took.append(time.monotonic() - began)
        return run

    # Report -------------------------------------------------------------------------------------------------

    def _tell_progress(self, *, at_the_end: bool = False) -> None:
        counts = self._outcomes.counts
        text = self._progress.text(counts, at_the_end=at_the_end)
        if text is None:
            return
        self._log.info("%s", text)
        try:
            self._ti.xcom_push(key=PROGRESS_XCOM, value=dict(counts))
        except Exception:
            self._log.warning("The progress could not be stored as an XCom.", exc_info=True)

    def _report(self, output: OutputFile | None) -> list[BatchItem] | BatchSummary:
        self._tell_progress(at_the_end=True)
        error = self._error()
        # An interrupted try leaves the file to the next one, which may be running already.
        if output and not (self._is_continued and isinstance(error, BatchInterruptedError)):
            error = self._write_output(output, error)
        if error:
            raise error
        return {"path": output.path, **self._outcomes.counts} if output else list(self._items())

    @property
    def _is_continued(self) -> bool:
        """Whether Airflow has a retry left that goes on with what this try recorded."""
        return self._record.outlives_try and self._ti.try_number <= self._ti.max_tries

    def _write_output(
        self, output: OutputFile, error: WorkflowAutomationError | None
    ) -> WorkflowAutomationError | None:
        """Write the output file; return the error to end with."""
        try:
            output.write(self._items())
        except FileUnavailableError as failure:
            if self._is_continued:
                return error or failure  # the next try starts nothing again, and writes it
            self._log.exception("The output file could not be written. Its runs follow.")
            self._mention(self._outcomes.in_order())
            self._is_logged = True
            return error or WorkflowAutomationError(
                "The output file could not be written. The log names the runs."
            )
        if error:
            self._output_path = output.path
        return error

    def _items(self) -> Iterator[BatchItem]:
        for item in self._outcomes.in_order(self._stop.why if self._stop else ""):
            if item["status"] == "started" and self._plan.flow_id is not None:
                # So that an upload can be mapped over the items.
                item["flow_id"] = self._plan.flow_id
            yield item

    def _error(self) -> WorkflowAutomationError | None:
        """Return the error to end with, None if the batch is complete."""
        counts = self._outcomes.counts
        unknown, unidentified = self._outcomes.number("unknown"), self._outcomes.number("unidentified")
        error: WorkflowAutomationError
        if self._stop:
            error = self._stop.error
        elif unknown:
            error = OutcomeUnknownError(
                f"It is unknown whether runs of {unknown} items were started."
                if unknown > 1
                else "It is unknown whether the run of 1 item was started."
            )
        elif unidentified:
            error = ResponseUnusableError(
                f"Runs of {unidentified} items were started, but their ids are unknown."
                if unidentified > 1
                else "The run of 1 item was started, but its id is unknown."
            )
        elif counts["rejected"] and self._plan.on_refused == "fail":
            error = RejectedError(
                f"The service rejected {counts['rejected']} item{'s' * (counts['rejected'] > 1)}."
            )
        else:
            return None
        table = self._outcomes.table()
        look = where_to_look(Operation.TRIGGER_BY_KEY) if counts["unknown"] else ""
        error.next_step = "\n".join(filter(None, (table, error.next_step, look)))
        return error

    def _interrupted(self, error: Exception) -> WorkflowAutomationError:
        """Return the error for a batch that an unexpected one ended, such as of Airflow's task state store."""
        kind = BatchInterruptedError if self._record.outlives_try else WorkflowAutomationError
        text = ""
        with contextlib.suppress(Exception):  # some errors have no text, and some connections no client
            text = self._hook.get_conn().redact(f": {' '.join(str(error).split())}")
        interrupted = kind(_cut(f"The batch was interrupted by {type(error).__name__}{text}"))
        interrupted.__cause__ = error
        return interrupted

    def _account(self, error: WorkflowAutomationError) -> None:
        _account(
            error,
            self._outcomes,
            self._record,
            is_stopped=self._stop is not None,
            is_logged=self._is_logged,
            output_path=self._output_path,
        )


class _Progress:
    """Tells now and then how far the batch is, and how fast."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._before: int | None = None

    def text(self, counts: BatchCounts, *, at_the_end: bool) -> str | None:
        """Return what to log, None if it is too early for that."""
        now = time.monotonic()
        done = counts["total"] - counts["remaining"]
        if self._before is None:
            self._before = done  # by earlier tries
        if not at_the_end and now - self._told < _PROGRESS_EVERY:
            return None
        self._told = now
        rate = (done - self._before) / max(now - self._began, 0.001)
        left = f", {counts['remaining'] / rate:.0f} s left" if rate and counts["remaining"] else ""
        return (
            f"{done} of {counts['total']} items: {counts['started']} started, {counts['rejected']} rejected, "
            f"{counts['unknown']} unknown; {rate:.1f} per second{left}."
        )


@contextlib.contextmanager
def mentions_earlier_tries(record: BatchRecord) -> Iterator[None]:
    """Have an error that is found before the record is read say what earlier tries did."""
    try:
        yield
    except InvalidRequestError as error:
        with Outcomes() as outcomes:
            EarlierTries(record, outcomes)
            _account(error, outcomes, record)
        raise


def _account(
    error: WorkflowAutomationError,
    outcomes: Outcomes,
    record: BatchRecord,
    *,
    is_stopped: bool = False,
    is_logged: bool = False,
    output_path: str | None = None,
) -> None:
    """Say in an error what this and earlier tries did, and where that is to be found."""
    counts = outcomes.counts
    if counts["total"]:
        if counts["total"] > counts["remaining"] or is_stopped:
            error.consequence = _consequence(counts)
    elif counts["remaining"]:  # below 0: the batch could not be read, but earlier tries are known
        error.consequence += f"\n{_earlier(counts)}"
    if not isinstance(error, OutcomeUnknownError):
        if counts["started"] or outcomes.number("unidentified"):
            error.accepted = Accepted.YES
        else:
            error.accepted = Accepted.MAYBE if counts["unknown"] else Accepted.NO
    where = (
        f"What became of each item is in {output_path}."
        if output_path
        else _where(outcomes, record, is_logged=is_logged)
    )
    error.next_step = "\n".join(filter(None, (error.next_step, where)))


def _where(outcomes: Outcomes, record: BatchRecord, *, is_logged: bool) -> str:
    """Say where the runs are, if there are any."""
    if not outcomes.number("started", "unidentified", "unknown"):
        return ""
    if not record.place:
        return "The log names the runs."
    return f"The runs are in the task's state store ({record.place}){' and in the log' if is_logged else ''}."


def _changed(place: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{place} changed while the batch was read.",
        next_step="Let the batch be complete before this task begins.",
    )


def _consequence(counts: BatchCounts) -> str:
    return (
        f"Of {counts['total']} items: {counts['started']} started, {counts['rejected']} rejected, "
        f"{counts['unknown']} unknown, {counts['remaining']} not started."
    )


def _earlier(counts: BatchCounts) -> str:
    return (
        f"In earlier tries: {counts['started']} items started, {counts['rejected']} rejected, "
        f"{counts['unknown']} unknown."
    )


def _reason(error: WorkflowAutomationError) -> str:
    return _cut(" ".join(error.message.split()))


def _cut(text: str) -> str:
    return text if len(text) <= _KEPT_REASON else f"{text[: _KEPT_REASON - 1]}…"


def _is_sent(job: _Job) -> bool:
    """Return whether a thread has a job, and its outcome is not known."""
    return job.is_taken and not job.outcome


def _in_all_tries(item: BatchItem, doubt: str) -> BatchItem:
    """
    Return what is known of an item: if this try started no run for it, an earlier one still may have.

    :param item: what became of it in this try
    :param doubt: why an earlier try may have started a run
    """
    match item["status"] if doubt else None:
        case "not started":
            return _unknown(item["index"], doubt)
        case "rejected":
            return _unknown(item["index"], _cut(f"{doubt} Later rejected: {item['why']}"))
    return item


def _unknown(index: int, why: str) -> BatchItem:
    return {"index": index, "status": "unknown", "why": why}


def _not_started(index: int, why: str) -> BatchItem:
    return {"index": index, "status": "not started", "why": why}


def _started(index: int, run: Run) -> BatchItem:
    item: BatchItem = {"index": index, "status": "started"}
    if run.run_id is not None:
        item["run_id"] = run.run_id
    if run.run_link is not None:
        item["run_link"] = run.run_link
    if run.run_id is None and run.response is not None:
        size = len(json.dumps(run.response))
        item["response"] = run.response if size <= _KEPT_RESPONSE else f"(not kept: it has {size} characters)"
    return item
