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
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.sdk.log import mask_secret

from workflow_automation_provider.client.protocol import is_loopback, parse_base_url
from workflow_automation_provider.client.settings import CALLBACK_EXAMPLE
from workflow_automation_provider.exceptions import InvalidRequestError, UnidentifiedError
from workflow_automation_provider.execution.callback import PATH, digest_of, new_token
from workflow_automation_provider.execution.ledger import Asked
from workflow_automation_provider.execution.record import StartRecord
from workflow_automation_provider.execution.start import OnUnknownStart, RunStarter
from workflow_automation_provider.execution.wait import CompletionWait, Waiting

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.files import Element
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.ledger import RunResult
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.upload import Uploader
    from workflow_automation_provider.hooks.sources import FileSource
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

_BACKEND = "airflow.state.metastore.MetastoreBackend"


def _unsupported() -> str:
    """Return the setting that deletes entries, or moves them out of the database; empty if none is set."""
    if conf.getboolean("state_store", "clear_on_success", fallback=False):
        return "[state_store] clear_on_success"
    if conf.get("state_store", "backend", fallback=_BACKEND) != _BACKEND:
        return "[state_store] backend"
    return (
        "[workers] state_store_backend"
        if conf.get("workers", "state_store_backend", fallback="")
        else ""
    )


def _base_url(hook: WorkflowAutomationHook) -> str:
    """
    Return the URL at which the service reaches Airflow's API server.

    :raises InvalidRequestError: if there is none that it can reach
    """
    extra = hook.extra
    try:
        base, name = extra.callback_base_url, "The connection's callback_base_url"
        if not base:
            name = "[api] base_url"
            base = parse_base_url(
                conf.get("api", "base_url", fallback=None) or "",
                allow_http=extra.allow_http,
                name=name,
                example=CALLBACK_EXAMPLE,
            )
        host = urlsplit(base).hostname or ""
        if is_loopback(host) and not is_loopback(urlsplit(hook.get_conn().base_url).hostname or ""):
            raise InvalidRequestError(
                f"{name} is {host}, which only this machine reaches: the flow could not call back."
            )
    except InvalidRequestError as error:
        raise InvalidRequestError(
            error.message,
            next_step=(
                "Set the connection's extra callback_base_url to the URL at which the service reaches Airflow's API "
                f"server, such as {CALLBACK_EXAMPLE}."
            ),
        ) from None
    return base


@dataclass(kw_only=True, eq=False, repr=False)
class FlowRun:
    """
    The run of one task instance, with these parameters besides the arguments of its operator.

    :param hook: sends the requests, and redacts the token
    :param retrier: how long to keep retrying while the service is busy or cannot be reached
    :param rendered_flow_id: returns the flow, None for that of the API key; called only where it is needed
    :param make_inputs: returns the inputs; called only if a run is to be started
    :param request: hash of the request, None if its inputs are not known before the start
    :param on_run: called with the run as soon as it is known, and whether the task goes on after that
    """

    context: Context
    hook: WorkflowAutomationHook
    retrier: SendRetrier
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
    run: RunResult | None = field(default=None, init=False)
    """The run, once it is known; empty if it has begun, but not said its id."""
    uploaded: Sequence[Element] = field(default=(), init=False)
    """What this process uploaded, for lineage."""

    def __post_init__(self) -> None:
        self._record = StartRecord(self.context)
        self.starter = RunStarter(
            self._record,
            self.hook,
            self.retrier,
            Asked(
                self._record.max_tries,
                self.request,
                on_unknown_start=self.on_unknown_start,
                replaces_failed=self.on_run_failed == "start_again",
            ),
            claim_timeout=self.claim_timeout,
            waits=self.wait_for_completion,
        )
        """The start, which knows what an earlier try did."""

    @property
    def _why_url(self) -> str:
        """The argument that gives the run a URL, as a user writes it; empty if none does."""
        if self.wait_for_completion:
            return "wait_for_completion"
        return "on_unknown_start='claim'" if self.on_unknown_start == "claim" else ""

    def execute(self, parked: Mapping[str, Any] | None = None) -> RunResult:
        """
        Start the run, unless an earlier try did, then upload its files and wait for its end.

        :param parked: what the task was parked with, None where a try begins
        :raises WorkflowAutomationError: if any of these failed
        :raises BaseException: Airflow's signal to park the task
        """
        self._record.use()
        # Even if there is none yet: this process may still hold the link of another task.
        self.on_run(parked["run"] if parked else {}, False)
        if parked:
            # A task that was parked with its run never starts one: its record may have been deleted meanwhile.
            self.run = parked["run"]
            return self._wait(self.run, parked)
        run = self.run = self.starter.start(self._prepare)
        facts = self.starter.facts
        # As recorded when the run was started, whatever the DAG says now.
        waits = facts.start.waits
        self.on_run(run, waits or self.files is not None)
        if self.files is not None:
            if facts.spoken.end and facts.spoken.end.status == "failed":
                self.retrier.log.warning("The run has failed: no files are uploaded.")
            else:
                self._upload(run)
        return self._wait(run) if waits else run

    def _prepare(self) -> tuple[Request, str | None]:
        if self._why_url:
            self._check_heard()
        flow_id = self.rendered_flow_id()
        # First, because a function that makes the inputs may write the files as well.
        inputs = self.make_inputs()
        if self.files is not None:
            self._uploads.prepare(flow_id)
        token = None
        if self._why_url and isinstance(inputs, Mapping):  # the hook rejects all others
            inputs, token = self._with_url(inputs)
        return self.hook.prepare_trigger(inputs, flow_id), token

    def _check_heard(self) -> None:
        """
        Check that Airflow can hear the run, before it is started.

        :raises InvalidRequestError: if it cannot
        """
        why = self._why_url
        if not self._record.outlives_try:
            raise InvalidRequestError(
                f"{why} needs Airflow 3.3 or newer, which can park a task and keeps its state.",
                next_step=f"Upgrade Airflow, or leave {why} out.",
            )
        if name := _unsupported():
            raise InvalidRequestError(
                f"{why} needs the task's state in Airflow's database for as long as the task is there, and "
                f"{name} is set.",
                next_step=f"Leave {name} unset, or leave {why} out.",
            )

    def _with_url(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """
        Return inputs with a URL that has a new token, and the token's hash.

        :raises InvalidRequestError: if there is no usable address of Airflow's API server, or the inputs have
            one of this name already
        """
        name = self.callback_input
        if name in inputs:
            raise InvalidRequestError(
                f"inputs already has {name!r}, the name of the callback URL: pass another callback_input."
            )
        base = _base_url(self.hook)
        token = new_token(self.context["ti"].id)
        mask_secret(token)
        self.hook.get_conn().redact_also(token)
        return {**inputs, name: f"{base}{PATH}?token={token}"}, digest_of(token)

    def _upload(self, run: RunResult) -> None:
        """Upload the run's files, except those that an earlier try uploaded."""
        if "run_id" not in run:
            raise UnidentifiedError(
                "The files cannot be uploaded: the run that was started has no run_id."
            )
        self._uploads.upload(run["run_id"], run.get("flow_id") or self.rendered_flow_id())
        self.uploaded = self._uploads.elements

    @functools.cached_property
    def _uploads(self) -> Uploader:
        from workflow_automation_provider.execution.upload import Uploader

        return Uploader(self.context, self.hook, self.retrier, self.files or (), of_own_run=True)

    def _wait(self, run: RunResult, parked: Mapping[str, Any] | None = None) -> RunResult:
        timeout = self.completion_timeout
        waiting = Waiting.read(parked) if parked else Waiting.of(self.starter.facts, run, timeout)
        return CompletionWait(
            self._record,
            self.hook,
            self.retrier,
            self.context,
            heartbeat_timeout=self.heartbeat_timeout,
            expects_claim=self.on_unknown_start == "claim",
        ).wait(waiting)
