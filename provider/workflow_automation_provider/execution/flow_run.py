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
from urllib.parse import urlsplit

from airflow.configuration import conf

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


class CallbackUrl:
    """
    Gives the run of a start a URL.

    :param hook: redacts each token, and has the address of Airflow
    """

    def __init__(self, hook: WorkflowAutomationHook, context: Context, options: StartOptions) -> None:
        self._hook = hook
        self._context = context
        self._name = options.callback_input
        self._argument = options.why_url

    def check(self) -> None:
        """
        Check that Airflow can hear a run, before it is started.

        :raises InvalidRequestError: if it cannot
        """
        if "task_state_store" not in self._context:
            raise InvalidRequestError(
                f"{self._argument} needs Airflow 3.3 or newer, which can park a task and keeps its state.",
                next_step=f"Upgrade Airflow, or leave {self._argument} out.",
            )
        if name := _unsupported():
            raise InvalidRequestError(
                f"{self._argument} needs the task's state in Airflow's database for as long as the task is there, and "
                f"{name} is set.",
                next_step=f"Leave {name} unset, or leave {self._argument} out.",
            )

    def added_to(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """
        Return inputs with a URL that has a new token, and the token's hash.

        :raises InvalidRequestError: if there is no usable address of Airflow's API server, or the inputs have
            one of this name already
        """
        if not isinstance(inputs, Mapping):
            return inputs, ""  # the hook says what is wrong with them
        if self._name in inputs:
            raise InvalidRequestError(
                f"inputs already has {self._name!r}, the name of the callback URL: pass another callback_input."
            )
        base = self._base_url()
        token = new_token(self._context["ti"].id)
        self._hook.redact_also(token)
        return {**inputs, self._name: f"{base}{PATH}?token={token}"}, digest_of(token)

    def _base_url(self) -> str:
        extra = self._hook.extra
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
            if is_loopback(host) and not is_loopback(urlsplit(self._hook.get_conn().base_url).hostname or ""):
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


def _unsupported() -> str:
    """Return the setting with which an entry may be deleted, or only referred to in the database; empty if there is none."""
    if conf.getboolean("state_store", "clear_on_success", fallback=False):
        return "[state_store] clear_on_success"
    if conf.get("state_store", "backend", fallback=_BACKEND) != _BACKEND:
        return "[state_store] backend"
    return "[workers] state_store_backend" if conf.get("workers", "state_store_backend", fallback="") else ""


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
        self._url = CallbackUrl(hook, context, options) if options.why_url else None
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

    def _prepare(self) -> tuple[Request, str | None]:
        if self._url:
            self._url.check()
        flow_id = self._options.rendered_flow_id()
        # First, because what makes them may write the files as well.
        inputs = self._options.make_inputs()
        if self._options.files is not None:
            self._uploads.prepare(flow_id)
        token = None
        if self._url:
            inputs, token = self._url.added_to(inputs)
        return self._hook.prepare_trigger(inputs, flow_id), token

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
