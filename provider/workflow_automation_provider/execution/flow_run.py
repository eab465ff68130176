"""
Start the run of a task and, if the task asks for it, upload its files and wait for its end.

1. **Check** that Airflow can hear the run, and ask, before anything is sent.
2. **Start** the run, by :class:`~.start.RunStarter`. If it is in doubt whether one was started, a run that claims the
   start, or has ended, settles that; otherwise, a person may be asked, and the task parks.
3. **Upload** the run's files, which were checked before it was started.
4. **Wait** for its end: the task parks, and continues here with the run that it was parked with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workflow_automation_provider.exceptions import (
    OutcomeUnknownError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.callback_url import CallbackUrl
from workflow_automation_provider.execution.claim import ClaimRecord, StartClaims
from workflow_automation_provider.execution.parking import Reply
from workflow_automation_provider.execution.start import OnUnknownStart, RunStarter
from workflow_automation_provider.execution.start_record import StartedRun, StartRecord

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk import BaseNotifier

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.ask import PendingStart, UnknownStartPrompt
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.upload import FilesToUpload, Uploader
    from workflow_automation_provider.execution.wait import CompletionWait
    from workflow_automation_provider.hooks.file_sources import FileSource
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class Resumed(NamedTuple):
    """What Airflow continues a parked task with; nothing where a try begins."""

    event: dict[str, Any] | None = None
    run: StartedRun | None = None
    pending: PendingStart | None = None
    checks: int = 0
    timeout: float | None = None


class FlowRunTask(NamedTuple):
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
    wait_for_completion: bool
    callback_input: str
    completion_timeout: timedelta
    heartbeat_timeout: timedelta | None
    on_run_failed: Literal["fail", "start_again"]
    on_unknown_start: OnUnknownStart | Literal["ask", "claim"]
    claim_timeout: timedelta
    ask_timeout: timedelta
    notifiers: Sequence[BaseNotifier]

    @property
    def why_url(self) -> str:
        """The argument, as a user writes it, for which the run is given a URL; empty if it is given none."""
        if self.wait_for_completion:
            return "wait_for_completion"
        return "on_unknown_start='claim'" if self.on_unknown_start == "claim" else ""


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
        self._record.waits = task.wait_for_completion
        self._claims = ClaimRecord(context)
        self._url = (
            CallbackUrl(hook, context, name=task.callback_input, argument=task.why_url)
            if task.why_url
            else None
        )
        self.starter = RunStarter(
            self._record,
            hook,
            retrier,
            on_unknown_start=task.on_unknown_start,
            claims=StartClaims(
                self._claims,
                hook,
                retrier,
                on_unknown_start=task.on_unknown_start,
                timeout=task.claim_timeout,
                flow_id=task.flow_id,
                has_ended=self._has_ended,
            ),
            url=self._url,
        )
        """The start, which knows what an earlier try did."""
        self.run: StartedRun | None = None
        """The run, once it is known; empty if it has spoken, but not said its id."""
        self.uploaded: dict[str, Any] | None = None
        """What this process uploaded, for lineage."""

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
                prompt = self._prompt(resumed, wait)
                for part in (self._url, prompt):
                    if part:
                        part.check()
                run = self.run = self._start(wait, prompt, reply, resumed.pending)
                self._task.on_run(run)
                if wait:
                    wait.expect(self.starter.token)
                if self._task.files is not None and (wait is None or wait.needs_files(reply)):
                    self._upload(run, self._task.files)
            return wait.wait(run, reply, resumed.checks) if wait else run

    def _start(
        self,
        wait: CompletionWait | None,
        prompt: UnknownStartPrompt | None,
        reply: Reply,
        pending: PendingStart | None,
    ) -> StartedRun:
        """Start the run, or settle whether one was started."""
        if prompt and pending:
            if (run := self.starter.claimed()) is not None:
                return run
            if (
                prompt.says_none_started(reply, pending)
                and (run := self.starter.claimed(revokes=True)) is not None
            ):
                return run
            try:
                if run := prompt.resolve(reply, pending):
                    return self.starter.adopt(run)
            except WorkflowAutomationError:
                if (run := self.starter.claimed(revokes=True)) is not None:
                    return run
                raise
        try:
            return self.starter.start(
                self._prepare, on_supplied=(lambda token: wait.expect(token, anew=True)) if wait else None
            )
        except (OutcomeUnknownError, ResponseUnusableError) as error:
            if not prompt:
                raise
            entry = self._record.read()
            prompt.ask(error, self._task.flow_id or self._hook.extra.flow_id, entry.at if entry else None)

    def _has_ended(self, token: str) -> bool:
        """Return whether it is known how the run with this token ended, or the task no longer waits for it."""
        from workflow_automation_provider.execution.wait_state import WaitRecord

        return WaitRecord(self._context).is_over(token)

    def _start_over(self, token: str | None) -> None:
        """Have the next try start another run, because the flow said that this one failed."""
        self._claims.start_over(token)
        self._record.clear()

    def _prepare(self) -> Request:
        flow_id = self._task.rendered_flow_id()
        # First, because what makes them may write the files as well.
        inputs = self._task.make_inputs()
        if self._task.files is not None:
            self._uploads.prepare(flow_id, self._files(self._task.files))
        if not self._url:
            return self._hook.prepare_trigger(inputs, flow_id)
        return self._url.first(inputs, lambda inputs: self._hook.prepare_trigger(inputs, flow_id))

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

        return FilesToUpload(files=files)

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
            claims=self._claims,
            timeout=timeout,
            heartbeat_timeout=self._task.heartbeat_timeout,
            expects_claim=self._task.on_unknown_start == "claim",
            on_failed=self._start_over
            if self._task.on_run_failed == "start_again" and not self._record.is_last_try
            else None,
        )

    def _waited(self, resumed: Resumed) -> bool:
        """Return whether the task waited for its run, or asked how it ended, before the DAG was edited."""
        if "task_state_store" not in self._context or not (
            resumed.pending or self._context["ti"].try_number > 1
        ):
            return False
        from workflow_automation_provider.execution.wait_state import WaitRecord

        if resumed.pending and resumed.pending.get("then_waits"):
            return True
        return WaitRecord(self._context).read().since is not None

    def _prompt(self, resumed: Resumed, wait: CompletionWait | None) -> UnknownStartPrompt | None:
        """Return the question whether a run was started, None if nobody is to be asked."""
        # A start that was asked about is settled as the answer says, also if the DAG has been edited since.
        if not (self._task.on_unknown_start == "ask" or resumed.pending):
            return None
        from workflow_automation_provider.execution.ask import UnknownStartPrompt

        return UnknownStartPrompt(
            self._record,
            self._hook,
            self._context,
            self._retrier.log,
            timeout=self._task.ask_timeout,
            notifiers=self._task.notifiers,
            then_waits=wait is not None,
        )
