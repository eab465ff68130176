"""Operator that starts a run for each item of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from workflow_automation_provider.client.checks import (
    check_choice,
    duration,
    is_positive_integer,
)
from workflow_automation_provider.client.rendered_values import check_path
from workflow_automation_provider.exceptions import (
    Accepted,
    BatchInterruptedError,
    InvalidRequestError,
    RunFailedError,
)
from workflow_automation_provider.execution.errors import task_error
from workflow_automation_provider.operators.base import (
    MAX_WAIT_DAYS,
    UNSET,
    FlowOperator,
    TaskSummary,
    check_wait,
)
from workflow_automation_provider.operators.xcom_arg import check_references
from workflow_automation_provider.wording import kind_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.exceptions import WorkflowAutomationError
    from workflow_automation_provider.execution.batch.batch_record import BatchRecord
    from workflow_automation_provider.execution.batch.item_results import BatchItem, BatchSummary
    from workflow_automation_provider.execution.batch.run_batch import BatchExecution, OnRejected
    from workflow_automation_provider.execution.batch.source import Batch
    from workflow_automation_provider.execution.run.start import OnUnknownStart
    from workflow_automation_provider.operators.templates import Resolvable

__all__ = ["TriggerFlowBatchOperator"]

# More threads would only wait for each other.
_MAX_CONCURRENCY = 256


class TriggerFlowBatchOperator(FlowOperator["list[BatchItem] | BatchSummary"]):
    """
    Start a run for each item of a batch, each once, in one task.

    Returns the items in the order of the batch, each with ``index`` and ``status``: ``started``,
    with ``run_id`` and ``run_link``, or else ``rejected``, with ``why``. With an ``output_path``,
    the items go to that file, and the ``path`` and the counts are returned. While the task runs,
    the XCom ``progress`` has the counts.

    A task instance never starts a second run for an item on its own: the results of the items are
    recorded (Airflow 3.3+), and a retry starts only those that were never sent. Clearing the task
    starts all items again.

    Follows sections 4.1 and 4.2 of the interface.

    :param batch: the inputs of each run: a list, an XCom with one, or the results of a mapped task;
        or the path or URL of a JSON Lines file, which is read as a stream (templated, nested values
        too)
    :param flow_id: the flow to start, by requests that carry no API key; by default that of the key
        (templated). None and an empty string are errors
    :param workflow_automation_conn_id: the connection with the base URL and the API key (templated)
    :param max_concurrency: how many requests are sent at a time, at most 256. After a kill, four
        times as many items, at most 256, may be in doubt
    :param max_starts_per_second: at most so many requests per second, spread evenly; by default
        unlimited
    :param on_unknown_start: what to do about items in doubt: ``"fail"`` at the end, without a
        retry, or ``"start_again"`` in the next try, which may start a second run
    :param on_rejected: what to do at the end about items that the service rejected: ``"fail"``
        without a retry, or ``"skip"``: succeed
    :param output_path: path or URL of a JSON Lines file for the result of each item, also if the
        task fails (templated). By default none; required to wait
    :param key: the name of an input that each item has, such as ``"customer"``, whose value is
        shown in results, errors and the log
    :param wait_for_completion: whether to wait until the flow has written, by its last step, how
        each run ended (Airflow 3.3+). The connection's ``callback_base_url`` must be a folder of an
        object store
    :param callback_input: the name of the input that gets the URL for that last step
    :param completion_timeout: how long to wait for all runs, from the first item that is sent, over
        all tries
    :param on_run_failed: what to do at the end about runs that failed or are overdue: ``"fail"``
        without a retry, or ``"skip"``: succeed
    :param send_retry_timeout: how long no request may get through, or one item may be busy; then
        Airflow retries the task, which starts the rest
    """

    template_fields: Sequence[str] = (
        "batch",
        "flow_id",
        "workflow_automation_conn_id",
        "output_path",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"batch": "json"}

    def __init__(
        self,
        *,
        batch: Batch | Sequence[Mapping[str, Any] | Resolvable] | Resolvable,
        flow_id: str | Resolvable = UNSET,
        workflow_automation_conn_id: str | Resolvable = "workflow_automation_default",
        max_concurrency: int = 16,
        max_starts_per_second: float | None = None,
        on_unknown_start: OnUnknownStart = "fail",
        on_rejected: OnRejected = "fail",
        output_path: str | Resolvable | None = None,
        key: str | None = None,
        wait_for_completion: bool = False,
        callback_input: str = "callback_url",
        completion_timeout: timedelta | float = timedelta(days=1),
        on_run_failed: Literal["fail", "skip"] = "fail",
        send_retry_timeout: timedelta | float = timedelta(seconds=60),
        **kwargs: object,
    ) -> None:
        super().__init__(flow_id=flow_id, send_retry_timeout=send_retry_timeout, **kwargs)
        check_choice("on_unknown_start", on_unknown_start, "fail", "start_again")
        check_choice("on_rejected", on_rejected, "fail", "skip")
        _check_concurrency(max_concurrency)
        _check_rate(max_starts_per_second)
        _check_key(key)
        # Of whatever type the template or XCom has by then.
        self.batch: Any = batch
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.max_concurrency = max_concurrency
        self.max_starts_per_second = max_starts_per_second
        self.on_unknown_start = on_unknown_start
        self.on_rejected = on_rejected
        self.output_path: Any = output_path
        self._is_output_given = output_path is not None
        self.key = key
        self.wait_for_completion = wait_for_completion
        self.callback_input = callback_input
        self.completion_timeout = duration(
            "completion_timeout", completion_timeout, days=MAX_WAIT_DAYS
        )
        self.on_run_failed = on_run_failed
        self._entries = 0
        self._check_wait()
        check_references(self.batch)

    def _check_wait(self) -> None:
        check_wait(self.wait_for_completion, self.callback_input)
        check_choice("on_run_failed", self.on_run_failed, "fail", "skip")
        if self.wait_for_completion and not self._is_output_given:
            raise ValueError("wait_for_completion of a batch needs an output_path.")
        if self.wait_for_completion and self._starts_unknown_again:
            raise ValueError(
                "on_unknown_start='start_again' is not supported with wait_for_completion: an item "
                "in doubt is settled by the end of its run."
            )

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any] | None = None,
        entries: int = 0,
        **_: object,
    ) -> list[BatchItem] | BatchSummary:
        """
        Continue a batch that waits: Airflow calls this in place of ``execute``.

        :param event: not needed
        :param entries: how many entries the batch had when the task was suspended
        :param _: what a task was suspended with by another version
        """
        self._entries = entries
        return self._execute(context, pushed="")

    def _run_once(self, context: Context, *, pushed: str | None) -> list[BatchItem] | BatchSummary:
        # Not at the top: the DAG processor needs none of it.
        from workflow_automation_provider.execution.batch.batch_record import BatchRecord
        from workflow_automation_provider.execution.batch.summary import with_results

        if pushed is None and not self.wait_for_completion:
            names = ("callback_input", "completion_timeout", "on_run_failed")
            self._warn_of(TriggerFlowBatchOperator, names, "wait_for_completion=True")

        record = BatchRecord(context, start_again=self._starts_unknown_again)
        record.use()
        try:
            starter = self._starter(record, context)
        except InvalidRequestError as error:
            with contextlib.suppress(Exception):  # the error mentions that it could not be read
                record.read()

            raise with_results(error, record) from error.__cause__

        if pushed is None:
            return starter.start()
        return starter.resume(self._entries, self._trigger_failure)

    def _starter(self, record: BatchRecord, context: Context) -> BatchExecution:
        from workflow_automation_provider.execution.batch.options import BatchOptions
        from workflow_automation_provider.execution.batch.run_batch import BatchExecution

        options = BatchOptions(
            batch=self.batch,
            flow_id=self._rendered_flow_id(),
            key=self.key,
            output_path=self._rendered_output_path(),
            max_concurrency=self.max_concurrency,
            max_starts_per_second=self.max_starts_per_second,
            fails_if_rejected=self.on_rejected == "fail",
            fails_if_run_failed=self.on_run_failed == "fail",
            wait_for_completion=self.wait_for_completion,
            callback_input=self.callback_input,
            completion_timeout=self.completion_timeout,
        )
        return BatchExecution(record, self.hook, self._retrier, context, options)

    @property
    def _starts_unknown_again(self) -> bool:
        return self.on_unknown_start == "start_again"

    def _summary(self, result: list[BatchItem] | BatchSummary) -> TaskSummary:
        # Not the runs, which may be very many.
        if isinstance(result, list):
            statuses = [item["status"] for item in result]
            extra: dict[str, Any] = {name: statuses.count(name) for name in ("started", "rejected")}
            extra["total"] = len(result)
        else:
            names = ["path", "total", "started", "rejected"]
            if self.wait_for_completion:
                names = ["path", "total", "success", "failed", "overdue", "rejected"]

            extra = {name: number for name, number in result.items() if name in names}

        flow_id = self._rendered_flow_id() or self.hook.extra.flow_id
        if flow_id:
            extra["flow_id"] = flow_id

        read: object = self.batch
        if isinstance(self.batch, Sequence) and not isinstance(self.batch, str):
            read = ()  # its items, which come from no file

        return TaskSummary(extra, read=read, written=extra.get("path", ()))

    def _rendered_output_path(self) -> str | None:
        if not isinstance(self.output_path, str | None):
            raise InvalidRequestError(
                f"output_path is {kind_of(self.output_path)}: expected a path or URL as text."
            )

        # A template that rendered to None must not be mistaken for an argument left out.
        if self._is_output_given or self.output_path is not None:
            check_path("output_path", self.output_path)
        return self.output_path

    def _failure(self, context: Context, error: WorkflowAutomationError) -> WorkflowAutomationError:
        """Return the error to fail the task with."""
        return task_error(
            error,
            context,
            retried=(BatchInterruptedError,),
            starts_again=self._starts_unknown_again,
            what_to_do=_what_to_do(error),
        )


def _what_to_do(error: WorkflowAutomationError) -> str | None:
    """Return what to do after an error, None for what its code says."""
    if isinstance(error, RunFailedError):
        return "A Clear starts all items again: start those that failed in another batch."
    if error.accepted is not Accepted.NO:
        return (
            "A Clear starts all items again: unless Airflow retries the task,\n"
            "start those without a run in another batch."
        )

    # Not at the top: the DAG processor needs none of it.
    from workflow_automation_provider.execution.batch.output import OutputUnavailableError

    if isinstance(error, OutputUnavailableError):
        return (
            "Let output_path name a file that this task can write.\n"
            "If Airflow does not retry the task, clear the task."
        )

    return None


def _check_concurrency(number: int) -> None:
    is_valid = is_positive_integer(number) and number <= _MAX_CONCURRENCY
    if not is_valid:
        raise ValueError(
            f"max_concurrency is {number!r}: expected a whole number from 1 to {_MAX_CONCURRENCY}."
        )


def _check_rate(rate: float | None) -> None:
    if rate is None:
        return
    is_valid = isinstance(rate, int | float) and 0 < rate < float("inf")
    if not is_valid:
        raise ValueError(
            f"max_starts_per_second is {rate!r}: "
            "expected a number of more than 0, or None for no limit."
        )


def _check_key(key: str | None) -> None:
    if key is None:
        return
    is_valid = isinstance(key, str) and key != ""
    if not is_valid:
        raise ValueError(f"key is {key!r}: expected the name of an input, or None for no key.")
