"""
Start the run of a task and, if the task asks for it, upload its files and wait for its end.

1. **Check** that Airflow can hear the run, before anything is sent.
2. **Start** the run, by :class:`~.start.RunStarter`. If it is in doubt whether one was started, a run that claims the
   start, or has ended, settles that.
3. **Upload** the run's files, which were checked before it was started.
4. **Wait** for its end: the task parks, and continues here with the run that it was parked with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workflow_automation_provider.exceptions import UnidentifiedError
from workflow_automation_provider.execution.callback_url import CallbackUrl
from workflow_automation_provider.execution.claim import ClaimRecord, StartClaims
from workflow_automation_provider.execution.start import OnUnknownStart, RunStarter
from workflow_automation_provider.execution.start_record import RunResult, StartRecord

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.files import Element
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.upload import FilesToUpload, Uploader
    from workflow_automation_provider.execution.wait import CompletionWait
    from workflow_automation_provider.hooks.sources import FileSource
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class Resumed(NamedTuple):
    """What Airflow continues a parked task with; nothing where a try begins."""

    run: RunResult | None = None
    checks: int = 0
    timeout: float | None = None


class StartOptions(NamedTuple):
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
    on_run: Callable[[RunResult], None]
    files: FileSource | Sequence[FileSource] | None
    wait_for_completion: bool
    callback_input: str
    completion_timeout: timedelta
    heartbeat_timeout: timedelta | None
    on_run_failed: Literal["fail", "start_again"]
    on_unknown_start: OnUnknownStart | Literal["claim"]
    claim_timeout: timedelta

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
        self, context: Context, hook: WorkflowAutomationHook, retrier: SendRetrier, options: StartOptions
    ) -> None:
        self._context = context
        self._hook = hook
        self._retrier = retrier
        self._options = options
        self._record = StartRecord(context)
        self._record.request = options.request
        self._record.waits = options.wait_for_completion
        self._claims = ClaimRecord(context)
        self._url = (
            CallbackUrl(hook, context, name=options.callback_input, argument=options.why_url)
            if options.why_url
            else None
        )
        self.starter = RunStarter(
            self._record,
            hook,
            retrier,
            on_unknown_start=options.on_unknown_start,
            claims=StartClaims(
                self._claims,
                hook,
                retrier,
                on_unknown_start=options.on_unknown_start,
                timeout=options.claim_timeout,
                flow_id=options.flow_id,
                has_ended=self._has_ended,
            ),
            url=self._url,
        )
        """The start, which knows what an earlier try did."""
        self.run: RunResult | None = None
        """The run, once it is known; empty if it has spoken, but not said its id."""
        self.uploaded: Sequence[Element] = ()
        """What this process uploaded, for lineage."""

    def execute(self, resumed: Resumed) -> RunResult:
        """
        Start the run, unless an earlier try did, then upload its files and wait for its end.

        :raises WorkflowAutomationError: if one of these failed
        :raises BaseException: Airflow's signal to park the task
        """
        self._record.use()
        # Also if there is none yet: one process may execute several tasks.
        self._options.on_run(resumed.run or {})
        wait = self._wait(resumed)
        # A task that was parked with its run never starts one: its record may have been deleted meanwhile.
        if resumed.run is not None:
            run = self.run = resumed.run
        else:
            if self._url:
                self._url.check()
            on_supplied = functools.partial(wait.expect, anew=True) if wait else None
            run = self.run = self.starter.start(self._prepare, on_supplied=on_supplied)
            self._options.on_run(run)
            if wait:
                wait.expect(self.starter.token)
            if self._options.files is not None and (wait is None or wait.needs_files()):
                self._upload(run, self._options.files)
        return wait.wait(run, resumed.checks) if wait else run

    def _has_ended(self, token: str) -> bool:
        """Return whether it is known how the run with this token ended, or the task no longer waits for it."""
        from workflow_automation_provider.execution.wait_state import WaitRecord

        return WaitRecord(self._context).is_over(token)

    def _start_over(self, token: str | None) -> None:
        """Have the next try start another run, because the flow said that this one failed."""
        self._claims.start_over(token)
        self._record.clear()

    def _prepare(self) -> Request:
        flow_id = self._options.rendered_flow_id()
        # First, because what makes them may write the files as well.
        inputs = self._options.make_inputs()
        if self._options.files is not None:
            self._uploads.prepare(flow_id, self._files(self._options.files))
        if not self._url:
            return self._hook.prepare_trigger(inputs, flow_id)
        return self._url.first(inputs, lambda inputs: self._hook.prepare_trigger(inputs, flow_id))

    def _upload(self, run: RunResult, files: FileSource | Sequence[FileSource]) -> None:
        """Upload the run's files, except those that an earlier try uploaded."""
        if "run_id" not in run:
            raise UnidentifiedError("The files cannot be uploaded: the run that was started has no run_id.")
        flow_id = run.get("flow_id") or self._options.flow_id
        self._uploads.upload(run["run_id"], flow_id, self._files(files))
        self.uploaded = self._uploads.elements

    @functools.cached_property
    def _uploads(self) -> Uploader:
        from workflow_automation_provider.execution.upload import Uploader, UploadRecord

        return Uploader(UploadRecord(self._context, of_own_run=True), self._hook, self._retrier)

    def _files(self, files: FileSource | Sequence[FileSource]) -> FilesToUpload:
        from workflow_automation_provider.execution.upload import FilesToUpload

        return FilesToUpload(files=files)

    def _wait(self, resumed: Resumed) -> CompletionWait | None:
        """Return the wait for the end of the run, None for none."""
        waits = self._options.wait_for_completion
        if not (waits or resumed.run is not None or self._waited()):
            return None
        from workflow_automation_provider.execution.wait import CompletionWait
        from workflow_automation_provider.execution.wait_state import WaitRecord

        timeout = self._options.completion_timeout
        if not waits and resumed.timeout is not None:
            timeout = timedelta(seconds=resumed.timeout)
        return CompletionWait(
            WaitRecord(self._context),
            self._hook,
            self._retrier,
            self._context,
            claims=self._claims,
            timeout=timeout,
            heartbeat_timeout=self._options.heartbeat_timeout,
            expects_claim=self._options.on_unknown_start == "claim",
            on_failed=self._start_over
            if self._options.on_run_failed == "start_again" and not self._record.is_last_try
            else None,
        )

    def _waited(self) -> bool:
        """Return whether the task waited for its run before the DAG was edited."""
        if self._context["ti"].try_number <= 1:
            return False
        from workflow_automation_provider.execution.wait_state import WaitRecord

        return WaitRecord(self._context).read().since is not None
