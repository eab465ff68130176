"""
Start a run for each item of a batch, each at most once.

All items are read and checked, then they are sent. One write records the results since the last
one and opens the next items, and is durable before one of them is sent
(:mod:`~workflow_automation_provider.execution.batch.batch_record`). A window of items is open at a
time, and half of it is opened at once: so the threads do not wait for Airflow, nor for the slowest
response. Whole windows, one after the other, would start a seventh fewer runs a second, and where
one response in a hundred is slow, two thirds fewer. After a kill, at most one window is in doubt.

Only the main thread, which is in this module, talks to Airflow: the record, the XComs and the log
of the progress. :mod:`~workflow_automation_provider.execution.batch.threads` sends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, cast

from airflow.providers.common.compat.sdk import TaskDeferred

from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    BatchInterruptedError,
    Code,
    NotSentError,
    OutcomeUnknownError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.batch_record import MAX_PART_BYTES, BatchRecord
from workflow_automation_provider.execution.batch.ends import BatchEnds
from workflow_automation_provider.execution.batch.output import OutputFile, OutputUnavailableError
from workflow_automation_provider.execution.batch.progress import Progress, push
from workflow_automation_provider.execution.batch.source import BatchSource
from workflow_automation_provider.execution.batch.summary import (
    counted,
    counts_text,
    log_runs,
    where_runs_are,
    with_results,
    worst_result,
)
from workflow_automation_provider.execution.batch.threads import BatchThreads, Job
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.batch.item_results import BatchItem, BatchSummary
    from workflow_automation_provider.execution.batch.options import BatchOptions
    from workflow_automation_provider.execution.batch.source import Item
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

OnRejected = Literal["fail", "skip"]
"""What the task does at the end if the service rejected items."""

# What one write opens must fit into one entry, and after a kill a person has to look for all of it.
_MAX_WINDOW = 256
_MAX_WINDOW_BYTES = 8 * 1024**2

# Seconds that a result may stay unrecorded.
_MAX_UNRECORDED = 1.0

# Seconds that an interrupted task waits for the responses to what it has sent.
_MAX_LAST_RESPONSES = 5.0

# Seconds between two looks at whether something has ended.
_POLL_INTERVAL = 0.1


class BatchExecution:
    """
    Start the runs of a batch that no earlier try started.

    :param record: what earlier tries recorded, and this one records
    :param hook: sends the requests
    :param retrier: how long the service may be busy or unreachable without interruption
    :param context: the task's context, for the XComs
    :param options: what the task asks for
    """

    def __init__(
        self,
        record: BatchRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        context: Context,
        options: BatchOptions,
    ) -> None:
        self._record = record
        self._results = record.results
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._context = context
        self._options = options
        self._output = OutputFile(options.output_path or "")
        self._ends = BatchEnds(record, hook, retrier, options)
        self._threads = BatchThreads(hook, retrier, record.results, self._ends.inputs_of, options)
        self._window = min(4 * options.max_concurrency, _MAX_WINDOW)
        self._has_more = True
        # The items that were opened and whose results are not recorded yet.
        self._in_flight: list[Job] = []

    def start(self) -> list[BatchItem] | BatchSummary:
        """
        Start the runs, and return the results of the items.

        :return: all items in the order of the batch; with an ``output_path``, the path and the
            counts
        :raises WorkflowAutomationError: if runs were not started, or it is unknown whether they
            were
        """
        return self._reported(self._check_and_start)

    def resume(self, entries: int, trigger_failure: str) -> list[BatchItem] | BatchSummary:
        """
        Go on with the wait of a batch whose items were all sent: nothing is read or sent again.

        :param entries: how many entries there are at least
        :param trigger_failure: why the trigger has failed, empty if it has not
        :return: as :meth:`start` does
        :raises WorkflowAutomationError: if runs failed, or have not ended in time
        """
        return self._reported(lambda: self._check_recorded(entries), trigger_failure)

    def _reported(
        self, start: Callable[[], None], trigger_failure: str = ""
    ) -> list[BatchItem] | BatchSummary:
        """Start the batch, and finish it; what ends it tells what is known of its runs."""
        try:
            start()
            return self._finish(trigger_failure)
        except WorkflowAutomationError as error:
            raise with_results(error, self._record, self._output.written) from error.__cause__
        except Exception as error:
            interruption = self._interrupted(error)
            raise with_results(interruption, self._record, self._output.written) from error
        except TaskDeferred:
            raise
        except BaseException:
            if not self._is_continued and not self._output.written:
                self._write_output(self._items(), is_retried=False)

            counts = counts_text(self._results.counts)
            self._log.warning("%s %s", counts, where_runs_are(self._record, self._output.written))
            raise

    def _check_and_start(self) -> None:
        self._record.read()
        if self._record.has_sent_all:
            self._go_on_without_source()
            self._log.info("Earlier tries have sent all items, so the batch is not read again.")
            return

        try:
            self._start_what_is_left()
        except Exception as error:
            # Earlier tries have checked that they can write their file, and not another one.
            is_of_earlier_tries = self._record.target.get("output_path") == self._shown_output
            if not self._record.has_opened or not is_of_earlier_tries:
                raise

            self._go_on_without_source()
            if not isinstance(error, WorkflowAutomationError):
                error = self._interrupted(error)
            self._threads.stop(error)

    def _start_what_is_left(self) -> None:
        """
        Start the runs that no earlier try started.

        :raises WorkflowAutomationError: if that cannot even begin
        """
        source = self._opened_source()
        number_to_send = self._check_items(source)
        template = None
        if number_to_send:
            template = self._hook.prepare_trigger({}, self._options.flow_id)
        self._output.check(source)
        if template and self._ends.are_awaited:
            self._ends.prepare()
        if template:
            self._start_items(self._record.to_send(source), number_to_send, template)

    def _check_recorded(self, entries: int) -> None:
        """
        Read what earlier tries recorded of a batch that waits.

        :raises UnidentifiedError: if some of that is not there: nothing is sent again
        """
        self._record.read()
        number = self._record.number_of_entries
        if number < entries or not self._record.folder:
            raise UnidentifiedError(
                f"Of the {entries} entries that the task had of its batch when it began to wait, "
                f"{number} are in Airflow's task state store."
            )

        self._go_on_without_source()

    @property
    def _shown_output(self) -> str | None:
        """The path of the output file without credentials, None if there is none."""
        return without_credentials(self._output.path) or None

    def _go_on_without_source(self) -> None:
        """Write the output file without a check, where nothing more is sent."""
        self._output.can_be_written = self._output.path != ""

    def _opened_source(self) -> BatchSource:
        """
        Return where the items are read.

        :raises InvalidRequestError: if it cannot be a batch
        """
        options = self._options
        redact = self._hook.get_conn().redactor.text
        reserved = options.callback_input if self._ends.are_awaited else None
        return BatchSource(options.batch, options.flow_id, options.key, redact, reserved)

    def _check_items(self, source: BatchSource) -> int:
        """
        Check all items against what earlier tries recorded; return how many are to be sent.

        :raises WorkflowAutomationError: if an item cannot be sent, or has changed
        """
        number_to_send = self._record.check(source)
        counts = self._results.counts
        if counts["not_started"] < counts["total"]:
            self._log.info("Earlier tries: %s", counts_text(counts))
        elif self._record.was_cleared:
            self._log.warning(
                "The task has been cleared since an earlier try: starting all items again."
            )

        return number_to_send

    # Open and record ------------------------------------------------------------------------------

    def _start_items(self, items: Iterator[Item], number: int, template: Request) -> None:
        """
        Send the items that are to be sent.

        :param number: how many they are
        :param template: a request without inputs
        """
        self._record.target = {
            "conn_id": self._hook.workflow_automation_conn_id,
            "flow_id": template.flow_id,
            "output_path": self._shown_output,
        }
        self._log_start(number, template.flow_id)

        self._progress = Progress(self._results, self._context, self._log)
        with self._threads.running(number, template):
            try:
                self._send_all(items)
            except BaseException as error:
                try:
                    self._await_last_responses(error)
                finally:  # also if the task is interrupted meanwhile
                    self._save_results()
                # An exception has stopped the batch, whose end reports it; an interruption goes on.
                if not isinstance(error, Exception):
                    raise

        self._progress.show()

    def _log_start(self, number: int, flow_id: str | None) -> None:
        flow = f"flow {flow_id}" if flow_id else "the flow of the API key"
        self._log.info(
            "Starting %s of %s via connection %s.",
            counted(number, "run"),
            flow,
            self._hook.workflow_automation_conn_id,
        )
        self._log.info(
            "If this try is killed, up to %s may have been started that only a later try "
            "reports. After the last try, look in the workflow's list of runs.",
            counted(min(self._window, number), "run"),
        )

    def _send_all(self, items: Iterator[Item]) -> None:
        self._record.write_first()
        self._open(self._next(items))
        while self._in_flight:
            self._await_results()
            self._open(self._next(items))

    def _next(self, items: Iterator[Item]) -> list[Item]:
        """Return the next items to open: none until there is room for half of the window."""
        room = self._window - self._number_under_way()
        opened: list[Item] = []
        if room < self._window / 2 or self._threads.stopped_by:
            return opened

        size = size_of_keys = 0
        is_full = False
        try:
            for item in itertools.islice(items, room):
                opened.append(item)
                size += len(item.inputs)
                size_of_keys += len(json.dumps(item.key))
                is_full = size >= _MAX_WINDOW_BYTES / 2 or size_of_keys >= MAX_PART_BYTES
                if is_full:
                    break
        except WorkflowAutomationError as error:
            self._threads.stop(error)

        self._has_more = len(opened) == room or is_full
        # A thread may have stopped the batch meanwhile.
        return [] if self._threads.stopped_by else opened

    def _number_under_way(self) -> int:
        """Return how many items in flight have no result yet."""
        return sum(job.result is None for job in self._in_flight)

    def _open(self, items: list[Item]) -> None:
        """Record the results since the last write, open further items, and send those."""
        known = [job for job in self._in_flight if job.result]
        results = [job.result for job in known if job.result]
        # A thread may give a further one its result meanwhile: the next write records that.
        others = [job for job in self._in_flight if job not in known]
        jobs = [Job(item) for item in items]

        # Before the write: an interruption must give them a result.
        self._in_flight += jobs
        self._record.write(items, results)
        if not self._record.outlives_try:
            log_runs(self._log, self._results, results)

        self._in_flight = others + jobs
        self._threads.send(jobs)

    def _await_results(self) -> None:
        """Wait until half of the window is free, or results are to be recorded."""
        until = time.monotonic() + _MAX_UNRECORDED
        has_more = self._has_more and self._threads.stopped_by is None
        most = self._window // 2 if has_more else 0
        while self._number_under_way() > most and time.monotonic() < until:
            if self._retrier.is_ended():
                self._threads.stop(NotSentError("The task was ended."))

            self._threads.await_result(_POLL_INTERVAL)

        self._progress.show_if_due()

    # Interruptions --------------------------------------------------------------------------------

    def _await_last_responses(self, error: BaseException) -> None:
        """Send nothing more, and wait for the responses to the requests under way."""
        # Takes effect before the last byte of any further request is sent.
        self._hook.stop()
        self._threads.stop(self._interrupted(error))

        # An exception leaves time for the responses, which all have a timeout; an interruption
        # does not.
        until = float("inf")
        if not isinstance(error, Exception):
            until = time.monotonic() + _MAX_LAST_RESPONSES

        while time.monotonic() < until and any(
            job.may_be_sent and not job.result for job in self._in_flight
        ):
            time.sleep(_POLL_INTERVAL)

    def _save_results(self) -> None:
        """Record and log the results of the items in flight, now that the batch is stopped."""
        without_response = self._give_results()
        results = [job.result for job in self._in_flight if job.result]
        is_recorded = self._record_last(results)
        if not is_recorded:
            log_runs(self._log, self._results, results)
        if without_response:
            self._log.warning(
                "These items have no response yet, and may have started runs: %s",
                ", ".join(without_response),
            )

    def _give_results(self) -> list[str]:
        """Give each item in flight a result; return the names of those that may have been sent."""
        names = []
        for job in self._in_flight:
            if job.result:
                continue

            if job.may_be_sent:
                names.append(self._results.name_of(job.item.index))
                why = "It had no response when the batch was interrupted."
                job.result = self._results.without_run(job.item.index, "unknown", why)
            else:
                why = "The batch was interrupted."
                job.result = self._results.without_run(job.item.index, "not started", why)

        return names

    def _record_last(self, results: list[BatchItem]) -> bool:
        """Record the last results; return whether a later try can read them."""
        try:
            # Twice: a write that was interrupted may yet be carried out, and has the number of the
            # first one.
            for _ in range(2):
                self._record.write([], results)
        except Exception:
            self._log.warning("The last results could not be recorded. They follow.")
            return False

        return self._record.outlives_try

    def _interrupted(self, error: BaseException) -> WorkflowAutomationError:
        """Return the error for a batch that an unexpected error ended."""
        # Without a record, a retry would not continue the batch, but start it again.
        kind = BatchInterruptedError if self._record.outlives_try else WorkflowAutomationError
        message = f"The batch was interrupted by {type(error).__name__}"
        # Without the error's text if it cannot be had, or if there is no client to redact it.
        with contextlib.suppress(Exception):
            message += self._hook.get_conn().redactor.text(f": {error}")

        one_line_of_it = kind(message).reason  # which is cut, too
        interruption = kind(one_line_of_it, code=Code.BATCH_INTERRUPTED)
        interruption.__cause__ = error
        return interruption

    # The end --------------------------------------------------------------------------------------

    def _finish(self, trigger_failure: str) -> list[BatchItem] | BatchSummary:
        """
        Write the output file, unless a later try does, and return the results.

        :param trigger_failure: why the trigger has failed, empty if it has not
        :raises WorkflowAutomationError: why the batch was stopped, or else the worst of its results
        :raises TaskDeferred: Airflow's signal to suspend the task
        """
        error, items = self._threads.stopped_by, self._items()
        is_stopped = error is not None
        if self._ends.are_awaited and (not is_stopped or self._ends.is_over):
            failure, items = self._await_ends(items, trigger_failure)
            error = error or failure
        elif not is_stopped:
            error = worst_result(self._results, self._options)

        # Not if the next try writes it: that may be running already, and starts further items.
        if error and self._is_continued and self._is_retried(error):
            raise error

        if not self._output.path:
            found: list[BatchItem] | BatchSummary = [*items]
        else:
            # A retry starts nothing again, and writes the file.
            is_retried = error is None and self._is_continued
            failure = self._write_output(items, is_retried=is_retried)
            error = error or failure
            found = {"path": self._output.path, **self._results.counts}
        if not error and self._record.folder and self._output.written:
            self._record.write_ends()

        # Of a batch that waits, it is known only now.
        error = error or worst_result(self._results, self._options) or self._ends.not_awaited()
        if error:
            self._push(found)
            raise error

        if self._ends.are_awaited:
            self._log.info("%s", counts_text(self._results.counts))
        return found

    def _await_ends(
        self, items: Iterator[BatchItem], trigger_failure: str
    ) -> tuple[WorkflowAutomationError | None, Iterator[BatchItem]]:
        """
        Wait for the ends of the runs.

        :return: why that failed, and the items, with the ends if it did not
        :raises TaskDeferred: Airflow's signal to suspend the task
        """
        try:
            ended = self._ends.wait(trigger_failure)
        except WorkflowAutomationError as error:
            return error, items

        self._results.are_settled = True
        return None, self._ends.settled(items, ended)

    def _push(self, found: list[BatchItem] | BatchSummary) -> None:
        """Push what a task returns that fails: a person may mark it as success."""
        task = cast("BaseOperator", self._context["task"])
        if self._output.written and task.do_xcom_push:
            push(self._context, self._log, "return_value", found)

    @property
    def _is_continued(self) -> bool:
        """Whether Airflow has a retry left that goes on with what this try recorded."""
        return self._record.outlives_try and not self._record.is_last_try

    def _is_retried(self, error: WorkflowAutomationError | None) -> bool:
        """Return whether Airflow retries the task after an error, if it has a retry left."""
        if self._retrier.is_ended():
            return False
        if isinstance(error, OutcomeUnknownError):
            return self._record.start_again
        return isinstance(error, (*LEFT_TO_AIRFLOW, BatchInterruptedError))

    def _write_output(
        self, items: Iterator[BatchItem], *, is_retried: bool
    ) -> WorkflowAutomationError | None:
        """
        Write the output file, if the check found it writable; return why that fails.

        :param items: the results
        :param is_retried: whether Airflow retries the task if that fails
        """
        if not self._output.can_be_written:
            return None

        try:
            self._output.write(items)
        except OutputUnavailableError as failure:
            if is_retried:
                return failure

            self._log.error("%s The runs follow.", failure.message)
            log_runs(self._log, self._results, self._results.in_order())
            what = "The output file could not be written. The log names the runs."
            return WorkflowAutomationError(what, code=Code.FILE)
        except WorkflowAutomationError as failure:  # of an end that cannot be read
            if not is_retried:
                self._write_output(self._items(), is_retried=False)

            return failure

        return None

    def _items(self) -> Iterator[BatchItem]:
        stopped_by = self._threads.stopped_by
        why_not = stopped_by.reason if stopped_by else ""
        for item in self._results.in_order(why_not):
            if item["status"] == "started" and self._options.flow_id is not None:
                # So that an upload can be mapped over the items.
                item["flow_id"] = self._options.flow_id
            yield self._with_place(item)

    def _with_place(self, item: BatchItem) -> BatchItem:
        """Return an item with where its run writes its end, which the task may not read."""
        may_run = item["status"] not in ("rejected", "not started")
        if not may_run or not self._record.folder:
            return item

        place = f"Its run writes its end to {self._ends.url_of(item['index'])}."
        return {**item, "why": f"{item.get('why', '')} {place}".strip()}
