"""
The operator that starts a run.

:class:`UploadFilesOperator` can be imported from here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from workflow_automation_provider.client.checks import check_choice, duration
from workflow_automation_provider.client.rendered_values import check_names, check_rendered
from workflow_automation_provider.exceptions import (
    OutcomeUnknownError,
    RunFailedError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.errors import error_after_start, task_error
from workflow_automation_provider.links import FlowRunLink
from workflow_automation_provider.operators.base import (
    MAX_WAIT_DAYS,
    UNSET,
    FlowOperator,
    TaskSummary,
    check_wait,
    link_of,
)
from workflow_automation_provider.operators.uploads import UploadFilesOperator
from workflow_automation_provider.operators.xcom_arg import (
    FlowOutput,
    check_pushed,
    check_references,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.exceptions import WorkflowAutomationError
    from workflow_automation_provider.execution.record.entries import RunResult
    from workflow_automation_provider.execution.run.start import OnUnknownStart
    from workflow_automation_provider.execution.run.trigger_execution import TriggerExecution
    from workflow_automation_provider.hooks.files.sources import FileSource
    from workflow_automation_provider.operators.templates import Resolvable

__all__ = ["TriggerFlowOperator", "UploadFilesOperator"]


class TriggerFlowOperator(FlowOperator["RunResult"]):
    """
    Start a run of a flow, once.

    With a ``flow_id``, the flow is triggered by path; without one, the connection's API key
    identifies the flow. Returns ``run_id``, ``run_link`` and, if it is known, ``flow_id``. Pass
    ``trigger.output`` on to :class:`UploadFilesOperator`. A trigger by key whose response has no
    ``run_id`` succeeds, and returns the whole ``response`` instead.

    A task instance never starts a second run on its own: the run is recorded (Airflow 3.3+), a
    retry returns the recorded run, and if it is unknown whether a run was started, the task fails
    and says so. Clearing the task starts a new run.

    Follows sections 4.1 and 4.2 of the interface.

    :param inputs: names and values of the flow's inputs, by default none (templated, nested values
        too)
    :param flow_id: the flow to start, by a request that carries no API key; by default that of the
        key (templated). None and an empty string are errors
    :param workflow_automation_conn_id: the connection (templated)
    :param wait_for_completion: whether to wait, without a worker, until the flow says by its last
        step how the run ended, and to return its ``result`` as well (Airflow 3.3+)
    :param callback_input: the name of the input that gets the URL by which the flow calls back
    :param completion_timeout: how long a task waits for the end of the run, from its start; then it
        fails. At most 365 days
    :param files: files to upload for the run, as for :class:`UploadFilesOperator`: found before it
        is started, uploaded before the task waits (templated, nested values too)
    :param heartbeat_timeout: how long the run that a task waits for may say nothing; then the task
        fails. By default ``completion_timeout``
    :param on_run_failed: what to do if the flow says that the run failed: ``"fail"`` without a
        retry, or ``"start_again"``: a retry starts another run
    :param on_unknown_start: what to do if it is unknown whether a run was started: ``"fail"``
        without a retry; ``"claim"``: the run asks by its first step whether it may go on, and the
        task returns the run that did, or the next try stops it and starts another (Airflow 3.3+);
        or ``"start_again"`` in the next try, which may start a second run. A flow without that
        first step makes ``"claim"`` equal to ``"start_again"``: it may run twice
    :param claim_timeout: where the outcome of a start is unknown, how long a try waits, in its
        worker, for the run to call; then the try fails. At most 1 day
    :param send_retry_timeout: how long to retry within one try while the service is busy or cannot
        be reached, beside a ``Retry-After`` of up to 10 minutes; then Airflow retries the task. 0
        sends once
    :param multiple_outputs: whether each key of the result is also an XCom of its own
    """

    _returns_run = True
    template_fields: Sequence[str] = ("inputs", "flow_id", "workflow_automation_conn_id", "files")
    template_fields_renderers: ClassVar[dict[str, str]] = {"inputs": "json", "files": "json"}
    operator_extra_links = (FlowRunLink(),)

    def __init__(
        self,
        *,
        inputs: Mapping[str, Any] | Resolvable = UNSET,
        flow_id: str | Resolvable = UNSET,
        workflow_automation_conn_id: str | Resolvable = "workflow_automation_default",
        wait_for_completion: bool = False,
        callback_input: str = "callback_url",
        completion_timeout: timedelta | float = timedelta(days=1),
        files: FileSource | Sequence[FileSource | Resolvable] | Resolvable | None = None,
        heartbeat_timeout: timedelta | float | None = None,
        on_run_failed: Literal["fail", "start_again"] = "fail",
        on_unknown_start: OnUnknownStart | Literal["claim"] = "fail",
        claim_timeout: timedelta | float = timedelta(seconds=60),
        send_retry_timeout: timedelta | float = timedelta(seconds=60),
        multiple_outputs: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            multiple_outputs=multiple_outputs,
            flow_id=flow_id,
            send_retry_timeout=send_retry_timeout,
            **kwargs,
        )
        # Of whatever type the template or XCom has by then.
        self.inputs: Any = {} if inputs is UNSET else inputs
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.wait_for_completion = wait_for_completion
        self.callback_input = callback_input
        self.completion_timeout = duration(
            "completion_timeout", completion_timeout, days=MAX_WAIT_DAYS
        )
        self.heartbeat_timeout = None
        if heartbeat_timeout is not None:
            self.heartbeat_timeout = duration(
                "heartbeat_timeout", heartbeat_timeout, days=MAX_WAIT_DAYS
            )
        self.on_run_failed = on_run_failed
        # It occupies a worker.
        self.claim_timeout = duration("claim_timeout", claim_timeout, days=1)
        self.files: Any = files
        self._are_files_given = files is not None
        self.on_unknown_start = on_unknown_start
        self._execution: TriggerExecution | None = None
        self._check_values()

    def _check_values(self) -> None:
        check_choice("on_unknown_start", self.on_unknown_start, "fail", "claim", "start_again")
        check_choice("on_run_failed", self.on_run_failed, "fail", "start_again")
        check_wait(self.wait_for_completion, self.callback_input)
        check_references(self.inputs, self.files)

    @property
    def output(self) -> FlowOutput:
        """
        What the task returns, for the arguments of later tasks.

        ``output["result"]["rows"]`` is a field of the result.

        :raises ValueError: if the task has ``do_xcom_push=False``
        """
        check_pushed(self)
        return FlowOutput(operator=self)

    @property
    def _run_link(self) -> str | None:
        """The link of the button **Open run**, empty if there is none; None before it is known."""
        return self._execution.xcoms.link if self._execution else None

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any] | None = None,
        pushed: str = "",
        **_: object,
    ) -> RunResult:
        """
        Continue a task that waits: Airflow calls this in place of ``execute``.

        It does what a retry does, but sends nothing: all that it needs is in the record.

        :param event: that Airflow's timeout has passed, which the endpoint may have shortened; not
            needed
        :param pushed: hash of what the task has pushed of its run
        :param _: what a task was suspended with by another version
        """
        return self._execute(context, pushed=pushed)

    def _run_once(self, context: Context, *, pushed: str | None) -> RunResult:
        """Start the run, unless an earlier try did, then upload and wait as configured."""
        # Not at the top: the DAG processor needs none of it.
        from workflow_automation_provider.execution.record.start_decision import StartOptions
        from workflow_automation_provider.execution.run.trigger_execution import TriggerExecution

        if pushed is None:
            self._log_unused()

        options = StartOptions(
            context["ti"].max_tries,
            self._request_digest(),
            is_resumed=pushed is not None,
            trigger_failure=self._trigger_failure,
            on_unknown_start=self.on_unknown_start,
            on_run_failed=self.on_run_failed,
            claim_timeout=self.claim_timeout,
            wait_for_completion=self.wait_for_completion,
            completion_timeout=self.completion_timeout,
            heartbeat_timeout=self.heartbeat_timeout,
            callback_input=self.callback_input,
        )
        flow_run = TriggerExecution(context, self.hook, self._retrier, options, self.files, pushed)
        self._execution = flow_run
        run = flow_run.find()
        if run is None:
            flow_id = self._rendered_flow_id()
            # Before the files are looked for: a function that makes the inputs may write them.
            run = flow_run.send(self._checked_inputs(context), flow_id)

        if flow_run.has_files_to_upload():
            flow_run.upload(run.get("flow_id") or self._rendered_flow_id())

        return flow_run.wait()

    def _log_unused(self) -> None:
        """Warn of arguments without an effect."""
        if self.wait_for_completion:
            return

        names = ("completion_timeout", "heartbeat_timeout", "on_run_failed")
        self._warn_of(TriggerFlowOperator, names, "wait_for_completion=True")
        if self.on_unknown_start != "claim":
            needed = "wait_for_completion=True or on_unknown_start='claim'"
            self._warn_of(TriggerFlowOperator, ("callback_input", "claim_timeout"), needed)

    def _request_digest(self) -> str | None:
        """Return what identifies the request later, None if its inputs are not yet known."""
        from workflow_automation_provider.execution.run.start import request_digest

        return request_digest(self.inputs, self.flow_id)

    def _checked_inputs(self, context: Context) -> Mapping[str, Any]:
        # A template that rendered to None must not be mistaken for an argument left out.
        if self._are_files_given and self.files is None:
            check_rendered("files", None)
        return self._make_inputs(context)

    def _make_inputs(self, context: Context) -> Mapping[str, Any]:
        """Return the inputs, once it is certain that a run is to be started."""
        inputs: Mapping[str, Any] = self.inputs
        check_names("inputs", inputs)
        return inputs

    def _summary(self, result: RunResult) -> TaskSummary:
        extra = {
            name: value for name, value in result.items() if name not in ("run_link", "response")
        }
        # Of a task that was suspended, an earlier process has uploaded the files.
        files = (self._execution and self._execution.uploaded) or self.files
        return TaskSummary(extra | link_of(result), read=files)

    def _failure(self, context: Context, error: WorkflowAutomationError) -> WorkflowAutomationError:
        """Return the error to fail the task with, which never leaves out a run that was started."""
        run = earlier = None
        if self._execution:
            run = self._execution.run
            earlier = self._execution.starter.earlier

        # These two errors already say what is known of the run.
        if run is not None and not isinstance(error, RunFailedError | UnidentifiedError):
            flow_id = error.flow_id or run.get("flow_id")
            run_id = error.run_id or run.get("run_id")
            return error_after_start(
                error.with_facts(flow_id=flow_id, run_id=run_id),
                context,
                run,
                retried=(OutcomeUnknownError,),
            )

        retried: list[type[WorkflowAutomationError]] = []
        if self.on_unknown_start == "claim":
            retried.append(OutcomeUnknownError)
        if self.on_run_failed == "start_again":
            retried.append(RunFailedError)

        return task_error(
            error,
            context,
            retried=tuple(retried),
            starts_again=self.on_unknown_start == "start_again",
            earlier=earlier,
        )
