"""
Start the run of a task and, if the task asks for it, upload its files and wait for its end.

1. **Read** what an earlier try did, by :class:`~.start.RunStarter`.
2. **Start** the run, unless there is one, after a check that Airflow can hear it.
3. **Upload** the run's files, which were checked before it was started.
4. **Wait** for its end: the task parks, and continues here with the run that it was parked with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workflow_automation_provider.exceptions import UnidentifiedError
from workflow_automation_provider.execution.ledger import Asked
from workflow_automation_provider.execution.record import StartRecord
from workflow_automation_provider.execution.start import OnUnknownStart, RunStarter
from workflow_automation_provider.execution.wait import CompletionWait, Waiting

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.files import Element
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.callback_url import CallbackUrl
    from workflow_automation_provider.execution.ledger import RunResult
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.upload import Uploader
    from workflow_automation_provider.hooks.sources import FileSource
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class StartOptions(NamedTuple):
    """
    What a task asks for: arguments of its operator.

    :param rendered_flow_id: returns the flow to start, None for that of the API key; called only if a run is to be
        started, as ``make_inputs``
    :param request: identifies the request in a later try, None if its inputs are not known before the start
    :param on_run: called with the run as soon as it is known, and whether the task goes on after that
    """

    flow_id: str | None
    rendered_flow_id: Callable[[], str | None]
    make_inputs: Callable[[], Mapping[str, Any]]
    request: str | None
    on_run: Callable[[RunResult, bool], None]
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
        self._log = retrier.log
        self._options = options
        self._record = StartRecord(context)
        self._url: CallbackUrl | None = None
        if options.why_url:
            from workflow_automation_provider.execution.callback_url import CallbackUrl

            self._url = CallbackUrl(hook, context, name=options.callback_input, argument=options.why_url)
        self.starter = RunStarter(
            self._record,
            hook,
            retrier,
            Asked(
                self._record.max_tries,
                options.request,
                on_unknown_start=options.on_unknown_start,
                replaces_failed=options.on_run_failed == "start_again",
            ),
            claim_timeout=options.claim_timeout,
            url=self._url,
            waits=options.wait_for_completion,
        )
        """The start, which knows what an earlier try did."""
        self.run: RunResult | None = None
        """The run, once it is known; empty if it has spoken, but not said its id."""
        self.uploaded: Sequence[Element] = ()
        """What this process uploaded, for lineage."""

    def execute(self, parked: Mapping[str, Any] | None = None) -> RunResult:
        """
        Start the run, unless an earlier try did, then upload its files and wait for its end.

        :param parked: what the task was parked with, None where a try begins
        :raises WorkflowAutomationError: if one of these failed
        :raises BaseException: Airflow's signal to park the task
        """
        self._record.use()
        # Also if there is none yet: one process may execute several tasks.
        self._options.on_run(parked["run"] if parked else {}, False)
        if parked:
            # A task that was parked with its run never starts one: its record may have been deleted meanwhile.
            self.run = parked["run"]
            return self._wait(self.run, parked)
        run = self.run = self.starter.start(self._prepare)
        facts = self.starter.facts
        # As it was when the run was started, whatever the DAG says by now.
        waits = facts.start.waits
        self._options.on_run(run, waits or self._options.files is not None)
        if self._options.files is not None:
            if facts.spoken.end and facts.spoken.end.status == "failed":
                self._log.warning("The run has failed: no files are uploaded.")
            else:
                self._upload(run)
        return self._wait(run) if waits else run

    def _prepare(self) -> Request:
        if self._url:
            self._url.check()
        flow_id = self._options.rendered_flow_id()
        # First, because what makes them may write the files as well.
        inputs = self._options.make_inputs()
        if self._options.files is not None:
            self._uploads.prepare(flow_id)
        return self._hook.prepare_trigger(self._url.added_to(inputs) if self._url else inputs, flow_id)

    def _upload(self, run: RunResult) -> None:
        """Upload the run's files, except those that an earlier try uploaded."""
        if "run_id" not in run:
            raise UnidentifiedError("The files cannot be uploaded: the run that was started has no run_id.")
        flow_id = run.get("flow_id") or self._options.flow_id
        self._uploads.upload(run["run_id"], flow_id)
        self.uploaded = self._uploads.elements

    @functools.cached_property
    def _uploads(self) -> Uploader:
        from workflow_automation_provider.execution.upload import Uploader

        files = self._options.files or ()
        return Uploader(self._context, self._hook, self._retrier, files, of_own_run=True)

    def _wait(self, run: RunResult, parked: Mapping[str, Any] | None = None) -> RunResult:
        timeout = self._options.completion_timeout
        waiting = Waiting.read(parked) if parked else Waiting.of(self.starter.facts, run, timeout)
        return CompletionWait(
            self._record,
            self._hook,
            self._retrier,
            self._context,
            heartbeat_timeout=self._options.heartbeat_timeout,
            expects_claim=self._options.on_unknown_start == "claim",
        ).wait(waiting)
