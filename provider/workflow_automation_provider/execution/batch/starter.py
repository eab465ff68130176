"""
Start a run for each item of a batch at most once.

1. **Read** what earlier tries recorded, and all items of the batch, to check them. Nothing is sent yet.
2. **Open, send and collect** the items that the ledger says are to be sent (:mod:`~.engine`).
3. **Report**, in the order of the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workflow_automation_provider.client.protocol import with_inputs
from workflow_automation_provider.exceptions import (
    BatchInterruptedError,
    Code,
    FileUnavailableError,
    InvalidRequestError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.engine import BatchEngine, BatchPlan
from workflow_automation_provider.execution.batch.errors import (
    BatchState,
    batch_error,
    changed_meanwhile,
    changed_since,
    counts_text,
    items_error,
    missing_since,
    where_runs_are,
)
from workflow_automation_provider.execution.batch.output import OutputFile
from workflow_automation_provider.execution.batch.paths import shown
from workflow_automation_provider.execution.batch.report import Progress
from workflow_automation_provider.execution.batch.results import BatchSummary, ItemResults
from workflow_automation_provider.execution.batch.sender import Job
from workflow_automation_provider.execution.batch.source import BatchSource
from workflow_automation_provider.execution.ledger import DIGEST_BYTES, Decision, State
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.batch.source import Item
    from workflow_automation_provider.execution.batch_state import BatchItem, BatchRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class BatchStarter:
    """
    Start the runs of a batch that no earlier try started.

    :param record: what the task instance knows about the batch
    :param hook: sends the requests; closed afterwards
    :param retrier: how long the service may be busy or unreachable without interruption
    :param context: of the task, for the XComs
    """

    def __init__(
        self,
        record: BatchRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        context: Context,
        plan: BatchPlan,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._ti = context["ti"]
        self._plan = plan
        self._source = BatchSource(plan.batch, plan.flow_id)
        self._digests = bytearray()
        self._ledger = record.ledger(start_again=plan.on_unknown_start == "start_again")
        self._results = ItemResults(self._ledger)
        self._progress = Progress(self._log, self._ti)
        self._engine = BatchEngine(record, self._results, hook, retrier, plan, self._progress)
        self._output_path: str | None = None  # once it is written

    def start(self) -> list[BatchItem] | BatchSummary:
        """
        Start the runs, and return the results of the items.

        :return: all items in the order of the batch; with an ``output_path``, the path and the counts
        :raises WorkflowAutomationError: if runs were not started, or it is unknown whether they were
        """
        output = OutputFile(self._plan.output_path) if self._plan.output_path else None
        try:
            missing = self._check()
            if output and self._source.is_read_from(output.path):
                raise InvalidRequestError(
                    f"output_path is {shown(output.path)}, the file of the batch: expected another file."
                )
            with self._hook:
                template = self._hook.prepare_trigger({}, self._plan.flow_id) if missing else None
                if output:
                    output.check()
                if template:
                    self._start_missing(missing, template)
            return self._report(output)
        except WorkflowAutomationError as error:
            raise batch_error(error, self._state()) from error.__cause__
        except BaseException as error:
            if output and self._results.total and not self._is_continued:
                self._write_output(output, None)
            if isinstance(error, Exception):
                raise batch_error(self._engine.interrupted(error), self._state()) from error
            where = where_runs_are(self._state())
            self._log.warning("%s", f"{counts_text(self._results.counts)} {where}".strip())
            raise

    # Read ---------------------------------------------------------------------------------------------------

    def _check(self) -> int:
        """Read what earlier tries recorded, and check all items of the batch; return how many are to be sent."""
        is_any = self._results.read(self._record)
        if self._ledger.was_cleared and not is_any:
            self._log.warning("The task has been cleared since an earlier try: starting all items again.")
        missing = 0
        for item in self._source:
            missing += self._is_missing(item)
            self._digests += item.digest
        total = len(self._digests) // DIGEST_BYTES
        if (lost := self._ledger.missing_from(total)) is not None:
            raise missing_since(lost, total, self._ledger.try_of(lost))
        self._results.total = total
        if is_any:
            self._log.info("Earlier tries: %s", counts_text(self._results.counts))
        return missing

    def _is_missing(self, item: Item) -> bool:
        decision = self._ledger.decide(item.index, item.digest)
        if decision is Decision.CHANGED:
            raise changed_since(item.place, self._ledger.try_of(item.index))
        return decision is Decision.SEND

    def _jobs(self, template: Request) -> Iterator[Job]:
        """Yield what is to be sent."""
        number = 0
        for number, item in enumerate(self._source, start=1):  # noqa: B007 - used after the loop
            if self._digests[item.index * DIGEST_BYTES : (item.index + 1) * DIGEST_BYTES] != item.digest:
                raise changed_meanwhile(item.place)
            if self._is_missing(item):
                yield Job(item.index, with_inputs(template, item.inputs), item.digest)
        if number < self._results.total:
            raise changed_meanwhile(self._source.place_of(number))

    def _start_missing(self, missing: int, template: Request) -> None:
        number = min(self._plan.max_concurrency, missing)
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
            min(self._plan.chunk, missing),
        )
        self._engine.run(self._jobs(template), number)

    # Report -------------------------------------------------------------------------------------------------

    def _report(self, output: OutputFile | None) -> list[BatchItem] | BatchSummary:
        self._progress.log(self._results, at_the_end=True)
        error = self._engine.stop.error if self._engine.stop else self._worst()
        # Left to the next try, which may be running already: it starts more than an earlier file would say.
        if output and not (self._is_continued and self._is_retried(error)):
            error = self._write_output(output, error)
        if error:
            raise error
        return {"path": output.path, **self._results.counts} if output else list(self._items())

    def _worst(self) -> WorkflowAutomationError | None:
        numbers = self._results.numbers()
        return items_error(
            unknown=numbers[State.UNKNOWN],
            unidentified=numbers[State.UNIDENTIFIED],
            rejected=numbers[State.REJECTED] if self._plan.on_rejected == "fail" else 0,
        )

    @property
    def _is_continued(self) -> bool:
        """Whether Airflow has a retry left that goes on with what this try recorded."""
        return self._record.outlives_try and self._ti.try_number <= self._ti.max_tries

    def _is_retried(self, error: WorkflowAutomationError | None) -> bool:
        also = (OutcomeUnknownError,) if self._plan.on_unknown_start == "start_again" else ()
        is_retried = isinstance(error, (*LEFT_TO_AIRFLOW, BatchInterruptedError, *also))
        return is_retried and not self._retrier.is_ended()

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
            self._engine.log_runs(self._results.in_order())
            return error or WorkflowAutomationError(
                "The output file could not be written. The log names the runs.", code=Code.FILE
            )
        self._output_path = output.path
        return error

    def _items(self) -> Iterator[BatchItem]:
        for item in self._results.in_order(self._engine.stop.why if self._engine.stop else ""):
            if item["status"] == "started" and self._plan.flow_id is not None:
                # So that an upload can be mapped over the items.
                item["flow_id"] = self._plan.flow_id
            yield item

    def _state(self) -> BatchState:
        return self._results.state(
            self._record,
            is_stopped=self._engine.stop is not None,
            is_logged=self._engine.is_logged,
            output_path=self._output_path,
        )


@contextlib.contextmanager
def with_previous_tries_noted(record: BatchRecord) -> Iterator[None]:
    """Add what previous tries did to errors raised before the record is read."""
    try:
        yield
    except InvalidRequestError as error:
        results = ItemResults(record.ledger())
        with contextlib.suppress(Exception):  # the error says that it could not be read
            results.read(record)
        raise batch_error(error, results.state(record)) from error.__cause__
