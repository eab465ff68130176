"""
Start the run of a task and, if the task asks for it, upload its files and wait for its end.

1. **Read** what an earlier try did, by :class:`~.run.start.RunStarter`.
2. **Start** the run, unless there is one, after a check that it can call Airflow.
3. **Upload** the run's files, which were checked before it was started.
4. **Wait** for its end: the task is suspended, and begins here again, as a retry does; but it
   sends nothing.

The operator calls one after the other, with what each needs: the inputs of a run are made only if
one is to be started.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from workflow_automation_provider.client.setting_kinds import is_mailbox
from workflow_automation_provider.client.urls import origin_of
from workflow_automation_provider.exceptions import (
    ConnectionUnusableError,
    InvalidRequestError,
    RunTimeoutError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.record.callback import MARGIN, digest_of, new_token
from workflow_automation_provider.execution.record.start_record import StartRecord
from workflow_automation_provider.execution.run.callback_url import callback_url
from workflow_automation_provider.execution.run.completion import CompletionWait, usable_connection
from workflow_automation_provider.execution.run.mailbox import mailbox_of, read_end
from workflow_automation_provider.execution.run.start import RunStarter
from workflow_automation_provider.execution.run.tools import RunTools, redactor_for
from workflow_automation_provider.execution.run.xcoms import RunXComs
from workflow_automation_provider.wording import run_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.files import Element
    from workflow_automation_provider.execution.record.entries import RunResult
    from workflow_automation_provider.execution.record.start_decision import StartOptions
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.upload import Uploader
    from workflow_automation_provider.hooks.files.sources import FileSource
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class TriggerExecution:
    """
    The run of one task instance.

    :param hook: sends the requests, and redacts the token
    :param retrier: how long to keep retrying while the service is busy or cannot be reached
    :param options: what the task asks for
    :param files: what to upload for the run, as passed by the DAG author
    :param pushed: as in :class:`~.run.xcoms.RunXComs`
    """

    def __init__(
        self,
        context: Context,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        options: StartOptions,
        files: FileSource | Sequence[FileSource] | None,
        pushed: str | None,
    ) -> None:
        self._context = context
        self._files = files
        record = StartRecord(context, read_end=read_end)
        self._tools = RunTools(record, hook, retrier, options)
        self.xcoms = RunXComs(context, retrier.log, pushed)
        """What is pushed of the run, with the link to it."""
        self.starter = RunStarter(self._tools)
        """What starts the run, with what an earlier try left."""
        # A task that was resumed has uploaded the files of its run.
        self._uploads_files = files is not None and not options.is_resumed
        self.run: RunResult | None = None
        """The run, once it is known; empty if it has begun, but not reported its id."""
        self.uploaded: Sequence[Element] = ()
        """What this process uploaded, for lineage."""

    def find(self) -> RunResult | None:
        """
        Return the run that an earlier try started, or that a person gives the task.

        :return: None if a run is to be started: then :meth:`send` it
        :raises WorkflowAutomationError: if none may be started, or it could not call Airflow
        """
        self._tools.record.use()
        run = self.starter.find()
        if run is not None:
            self._know(run)
        elif self._tools.options.needs_url:
            self._tools.record.check_lasting(self._tools.options.needs_url)

        return run

    def send(self, inputs: Mapping[str, Any], flow_id: str | None) -> RunResult:
        """
        Start a run, where :meth:`find` found none.

        :param flow_id: the flow, None for that of the API key
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        self._uploads_files = self._files is not None
        if self._uploads_files:
            self._uploads.prepare(flow_id)

        fields: dict[str, str] = {}
        if self._tools.options.needs_url and isinstance(
            inputs, Mapping
        ):  # the hook rejects all others
            inputs, fields = self._with_url(inputs)

        run = self.starter.send(self._tools.hook.prepare_trigger(inputs, flow_id), fields)
        self._know(run)
        return run

    def wait(self) -> RunResult:
        """
        Return the run, with the flow's result if the task waits for its end.

        :raises WorkflowAutomationError: if it failed, or did not end in time
        :raises BaseException: Airflow's signal to suspend the task
        """
        assert self.run is not None  # noqa: S101
        known = self.starter.known
        # As recorded when the run was started, whatever the DAG says now.
        if not known.start.wait_for_completion:
            if self._tools.options.wait_for_completion or self._tools.options.is_resumed:
                raise self._not_awaited(self.run)
            return self.run

        return CompletionWait(self._tools, self.xcoms).wait(known)

    def _not_awaited(self, run: RunResult) -> RunTimeoutError:
        """Return the error for a task that waits, and a start that does not say so."""
        run_id = run.get("run_id")
        return RunTimeoutError(
            "The task waits for the end of its run, but recorded its start without that: "
            "wait_for_completion=True came later, or another version of this provider recorded it.",
            consequence=f"{run_text(run_id)} was started.",
            next_step=(
                "Look at the run, and mark the task in the tab Flow run.\n"
                "Or leave wait_for_completion out, and continue with the run."
            ),
            run_id=run_id,
            flow_id=run.get("flow_id"),
        )

    def _know(self, run: RunResult) -> None:
        """Keep the run, and store the link to it, at once if the task goes on after that."""
        self.run = run
        # A task that was resumed has stored it, or stores it with the run's XComs.
        waits = self.starter.known.start.wait_for_completion
        begins_to_wait = waits and not self._tools.options.is_resumed
        self.xcoms.keep_link(run)
        if begins_to_wait or self._uploads_files:
            self.xcoms.push_link()

    # Start --------------------------------------------------------------------------------------

    def _with_url(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
        """
        Return inputs with a URL that has a new token, and what the start records of it.

        :raises InvalidRequestError: if there is no usable address of Airflow's API server and no
            usable mailbox, or the inputs have one of this name already
        """
        name = self._tools.options.callback_input
        if name in inputs:
            raise InvalidRequestError(
                f"inputs already has {name!r}, the name of the callback URL: pass another "
                "callback_input."
            )

        token = new_token(self._context["ti"].id)
        folder = self._tools.hook.extra.callback_base_url
        if folder and is_mailbox(folder):
            url, fields = self._mailbox(folder, digest_of(token))
            return {**inputs, name: url}, fields

        url = callback_url(self._tools.hook)
        self._hide(token)
        fields = {"token_hash": digest_of(token), "callback_url": url}
        return {**inputs, name: f"{url}?token={token}"}, fields

    def _mailbox(self, folder: str, token: str) -> tuple[str, dict[str, str]]:
        """
        Return a URL by which the run can write to a new mailbox, and what the start records of it.

        :param token: the hash of a new token, which nobody gets: it names the object
        :raises InvalidRequestError: if the task asks for what a mailbox cannot do
        """
        # Not at the top: most tasks have none.
        from workflow_automation_provider.hooks.mailbox import Mailbox, secrets_of

        unsupported = {
            "on_unknown_start='claim'": self._tools.options.on_unknown_start == "claim",
            "heartbeat_timeout": self._tools.options.heartbeat_timeout is not None,
        }
        for argument, is_given in unsupported.items():
            if is_given:
                raise InvalidRequestError(
                    f"{argument} needs a flow that can call Airflow, and the connection's "
                    "callback_base_url is a folder for mailboxes, where a run only reports its "
                    "end.",
                    next_step=f"Leave {argument} out, or set callback_base_url to Airflow's URL.",
                )

        name = mailbox_of(folder, token)
        mailbox = Mailbox(name)
        lifetime = self._tools.options.completion_timeout + MARGIN
        service_url = self._tools.hook.get_conn().base_url
        mailbox.check(lifetime, service_url, allow_http=self._tools.hook.extra.allow_http)
        url = mailbox.sign(lifetime)
        for secret in secrets_of(url):
            self._hide(secret)

        return url, {"token_hash": token, "mailbox": name}

    def _hide(self, secret: str) -> None:
        """Never show a secret of the run's URL."""
        mask_secret(secret)
        self._tools.hook.get_conn().redactor.add(secret)

    # Upload -------------------------------------------------------------------------------------

    def has_files_to_upload(self) -> bool:
        """Return whether files are left to be uploaded for the run that is known."""
        if not self._uploads_files:
            return False

        known = self.starter.known
        end = known.reports.end
        if end and end.status == "failed":
            self._tools.retrier.log.warning("The run has failed: no files are uploaded.")
            return False

        # Without the connection, and without the files, which may be gone by now.
        run_id = known.reports.run_id or known.run(None).get("run_id")
        return not (run_id and self._uploads.earlier_result(run_id))

    def upload(self, flow_id: str | None) -> None:
        """
        Upload the run's files, except those that an earlier try uploaded.

        :param flow_id: the flow, None for the connection's
        :raises WorkflowAutomationError: if they could not be uploaded
        """
        known = self.starter.known
        with usable_connection("The run was started"):
            run = known.run(redactor_for(self._tools.hook, known.start.conn_id))
            origin = origin_of(self._tools.hook.get_conn().base_url)

        if known.start.origin not in ("", origin):
            raise ConnectionUnusableError(
                f"The connection's base URL is at {origin}, and the run was started at "
                f"{known.start.origin}: its files are uploaded there.",
                next_step="Correct the connection's base URL.",
            )

        if "run_id" not in run:
            raise UnidentifiedError(
                "The files cannot be uploaded: the run that was started has no run_id."
            )

        self._uploads.upload(run["run_id"], flow_id)
        self.uploaded = self._uploads.elements

    @functools.cached_property
    def _uploads(self) -> Uploader:
        from workflow_automation_provider.execution.upload import Uploader

        return Uploader(
            self._context,
            self._tools.hook,
            self._tools.retrier,
            self._files or (),
            of_own_run=True,
        )
