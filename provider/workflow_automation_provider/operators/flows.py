"""Operators that start runs and upload files for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

from workflow_automation_provider.client.checks import LEAST_READ_AHEAD, is_limit
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    OutcomeUnknownError,
    ResponseUnusableError,
    RunFailedError,
)
from workflow_automation_provider.execution.retry import (
    UPLOAD_ADVICE,
    run_advice,
    run_started,
    start_advice,
    task_error,
)
from workflow_automation_provider.links import FlowRunLink
from workflow_automation_provider.operators.base import UNSET, FlowOperator, Unset, rendered

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk import BaseNotifier

    from workflow_automation_provider.client.files import FileFormat
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.exceptions import WorkflowAutomationError
    from workflow_automation_provider.execution.doubt import StartQuestion
    from workflow_automation_provider.execution.parking import Reply
    from workflow_automation_provider.execution.start import OnUnknownStart, RunStarter
    from workflow_automation_provider.execution.start_record import StartedRun, StartRecord
    from workflow_automation_provider.execution.upload import OnUnknownUpload, UploadResult
    from workflow_automation_provider.execution.wait import CompletionWait
    from workflow_automation_provider.hooks.file_sources import FileSource
    from workflow_automation_provider.hooks.lineage import Lineage

__all__ = ["TriggerFlowOperator", "UploadFilesOperator"]


_LONGEST_WAIT = timedelta(days=365)


class _Resumed(NamedTuple):
    """What Airflow continues a parked task with; nothing where a try begins."""

    event: dict[str, Any] | None = None
    run: StartedRun | None = None
    doubt: dict[str, Any] | None = None
    checks: int = 0
    timeout: float | None = None


class TriggerFlowOperator(FlowOperator["StartedRun"]):
    """
    Start a run of a flow, once.

    With a ``flow_id``, the flow is triggered by path; without one, the connection's API key identifies the
    flow. Returns ``run_id``, ``run_link`` and, if it is known, ``flow_id``. Pass ``trigger.output`` on to
    :class:`UploadFilesOperator`. A trigger by key whose response has no ``run_id`` succeeds, and returns the
    whole ``response`` instead.

    A task instance never starts a second run on its own: the run is recorded (Airflow 3.3+), a retry returns
    the recorded run, and if it is unknown whether a run was started, the task fails and says so. Clearing the
    task starts a new run; on Airflow 3.4, clearing the whole DAG run does not.

    Follows sections 4.1 and 4.2 of the interface.

    :param inputs: input names, as the flow defines them, and JSON values; dates, decimals, UUIDs and paths
        become text. By default none (templated, deeply)
    :param flow_id: the flow to start, by default the one that the API key identifies (templated). A template
        that renders to None or an empty string is an error
    :param workflow_automation_conn_id: connection with the base URL and the API key (templated)
    :param wait_for_completion: whether to wait until the flow, by its last step, or a person says how the run
        ended, without occupying a worker, and to return the flow's ``result`` as well (Airflow 3.3+)
    :param callback_input: name of the input that receives the URL for the flow's last step, if the task waits
    :param completion_timeout: how long to wait for the end of the run, if the task waits
    :param files: files to upload for the run before waiting, as for :class:`UploadFilesOperator` (templated,
        deeply)
    :param file_format: the format of each file, as for :class:`UploadFilesOperator`
    :param on_unknown_start: what to do if it is unknown whether a run was started (a timeout, a lost
        connection, a 5xx response, a killed task): ``"fail"`` without a retry; ``"ask"`` a person under
        **Required Actions** (Airflow 3.1+); or ``"start_again"`` in the next try, which may start a second run
    :param ask_timeout: how long to wait for the person's answer before the task fails
    :param notifiers: called when a person is asked; as ``ask_timeout``, only with ``on_unknown_start="ask"``
    :param request_timeout: seconds that connecting, each send, and the whole response may take; by default
        the connection's ``timeout``
    :param send_retry_timeout: seconds to keep retrying within one try of the task while the service is busy
        or cannot be reached; 0 sends once. After that, Airflow retries the task
    :param multiple_outputs: whether each key of the result is also pushed as a separate XCom
    """

    _flow_left_out = "to trigger the flow of the API key"
    _inside_a_task = "call trigger_flow_once of workflow_automation_provider.taskflow"
    _uploaded: dict[str, Any] | None = None
    """What this process uploaded, for lineage."""

    template_fields: Sequence[str] = ("inputs", "flow_id", "workflow_automation_conn_id", "files")
    template_fields_renderers: ClassVar[dict[str, str]] = {"inputs": "json", "files": "json"}
    operator_extra_links = (FlowRunLink(),)

    def __init__(
        self,
        *,
        inputs: Mapping[str, Any] | Unset = UNSET,
        flow_id: str | Unset = UNSET,
        workflow_automation_conn_id: str = "workflow_automation_default",
        wait_for_completion: bool = False,
        callback_input: str = "callback_url",
        completion_timeout: timedelta = timedelta(days=1),
        files: FileSource | Sequence[FileSource] | None = None,
        file_format: FileFormat | None = None,
        on_unknown_start: OnUnknownStart | Literal["ask"] = "fail",
        ask_timeout: timedelta = timedelta(days=7),
        notifiers: Sequence[BaseNotifier] | BaseNotifier | None = (),
        request_timeout: float | None = None,
        send_retry_timeout: float = 60.0,
        multiple_outputs: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            multiple_outputs=multiple_outputs,
            flow_id=flow_id,
            request_timeout=request_timeout,
            send_retry_timeout=send_retry_timeout,
            **kwargs,
        )
        if on_unknown_start not in ("fail", "start_again", "ask"):
            raise ValueError(
                f"on_unknown_start {on_unknown_start!r} is not supported; expected 'fail', 'start_again' or 'ask'."
            )
        if not isinstance(callback_input, str) or not callback_input.strip():
            raise ValueError(
                f"callback_input is {callback_input!r}: expected the name of an input of the flow."
            )
        for name, seconds in (("completion_timeout", completion_timeout), ("ask_timeout", ask_timeout)):
            if not isinstance(seconds, timedelta) or not timedelta() < seconds <= _LONGEST_WAIT:
                raise ValueError(
                    f"{name} is {seconds!r}: expected a timedelta of more than 0 and at most {_LONGEST_WAIT.days} days."
                )
        if notifiers is None:  # as of Airflow's HITLOperator
            notifiers = ()
        called: Sequence[BaseNotifier] = (
            tuple(notifiers) if isinstance(notifiers, list | tuple) else (cast("BaseNotifier", notifiers),)
        )
        if not all(map(callable, called)):
            raise ValueError(f"notifiers is {notifiers!r}: expected a notifier, or a list of them.")
        if not isinstance(wait_for_completion, bool):
            raise ValueError(f"wait_for_completion is {wait_for_completion!r}: expected True or False.")
        if file_format is not None:
            # Imported only if there is something to check: most DAG files set none.
            from workflow_automation_provider.client.files import check_file_format

            check_file_format(file_format)
        # default_args are for several tasks, and not all of these wait or ask.
        shared = kwargs.get("default_args") or {}
        waits = (wait_for_completion, "wait_for_completion=True")
        asks = (on_unknown_start == "ask", "on_unknown_start='ask'")
        for name, value, default, (is_on, needed) in (
            ("callback_input", callback_input, "callback_url", waits),
            ("completion_timeout", completion_timeout, timedelta(days=1), waits),
            ("ask_timeout", ask_timeout, timedelta(days=7), asks),
            ("notifiers", notifiers or (), (), asks),
        ):
            if not is_on and value not in (default, shared.get(name)):
                raise ValueError(f"{name} has no effect without {needed}: add {needed}, or leave {name} out.")
        if inputs is None:
            raise ValueError("inputs is None: pass a dict of input names and values, or leave it out.")
        self.inputs: Mapping[str, Any] = {} if inputs is UNSET else inputs
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.wait_for_completion = wait_for_completion
        self.callback_input = callback_input
        self.completion_timeout = completion_timeout
        self.files = files
        self.file_format = file_format
        self.on_unknown_start = on_unknown_start
        self.ask_timeout = ask_timeout
        self.notifiers = called
        self._started: StartedRun | None = None
        """The run of this execution, once it is known."""
        self._starter: RunStarter | None = None

    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any] | None = None,
        run: StartedRun | None = None,
        doubt: dict[str, Any] | None = None,
        checks: int = 0,
        ti_id: str | None = None,
        timeout: float | None = None,
    ) -> StartedRun:
        """
        Continue after the task was parked: Airflow calls this in place of ``execute``.

        :param event: a person's answer, or that the time is up
        :param run: the run whose end the task waits for
        :param doubt: what is known of a start of unknown outcome, if that was asked about
        :param checks: how often the task has looked for the end of the run in vain
        :param ti_id: the task instance that was parked; a Clear gives the task another
        :param timeout: the ``completion_timeout`` in seconds when the task was parked; it counts where the DAG no
            longer sets ``wait_for_completion``
        """
        from workflow_automation_provider.execution.parking import is_from_before_a_clear

        resumed = _Resumed(event, run, doubt, checks, timeout)
        if is_from_before_a_clear(context, ti_id):
            self.log.info("The task was cleared after it continued: starting over.")
            resumed = _Resumed()
        return self._guarded(context, lambda: self._run_once(context, resumed))

    def _run_once(self, context: Context, resumed: _Resumed | None = None) -> StartedRun:
        """Start the run, unless an earlier try did, and follow it as far as asked for."""
        # Not at the top: the DAG processor needs none of it.
        from workflow_automation_provider.execution.start import RunStarter
        from workflow_automation_provider.execution.start_record import StartRecord

        self._started = self._starter = None
        record = StartRecord(context)
        with record.in_use(id(self)):
            starter = self._starter = RunStarter(
                record,
                self._open_hook(),
                self._patience,
                on_unknown_start="start_again" if self.on_unknown_start == "start_again" else "fail",
            )
            record.request = self._request_digest()
            return self._follow(context, record, starter, resumed or _Resumed())

    def _follow(
        self, context: Context, record: StartRecord, starter: RunStarter, resumed: _Resumed
    ) -> StartedRun:
        """Start the run, upload its files, and wait for its end, as far as asked for."""
        from workflow_automation_provider.execution.parking import Reply

        reply = Reply.of(resumed.event)
        wait = self._wait(context, resumed)
        # A doubt that was asked about is resolved as its answer says, also if the DAG has been edited since.
        asks = self.on_unknown_start == "ask" or resumed.doubt
        question = self._question(context, record, then_waits=wait is not None) if asks else None
        FlowRunLink.persist(context, resumed.run.get("run_link") if resumed.run else None)
        run = self._started = resumed.run
        # A task that was parked with its run never starts one: its record may have been deleted meanwhile.
        if run is None:
            for part in (wait, question):
                if part:
                    part.check()
            upload = None if self.files is None else _RunUpload(self, context, self.files)
            run = self._started = self._start(
                context, starter, record, wait, question, upload, reply, resumed.doubt
            )
            FlowRunLink.persist(context, run.get("run_link"))
            if upload and (wait is None or wait.needs_files(reply)):
                upload.send(run)
        return wait.wait(run, reply, resumed.checks) if wait else run

    def _start(
        self,
        context: Context,
        starter: RunStarter,
        record: StartRecord,
        wait: CompletionWait | None,
        question: StartQuestion | None,
        upload: _RunUpload | None,
        reply: Reply,
        doubt: dict[str, Any] | None,
    ) -> StartedRun:
        """
        Start the run, or resolve the doubt whether one was started.

        :return: empty if all that is known of the run is how it ended: the flow has called back
        """

        def prepare() -> Request:
            flow_id = self._rendered_flow_id()
            # First, because what makes them may write the files as well.
            inputs = self._make_inputs(context)
            if upload:
                upload.prepare(flow_id)
            if not wait:
                return self.hook.prepare_trigger(inputs, flow_id)
            return wait.open(inputs, lambda inputs: self.hook.prepare_trigger(inputs, flow_id))

        if wait and self.on_unknown_start == "start_again" and starter.is_in_doubt() and wait.answered():
            return {}
        if question and doubt:
            if wait and wait.answered():
                return {}
            if found := question.resolve(reply, doubt):
                return starter.adopt(found)
        try:
            return starter.start(prepare, on_supplied=wait.supplied if wait else None)
        except (OutcomeUnknownError, ResponseUnusableError) as error:
            if wait and wait.answered():
                return {}
            if not question:
                raise
            earlier = record.read()
            question.ask(error, self.flow_id or self.hook.extra.flow_id, earlier.at if earlier else None)

    def _request_digest(self) -> str | None:
        """Return what identifies the request in a later try, None if its inputs are not known before the start."""
        from workflow_automation_provider.execution.start import request_digest

        with suppress(InvalidRequestError):  # raised again if a run is to be started
            return request_digest(self.inputs, self.flow_id)
        return None

    def _make_inputs(self, context: Context) -> Mapping[str, Any]:
        """Return the inputs, once it is certain that a run is to be started."""
        return self.inputs

    def _wait(self, context: Context, resumed: _Resumed) -> CompletionWait | None:
        """Return the wait for the end of the run, None for none."""
        if not (self.wait_for_completion or resumed.run is not None or self._waited(context, resumed)):
            return None
        from workflow_automation_provider.execution.wait import CompletionWait
        from workflow_automation_provider.execution.wait_state import WaitRecord

        timeout = self.completion_timeout
        if not self.wait_for_completion and resumed.timeout is not None:
            timeout = timedelta(seconds=resumed.timeout)
        return CompletionWait(
            WaitRecord(context),
            self.hook,
            self._patience,
            context,
            callback_input=self.callback_input,
            timeout=timeout,
        )

    def _waited(self, context: Context, resumed: _Resumed) -> bool:
        """Return whether the task waited for its run, or asked how it ended, before the DAG was edited."""
        if not resumed.doubt and context["ti"].try_number == 1:
            return False
        from workflow_automation_provider.execution.wait_state import WaitRecord

        waiting = WaitRecord(context).read()
        return waiting.since is not None or bool(resumed.doubt and waiting.digest)

    def _question(self, context: Context, record: StartRecord, *, then_waits: bool) -> StartQuestion:
        from workflow_automation_provider.execution.doubt import StartQuestion

        return StartQuestion(
            record,
            self.hook,
            context,
            self.log,
            timeout=self.ask_timeout,
            notifiers=self.notifiers,
            then_waits=then_waits,
        )

    def _event_extra(self, result: StartedRun) -> dict[str, Any]:
        """Return what the events of the task's assets tell of a run."""
        from workflow_automation_provider.execution.asset_events import link_of

        told = {name: value for name, value in result.items() if name not in ("run_link", "response")}
        return {**told, **link_of(result)}

    def _lineage_of(self, result: StartedRun, extra: Mapping[str, Any]) -> Lineage:
        """Return the files that were uploaded, if any, and the run."""
        from workflow_automation_provider.hooks.lineage import Lineage, inputs_of

        # Of a task that was parked, an earlier process has uploaded them.
        uploaded = self._uploaded or {"inputs": [] if self.files is None else inputs_of(self.files)}
        return Lineage(outputs=self._run_or_flow(extra), run_link=extra.get("run_link"), **uploaded)

    def _failure(self, context: Context, error: WorkflowAutomationError) -> WorkflowAutomationError:
        """Return the error to fail the task with, which never leaves out a run that was started."""
        from workflow_automation_provider.execution.wait import ResultUnreadableError

        # Of a run that failed, or whose id is unknown, the error says all.
        if self._started is None or isinstance(error, RunFailedError | ResponseUnusableError):
            return task_error(
                error,
                context,
                self._advice(context),
                but_for=self._retried_after,
                is_ended=self.is_ended,
                previous=self._starter.previous if self._starter else None,
            )
        run_id = self._started.get("run_id")
        error.locate(None, self._started.get("flow_id"), run_id)
        sent = "" if isinstance(error, InvalidRequestError) else error.consequence
        error.consequence = "\n".join(filter(None, (run_started(run_id), sent)))
        advice = run_advice(context, run_id)
        return task_error(
            error,
            context,
            dict.fromkeys((Accepted.NO, Accepted.MAYBE), advice),
            but_for=(OutcomeUnknownError, ResultUnreadableError),
            is_ended=self.is_ended,
            # Only with a record does a retry find the run.
            may_retry="task_state_store" in context,
            later=advice,
        )

    def _advice(self, context: Context) -> Mapping[Accepted, str]:
        """Return what to do if Airflow does not retry the task."""
        return start_advice(context)

    @property
    def _retried_after(self) -> tuple[type[WorkflowAutomationError], ...]:
        """Errors after which Airflow may retry the task, besides those where no run was started."""
        return (OutcomeUnknownError,) if self.on_unknown_start == "start_again" else ()


class _RunUpload:
    """
    The upload of the files of the run that the same task starts.

    :param operator: the task's
    """

    def __init__(
        self, operator: TriggerFlowOperator, context: Context, files: FileSource | Sequence[FileSource]
    ) -> None:
        from workflow_automation_provider.execution.upload import FilesToUpload, Uploader
        from workflow_automation_provider.execution.upload_record import UploadRecord

        self._operator = operator
        self._record = UploadRecord(context, of_own_run=True)
        self._uploader = Uploader(self._record, operator._open_hook(), operator._patience)
        self._what = FilesToUpload(files=files, file_format=operator.file_format)

    def prepare(self, flow_id: str | None) -> None:
        """Check the files before a run is started for them."""
        self._uploader.prepare(flow_id, self._what)

    def send(self, run: StartedRun) -> None:
        """Upload the run's files, except those that an earlier try uploaded."""
        if "run_id" not in run:
            raise ResponseUnusableError(
                "The files cannot be uploaded: the run that was started has no run_id.",
                next_step="Look in the workflow's list of runs.",
            )
        with self._record.in_use(id(self._operator)):
            flow_id = run.get("flow_id") or self._operator.flow_id
            uploaded = self._uploader.upload(run["run_id"], flow_id, self._what)
        self._operator._uploaded = {
            "inputs": self._uploader.inputs,
            "files": uploaded["files"],
            "size": uploaded["bytes"],
        }


class UploadFilesOperator(FlowOperator["UploadResult"]):
    """
    Upload files for a run, as a stream: memory does not grow with their size.

    Returns a summary: ``run_id``, the number of ``files``, their ``bytes``, the ``request_count``, and the
    first ``requests``, each with the names of its first ``files``, their ``count``, their ``bytes`` and the
    service's ``response``. Confirmed requests are recorded (Airflow 3.3+): a retry sends only what is missing.
    Clearing the task sends everything again.

    Follows section 4.3 of the interface.

    :param run_id: the run that the files belong to: text, a number, or what a trigger returned
        (``trigger.output``), whose ``flow_id`` is then also used (templated)
    :param files: local paths and globs; URLs, prefixes (ending in ``/``) and globs that Airflow's object
        storage reads (``s3://conn_id@bucket/key``); ``Path`` and ``ObjectStoragePath`` objects; assets; and
        mappings, which are sent unchanged (templated, deeply)
    :param flow_id: the flow of the run, by default the one that the trigger returned, or else the
        connection's (templated). A template that renders to None or an empty string is an error
    :param workflow_automation_conn_id: connection with the base URL and the API key (templated)
    :param file_format: the format of each file: a mapping of field name to ``name``, ``base64``,
        ``data_url``, ``text``, ``content_type`` or ``size``; one of these values; or a callable that takes a
        :class:`~workflow_automation_provider.client.files.File` and returns any JSON value. By default the
        connection's
    :param content_types: media types by name pattern (``{"*.log": "text/plain"}``), by default guessed from
        the file's extension
    :param files_per_request: the maximum number of files in one request, by default unlimited
    :param max_request_bytes: the maximum size of a request's body in bytes, encoding included, by default
        unlimited
    :param max_file_bytes: the maximum size of a file in bytes, by default unlimited; a larger one is an error
        before anything is sent
    :param read_ahead_bytes: how much of the content of object stores may be held in memory ahead of its turn,
        by default 32 MiB, at least 8 MiB
    :param on_unknown_upload: what to do if it is unknown whether files were accepted: ``"send_again"``, or
        ``"fail"`` without a retry
    :param request_timeout: seconds that connecting, each send, and the whole response may take; by default
        the connection's ``timeout``
    :param send_retry_timeout: seconds to keep retrying each request within one try of the task; 0 sends once.
        After that, Airflow retries the task
    """

    _flow_left_out = "to use the connection's"
    _inside_a_task = "call upload_files of the WorkflowAutomationHook"
    _inputs: Sequence[str] = ()
    """The files, for lineage."""

    template_fields: Sequence[str] = ("run_id", "files", "flow_id", "workflow_automation_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"files": "json"}

    def __init__(
        self,
        *,
        run_id: str | Mapping[str, Any],
        files: FileSource | Sequence[FileSource],
        flow_id: str | Unset = UNSET,
        workflow_automation_conn_id: str = "workflow_automation_default",
        file_format: FileFormat | None = None,
        content_types: Mapping[str, str] | None = None,
        files_per_request: int | None = None,
        max_request_bytes: int | None = None,
        max_file_bytes: int | None = None,
        read_ahead_bytes: int | None = None,
        on_unknown_upload: OnUnknownUpload = "send_again",
        request_timeout: float | None = None,
        send_retry_timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            flow_id=flow_id, request_timeout=request_timeout, send_retry_timeout=send_retry_timeout, **kwargs
        )
        if on_unknown_upload not in ("send_again", "fail"):
            raise ValueError(
                f"on_unknown_upload {on_unknown_upload!r} is not supported; expected 'send_again' or 'fail'."
            )
        if run_id is None:
            raise ValueError("run_id is None: pass the run, such as trigger.output.")
        if files is None:
            raise ValueError("files is None: pass at least one path, glob, URL or mapping.")
        for name, limit in (
            ("files_per_request", files_per_request),
            ("max_request_bytes", max_request_bytes),
            ("max_file_bytes", max_file_bytes),
        ):
            if limit is not None and not is_limit(limit):
                raise ValueError(
                    f"{name} is {limit!r}: expected a whole number of 1 or more, or None for no limit."
                )
        if read_ahead_bytes is not None and not is_limit(read_ahead_bytes, LEAST_READ_AHEAD):
            raise ValueError(
                f"read_ahead_bytes is {read_ahead_bytes!r}: expected a whole number of bytes, {LEAST_READ_AHEAD} (8 MiB) or "
                "more, or None for 32 MiB."
            )
        if file_format is not None or content_types is not None:
            # Imported only if there is something to check: most DAG files set neither.
            from workflow_automation_provider.client.files import check_content_types, check_file_format

            if file_format is not None:
                check_file_format(file_format)
            if content_types is not None:
                check_content_types(content_types)
        self.run_id = run_id
        self.files = files
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.file_format = file_format
        self.content_types = content_types
        self.files_per_request = files_per_request
        self.max_request_bytes = max_request_bytes
        self.max_file_bytes = max_file_bytes
        self.read_ahead_bytes = read_ahead_bytes
        self.on_unknown_upload = on_unknown_upload

    def _run_once(self, context: Context) -> UploadResult:
        """Upload the files that no earlier try uploaded, and return which file went in which request."""
        # Not at the top: the DAG processor needs none of it.
        from workflow_automation_provider.execution.upload import FilesToUpload, Uploader
        from workflow_automation_provider.execution.upload_record import UploadRecord

        record = UploadRecord(context)
        with record.in_use(id(self)):
            run_id, flow_id = self._run()
            uploader = Uploader(
                record, self._open_hook(), self._patience, on_unknown_upload=self.on_unknown_upload
            )
            result = uploader.upload(
                run_id,
                flow_id,
                FilesToUpload(
                    files=self.files,
                    file_format=self.file_format,
                    content_types=self.content_types,
                    files_per_request=self.files_per_request,
                    max_request_bytes=self.max_request_bytes,
                    max_file_bytes=self.max_file_bytes,
                    read_ahead_bytes=self.read_ahead_bytes,
                ),
            )
        self._inputs = uploader.inputs
        return result

    def _event_extra(self, result: UploadResult) -> dict[str, Any]:
        """Return what the events of the task's assets tell of an upload."""
        from workflow_automation_provider.execution.asset_events import link_of

        _, flow_id = self._run()
        return {
            "run_id": result["run_id"],
            **(link_of(self.run_id) if isinstance(self.run_id, Mapping) else {}),
            "flow_id": self.hook.flow_of_upload(flow_id),
            "files": result["files"],
            "bytes": result["bytes"],
        }

    def _lineage_of(self, result: UploadResult, extra: Mapping[str, Any]) -> Lineage:
        """Return the files that were uploaded, and their run."""
        from workflow_automation_provider.hooks.lineage import Lineage

        return Lineage(
            inputs=self._inputs,
            outputs=self._run_or_flow(extra),
            run_link=extra.get("run_link"),
            files=result["files"],
            size=result["bytes"],
        )

    def _run(self) -> tuple[Any, str | None]:
        """Return the run, and the flow if one is given: the result of a trigger has both."""
        flow_id = self._rendered_flow_id()
        if isinstance(self.run_id, str) and self.run_id.lstrip().startswith("{") and "run_id" in self.run_id:
            raise InvalidRequestError(
                "run_id is the text of a whole result: pass trigger.output, or its key run_id."
            )
        if isinstance(self.run_id, Sequence) and not isinstance(self.run_id, str):
            raise InvalidRequestError(
                "run_id holds several results.",
                next_step="Map the upload: UploadFilesOperator.partial(…).expand(run_id=trigger.output).",
            )
        if not isinstance(self.run_id, Mapping):
            return rendered("run_id", self.run_id), flow_id
        if self.run_id.get("run_id") is None:
            raise InvalidRequestError(
                "run_id is the result of a trigger that has no run_id: the service's response had none.",
                next_step="Find the run in the workflow's list of runs.",
            )
        return rendered("run_id", self.run_id["run_id"]), flow_id or self.run_id.get("flow_id")

    def _advice(self, context: Context) -> Mapping[Accepted, str]:
        """Return what to do if Airflow does not retry the task."""
        return UPLOAD_ADVICE

    @property
    def _retried_after(self) -> tuple[type[WorkflowAutomationError], ...]:
        """Errors after which Airflow may retry the task, besides those where no files were accepted."""
        # In place of execution.upload's own: what reads files is slow to load.
        return (OutcomeUnknownError,) if self.on_unknown_upload == "send_again" else ()
