"""
Start the run of a task and, if the task asks for it, upload its files and wait for its end.

1. **Read** what an earlier try did, by :class:`~.starts.starter.RunStarter`.
2. **Start** the run, unless there is one, after a check that it can call Airflow.
3. **Upload** the run's files, which were checked before it was started.
4. **Wait** for its end: the task is suspended, and begins here again, as a retry does; but it
   sends nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.sdk.log import mask_secret

from workflow_automation_provider.client.protocol import is_loopback
from workflow_automation_provider.client.setting_kinds import MAILBOX_EXAMPLE, is_mailbox
from workflow_automation_provider.exceptions import (
    ConnectionUnusableError,
    InvalidRequestError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.callbacks.address import callback_url
from workflow_automation_provider.execution.callbacks.mailbox import mailbox_of, read_end
from workflow_automation_provider.execution.callbacks.report import digest_of, new_token
from workflow_automation_provider.execution.callbacks.wait import CompletionWait, usable_connection
from workflow_automation_provider.execution.redaction import redactor_for, redactor_or_none
from workflow_automation_provider.execution.starts.ledger import StartOptions
from workflow_automation_provider.execution.starts.record import StartRecord
from workflow_automation_provider.execution.starts.starter import OnUnknownStart, RunStarter
from workflow_automation_provider.execution.store import unsupported_setting
from workflow_automation_provider.hooks.mailbox import open_mailbox, secrets_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.files import Element
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.starts.entries import RunResult
    from workflow_automation_provider.execution.starts.ledger import Facts
    from workflow_automation_provider.execution.upload import Uploader
    from workflow_automation_provider.hooks.sources import FileSource
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


def _unsupported_setting() -> str:
    """Return the setting that keeps a task's entries out of the database; empty if none does."""
    setting = unsupported_setting()
    if not setting and conf.get("workers", "state_store_backend", fallback=""):
        setting = "[workers] state_store_backend"
    return setting


class FlowRun:
    """
    The run of one task instance, with these parameters besides the arguments of its operator.

    :param hook: sends the requests, and redacts the token
    :param retrier: how long to keep retrying while the service is busy or cannot be reached
    :param rendered_flow_id: returns the flow, None for that of the API key; called only where it is
        needed
    :param make_inputs: returns the inputs; called only if a run is to be started
    :param request: hash of the request, None if its inputs are not known before the start
    :param on_run: called with the run as soon as it is known, and whether the task goes on after
        that
    :param is_resumed: whether Airflow continues a task that waited
    """

    def __init__(
        self,
        *,
        context: Context,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        rendered_flow_id: Callable[[], str | None],
        make_inputs: Callable[[], Mapping[str, Any]],
        request: str | None,
        on_run: Callable[[RunResult, bool], None],
        files: FileSource | Sequence[FileSource] | None,
        wait_for_completion: bool,
        callback_input: str,
        completion_timeout: timedelta,
        heartbeat_timeout: timedelta | None,
        on_run_failed: Literal["fail", "start_again"],
        on_unknown_start: OnUnknownStart | Literal["claim"],
        claim_timeout: timedelta,
        is_resumed: bool,
    ) -> None:
        self._context = context
        self._hook = hook
        self._retrier = retrier
        self._rendered_flow_id = rendered_flow_id
        self._make_inputs = make_inputs
        self._on_run = on_run
        self._files = files
        self._callback_input = callback_input
        self._on_unknown_start = on_unknown_start
        self._heartbeat_timeout = heartbeat_timeout
        self._completion_timeout = completion_timeout
        self._is_resumed = is_resumed
        self._needs_url = ""
        """The argument that gives the run a URL, as a user writes it; empty if none does."""
        if wait_for_completion:
            self._needs_url = "wait_for_completion"
        elif on_unknown_start == "claim":
            self._needs_url = "on_unknown_start='claim'"

        self.run: RunResult | None = None
        """The run, once it is known; empty if it has begun, but not reported its id."""
        self.uploaded: Sequence[Element] = ()
        """What this process uploaded, for lineage."""
        self._record = StartRecord(context, read_end=read_end)
        options = StartOptions(
            self._record.max_tries,
            request,
            on_unknown_start=on_unknown_start,
            # A task that was resumed sends nothing: its run is that which failed.
            replaces_failed=on_run_failed == "start_again" and not is_resumed,
        )
        self.starter = RunStarter(
            self._record,
            hook,
            retrier,
            options,
            claim_timeout=claim_timeout,
            completion_timeout=completion_timeout if wait_for_completion else None,
            heartbeat_timeout=heartbeat_timeout if wait_for_completion else None,
            is_resumed=is_resumed,
        )
        """The start, which knows what an earlier try did."""

    def execute(self) -> RunResult:
        """
        Start the run, unless an earlier try did, then upload its files and wait for its end.

        :raises WorkflowAutomationError: if any of these failed
        :raises BaseException: Airflow's signal to suspend the task
        """
        self._record.use()
        # Even if there is none yet: this process may still hold the link of another task.
        self._on_run({}, False)
        run = self.run = self.starter.start(self._prepare)
        facts = self.starter.facts
        # As recorded when the run was started, whatever the DAG says now.
        waits = facts.start.waits
        uploads = self._files is not None and (self.starter.has_started or not self._is_resumed)
        self._on_run(run, waits or uploads)

        if uploads:
            self._upload(facts)
        elif self._is_other_connection(facts):
            self._retrier.log.warning(
                "The run was started by connection %s: %s is not used for it.",
                facts.start.conn_id,
                self._hook.workflow_automation_conn_id,
            )

        if not waits:
            return run

        wait = CompletionWait(
            self._record,
            self._hook,
            self._retrier,
            self._context,
            on_run=lambda run: self._on_run(run, True),
            expects_claim=self._on_unknown_start == "claim",
            is_resumed=self._is_resumed,
        )
        return wait.wait(facts)

    def _is_other_connection(self, facts: Facts) -> bool:
        """Return whether the DAG names another connection than the run was started by."""
        conn_id = facts.start.conn_id
        return conn_id not in (None, self._hook.workflow_automation_conn_id)

    # Start --------------------------------------------------------------------------------------

    def _prepare(self) -> tuple[Request, dict[str, str]]:
        if self._needs_url:
            self._check_reachable()
        flow_id = self._rendered_flow_id()
        # First, because a function that makes the inputs may write the files as well.
        inputs = self._make_inputs()
        if self._files is not None:
            self._uploads.prepare(flow_id)
        fields: dict[str, str] = {}
        if self._needs_url and isinstance(inputs, Mapping):  # the hook rejects all others
            inputs, fields = self._with_url(inputs)
        return self._hook.prepare_trigger(inputs, flow_id), fields

    def _check_reachable(self) -> None:
        """
        Check that the run can call Airflow, before it is started.

        :raises InvalidRequestError: if it cannot
        """
        why = self._needs_url
        if not self._record.outlives_try:
            raise InvalidRequestError(
                f"{why} needs Airflow 3.3 or newer, which can suspend a task and keeps its state.",
                next_step=f"Upgrade Airflow, or leave {why} out.",
            )

        name = _unsupported_setting()
        if name:
            raise InvalidRequestError(
                f"{why} needs the task's state in Airflow's database for as long as the task is "
                f"there, and {name} is set.",
                next_step=f"Leave {name} unset, or leave {why} out.",
            )

    def _with_url(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
        """
        Return inputs with a URL that has a new token, and what the start records of it.

        :raises InvalidRequestError: if there is no usable address of Airflow's API server and no
            usable mailbox, or the inputs have one of this name already
        """
        name = self._callback_input
        if name in inputs:
            raise InvalidRequestError(
                f"inputs already has {name!r}, the name of the callback URL: pass another "
                "callback_input."
            )

        token = new_token(self._context["ti"].id)
        folder = self._hook.extra.callback_base_url
        if folder and is_mailbox(folder):
            url, fields = self._mailbox(folder, digest_of(token))
            return {**inputs, name: url}, fields

        url = callback_url(self._hook)
        self._hide(token)
        fields = {"token": digest_of(token), "callback_url": url}
        return {**inputs, name: f"{url}?token={token}"}, fields

    def _mailbox(self, folder: str, token: str) -> tuple[str, dict[str, str]]:
        """
        Return a URL by which the run can write to a new mailbox, and what the start records of it.

        :param token: the hash of a new token, which nobody gets: it names the object
        :raises InvalidRequestError: if the task asks for what a mailbox cannot do
        """
        unsupported = {
            "on_unknown_start='claim'": self._on_unknown_start == "claim",
            "heartbeat_timeout": self._heartbeat_timeout is not None,
        }
        for argument, is_given in unsupported.items():
            if is_given:
                raise InvalidRequestError(
                    f"{argument} needs a flow that can call Airflow, and the connection's "
                    "callback_base_url is a folder for mailboxes, where a run only reports its "
                    "end.",
                    next_step=f"Leave {argument} out, or set callback_base_url to Airflow's URL.",
                )

        service = urlsplit(self._hook.get_conn().base_url).hostname or ""
        if folder.startswith("file:") and not is_loopback(service):
            raise InvalidRequestError(
                "The connection's callback_base_url is a folder of this machine, to which the "
                "service cannot write: it is for the local service alone.",
                next_step=f"Set it to a folder of an object store, such as {MAILBOX_EXAMPLE}.",
            )

        mailbox = mailbox_of(folder, token)
        url = open_mailbox(mailbox).upload_url(self._completion_timeout)
        for secret in secrets_of(url):
            self._hide(secret)

        return url, {"token": token, "mailbox": mailbox}

    def _hide(self, secret: str) -> None:
        """Never show a secret of the run's URL."""
        mask_secret(secret)
        self._hook.get_conn().redact_also(secret)

    # Upload -------------------------------------------------------------------------------------

    def _upload(self, facts: Facts) -> None:
        """
        Upload the run's files, except those that an earlier try uploaded.

        :raises WorkflowAutomationError: if they could not be uploaded
        """
        end = facts.reports.end
        if end and end.status == "failed":
            self._retrier.log.warning("The run has failed: no files are uploaded.")
            return

        run_id = facts.run(redactor_or_none(self._hook, facts.start.conn_id)).get("run_id")
        if end and run_id and self._uploads.is_complete(run_id):
            return  # the files may be gone by now

        if self._is_other_connection(facts):
            raise ConnectionUnusableError(
                f"workflow_automation_conn_id is {self._hook.workflow_automation_conn_id!r}, and "
                f"the run was started by {facts.start.conn_id!r}: its files are uploaded by that "
                "one.",
                next_step="Name the connection that started the run, or clear the task.",
            )

        with usable_connection("The run was started"):
            run = facts.run(redactor_for(self._hook, facts.start.conn_id))

        if "run_id" not in run:
            raise UnidentifiedError(
                "The files cannot be uploaded: the run that was started has no run_id."
            )

        self._uploads.upload(run["run_id"], run.get("flow_id") or self._rendered_flow_id())
        self.uploaded = self._uploads.elements

    @functools.cached_property
    def _uploads(self) -> Uploader:
        from workflow_automation_provider.execution.upload import Uploader

        return Uploader(
            self._context, self._hook, self._retrier, self._files or (), of_own_run=True
        )
