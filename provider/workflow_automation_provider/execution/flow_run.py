"""
What the task of one run does: start it, upload its files, and wait for its end, as far as asked for.

1. **Check** that Airflow can wait and ask, before anything is sent.
2. **Start** the run, by :class:`~.start.RunStarter`. If it is in doubt whether one was started, a flow that has called
   back settles that; otherwise, a person may be asked, and the task parks.
3. **Upload** the run's files, which were checked before it was started.
4. **Wait** for its end: the task parks, and continues here with the run that it was parked with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workflow_automation_provider.exceptions import OutcomeUnknownError, ResponseUnusableError
from workflow_automation_provider.execution.parking import Reply
from workflow_automation_provider.execution.start import OnUnknownStart, RunStarter
from workflow_automation_provider.execution.start_record import StartedRun, StartRecord

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk import BaseNotifier

    from workflow_automation_provider.client.files import FileFormat
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.doubt import StartQuestion
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.upload import FilesToUpload, Uploader
    from workflow_automation_provider.execution.wait import CompletionWait
    from workflow_automation_provider.hooks.file_sources import FileSource
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = ["FlowRun", "FlowRunTask", "Resumed"]


class Resumed(NamedTuple):
    """What Airflow continues a parked task with; nothing where a try begins."""

    event: dict[str, Any] | None = None
    run: StartedRun | None = None
    doubt: dict[str, Any] | None = None
    checks: int = 0
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class FlowRunTask:
    """
    What a task asks for: arguments of its operator.

    :param rendered_flow_id: returns the flow to start, None for that of the API key; called only if a run is to be
        started, as ``make_inputs``
    :param request: identifies the request in a later try, None if its inputs are not known before the start
    :param on_run: called with the run as soon as it is known
    """

    flow_id: str | None
    rendered_flow_id: Callable[[], str | None]
    make_inputs: Callable[[], Mapping[str, Any]]
    request: str | None
    on_run: Callable[[StartedRun], None]
    files: FileSource | Sequence[FileSource] | None
    file_format: FileFormat | None
    wait_for_completion: bool
    callback_input: str
    completion_timeout: timedelta
    on_unknown_start: OnUnknownStart | Literal["ask"]
    ask_timeout: timedelta
    notifiers: Sequence[BaseNotifier]


class FlowRun:
    """
    The run of one task instance.

    :param hook: sends the requests; closed afterwards
    :param retrier: how long to keep retrying while the service is busy or cannot be reached
    """

    def __init__(
        self, context: Context, hook: WorkflowAutomationHook, retrier: SendRetrier, task: FlowRunTask
    ) -> None:
        self._context = context
        self._hook = hook
        self._retrier = retrier
        self._task = task
        self._record = StartRecord(context)
        self._record.request = task.request
        self._starter = RunStarter(
            self._record,
            hook,
            retrier,
            on_unknown_start="start_again" if task.on_unknown_start == "start_again" else "fail",
        )
        self.run: StartedRun | None = None
        """The run, once it is known; empty if all that is known is that the flow has called back."""
        self.uploaded: dict[str, Any] | None = None
        """What this process uploaded, for lineage."""

    @property
    def starter(self) -> RunStarter:
        """The start, which knows what an earlier try did."""
        return self._starter

    def execute(self, resumed: Resumed) -> StartedRun:
        """
        Start the run, unless an earlier try did, then upload its files and wait for its end.

        :raises WorkflowAutomationError: if one of these failed
        :raises BaseException: Airflow's signal to park the task
        """
        with self._record.in_use("the task"):
            reply = Reply.of(resumed.event)
            # Also if there is none yet: one process may execute several tasks.
            self._task.on_run(resumed.run or {})
            wait = self._wait(resumed)
            # A task that was parked with its run never starts one: its record may have been deleted meanwhile.
            if resumed.run is not None:
                run = self.run = resumed.run
            else:
                question = self._question(resumed, wait)
                for part in (wait, question):
                    if part:
                        part.check()
                run = self._known(self._start(wait, question, reply, resumed.doubt))
                if self._task.files is not None and (wait is None or wait.needs_files(reply)):
                    self._upload(run, self._task.files)
            return wait.wait(run, reply, resumed.checks) if wait else run

    def _known(self, run: StartedRun) -> StartedRun:
        self.run = run
        self._task.on_run(run)
        return run

    def _start(
        self,
        wait: CompletionWait | None,
        question: StartQuestion | None,
        reply: Reply,
        doubt: dict[str, Any] | None,
    ) -> StartedRun:
        """Start the run, or resolve the doubt whether one was started; empty if the flow has called back."""
        if wait and (doubt or self._is_to_start_again()) and wait.has_answer():
            return {}
        if question and doubt and (run := question.resolve(reply, doubt)):
            return self._starter.adopt(run)
        try:
            return self._starter.start(
                lambda: self._prepare(wait), on_supplied=wait.supplied if wait else None
            )
        except (OutcomeUnknownError, ResponseUnusableError) as error:
            if wait and wait.has_answer():
                return {}
            if not question:
                raise
            entry = self._record.read()
            question.ask(error, self._task.flow_id or self._hook.extra.flow_id, entry.at if entry else None)

    def _is_to_start_again(self) -> bool:
        return self._task.on_unknown_start == "start_again" and self._starter.is_in_doubt()

    def _prepare(self, wait: CompletionWait | None) -> Request:
        flow_id = self._task.rendered_flow_id()
        # First, because what makes them may write the files as well.
        inputs = self._task.make_inputs()
        if self._task.files is not None:
            self._prepare_files(flow_id, self._task.files)
        if not wait:
            return self._hook.prepare_trigger(inputs, flow_id)
        return wait.open(inputs, lambda inputs: self._hook.prepare_trigger(inputs, flow_id))

    def _prepare_files(self, flow_id: str | None, files: FileSource | Sequence[FileSource]) -> None:
        """Check the files before a run is started for them."""
        self._uploads.prepare(flow_id, self._files(files))

    def _upload(self, run: StartedRun, files: FileSource | Sequence[FileSource]) -> None:
        """Upload the run's files, except those that an earlier try uploaded."""
        if "run_id" not in run:
            raise ResponseUnusableError(
                "The files cannot be uploaded: the run that was started has no run_id.",
                next_step="Look in the workflow's list of runs.",
            )
        flow_id = run.get("flow_id") or self._task.flow_id
        uploaded = self._uploads.upload(run["run_id"], flow_id, self._files(files))
        self.uploaded = {
            "inputs": self._uploads.inputs,
            "files": uploaded["files"],
            "size": uploaded["bytes"],
        }

    @functools.cached_property
    def _uploads(self) -> Uploader:
        from workflow_automation_provider.execution.upload import Uploader
        from workflow_automation_provider.execution.upload_record import UploadRecord

        return Uploader(UploadRecord(self._context, of_own_run=True), self._hook, self._retrier)

    def _files(self, files: FileSource | Sequence[FileSource]) -> FilesToUpload:
        from workflow_automation_provider.execution.upload import FilesToUpload

        return FilesToUpload(files=files, file_format=self._task.file_format)

    def _wait(self, resumed: Resumed) -> CompletionWait | None:
        """Return the wait for the end of the run, None for none."""
        waits = self._task.wait_for_completion
        if not (waits or resumed.run is not None or self._waited(resumed)):
            return None
        from workflow_automation_provider.execution.wait import CompletionWait
        from workflow_automation_provider.execution.wait_state import WaitRecord

        timeout = self._task.completion_timeout
        if not waits and resumed.timeout is not None:
            timeout = timedelta(seconds=resumed.timeout)
        return CompletionWait(
            WaitRecord(self._context),
            self._hook,
            self._retrier,
            self._context,
            callback_input=self._task.callback_input,
            timeout=timeout,
        )

    def _waited(self, resumed: Resumed) -> bool:
        """Return whether the task waited for its run, or asked how it ended, before the DAG was edited."""
        if "task_state_store" not in self._context or not (
            resumed.doubt or self._context["ti"].try_number > 1
        ):
            return False
        from workflow_automation_provider.execution.wait_state import WaitRecord

        waiting = WaitRecord(self._context).read()
        return waiting.since is not None or bool(resumed.doubt and waiting.digest)

    def _question(self, resumed: Resumed, wait: CompletionWait | None) -> StartQuestion | None:
        """Return the question whether a run was started, None if nobody is to be asked."""
        # A doubt that was asked about is resolved as its answer says, also if the DAG has been edited since.
        if not (self._task.on_unknown_start == "ask" or resumed.doubt):
            return None
        from workflow_automation_provider.execution.doubt import StartQuestion

        return StartQuestion(
            self._record,
            self._hook,
            self._context,
            self._retrier.log,
            timeout=self._task.ask_timeout,
            notifiers=self._task.notifiers,
            then_waits=wait is not None,
        )
