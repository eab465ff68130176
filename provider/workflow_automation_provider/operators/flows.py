"""Operators that start runs and upload files for them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.client.errors import (
    Accepted,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.links import FlowRunLink
from workflow_automation_provider.operators.base import UNSET, FlowOperator, Unset, rendered
from workflow_automation_provider.operators.retries import (
    START_ADVICE,
    UPLOAD_ADVICE,
    call_patiently,
    failing_for_good,
)
from workflow_automation_provider.start_record import Start, StartRecord, UploadRecord

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from workflow_automation_provider.client.files import FileFormat
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.hooks.sources import FileSource


__all__ = ["TriggerFlowOperator", "UploadFilesOperator"]


class TriggerFlowOperator(FlowOperator):
    """
    Start a run of a flow, once.

    With a ``flow_id`` the flow is triggered by path (section 4.1), without it the connection's API key
    identifies the flow (section 4.2). Returns and pushes ``run_id`` and ``run_link``, so that
    ``trigger.output["run_id"]`` can be handed on; a trigger by key that is answered without a run_id
    succeeds and pushes the whole ``reply`` instead.

    A task instance never starts a second run by itself: what it started is recorded (Airflow 3.3+), a later
    try returns the recorded run, and where nobody can tell whether a run was started it fails and says so.
    Clearing the task starts a new run.

    :param inputs: input names, as the flow defines them, and JSON values; dates, decimals, UUIDs and paths
        become text (templated, deeply)
    :param flow_id: the flow to start (templated); left out, the API key identifies it. A template that renders
        to None or to nothing is an error
    :param workflow_automation_conn_id: connection with the base URL and the API key (templated)
    :param on_unknown_start: what to do where nobody can tell whether a run was started (a time-out, a lost
        connection, a 5xx reply, a killed task): ``"fail"`` without a retry, or ``"start_again"`` in the next
        try, which accepts that a second run may be started
    :param request_timeout: seconds that a connection, each send and the whole reply may take, in place of
        the connection's ``timeout``
    :param send_retry_timeout: seconds to go on trying within one try of the task while the service is busy
        or cannot be reached, before Airflow's retry takes over; 0 sends once
    :raises AirflowFailException: where trying again cannot help or could start a second run
    :raises BusyError: if the service is still busy after ``send_retry_timeout``
    :raises NotSentError: if the service still cannot be reached after ``send_retry_timeout``
    """

    _flow_left_out = "to trigger the flow of the API key"

    template_fields: Sequence[str] = ("inputs", "flow_id", "workflow_automation_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"inputs": "json"}
    operator_extra_links = (FlowRunLink(),)

    def __init__(
        self,
        *,
        inputs: Mapping[str, Any],
        flow_id: str | Unset = UNSET,
        workflow_automation_conn_id: str = "workflow_automation_default",
        on_unknown_start: Literal["fail", "start_again"] = "fail",
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
        if on_unknown_start not in ("fail", "start_again"):
            raise ValueError(f"on_unknown_start is {on_unknown_start!r}: use 'fail' or 'start_again'.")
        self.inputs = inputs
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.on_unknown_start = on_unknown_start

    def execute(self, context: Context) -> dict[str, Any]:
        """Start the run, unless an earlier try did; return its ``run_id`` and ``run_link``, as far as known."""
        record = StartRecord(context, self.task_id)
        with record.in_use(self):
            if record.is_nested:
                with failing_for_good(START_ADVICE):
                    record.request = self._digest()
            earlier = record.read()
            result = self._run_of(earlier, record.request) if earlier else None
            if result is None:
                result = self._start(record, in_doubt=earlier is not None and not earlier.cleared)
        FlowRunLink.persist(context, result.get("run_link"))
        return result

    def _digest(self) -> str:
        """Identify what is asked for."""
        from workflow_automation_provider.client.json_values import encode

        return hashlib.sha256(f"{self.flow_id} ".encode() + encode("inputs", self.inputs)).hexdigest()[:32]

    def _run_of(self, earlier: Start, request: str | None) -> dict[str, Any] | None:
        """Return what an earlier try started, None where a run is to be started."""
        found = f"In try {earlier.try_number}, at {earlier.at}, {earlier.words}."
        if earlier.cleared:
            self.log.warning("%s The task was cleared since: another run is started now.", found)
            return None
        if request and earlier.request != request:
            # Names by position in a list that changed, for instance: it is another's run.
            raise AirflowFailException(
                f"{found} It was asked for with other inputs or another flow_id than those of {self.task_id!r} now. An "
                "operator that runs inside a task needs a task_id that names the same in each try. Nothing was sent."
            )
        hint = " If you cleared the task to start another run, clear it again." if earlier.ambiguous else ""
        match earlier.state:
            case "started":
                self.log.info("%s Nothing is started now.%s", found, hint)
                return earlier.result
            case "unidentified":
                raise AirflowFailException(f"{earlier.result['message']} {START_ADVICE[Accepted.YES]}{hint}")
            case "starting" if self.on_unknown_start == "start_again":
                self.log.warning("%s Starting another run: on_unknown_start is 'start_again'.", found)
                return None
        raise AirflowFailException(
            f"{found} Look in the workflow's list of runs at that time. {START_ADVICE[Accepted.MAYBE]}{hint}"
        )

    def _start(self, record: StartRecord, *, in_doubt: bool) -> dict[str, Any]:
        """
        Start the run: prepare all of the request, then record, then send.

        :param in_doubt: an earlier try may have started a run, and the user accepts that another is started
        """
        if not record.outlives_try:
            self.log.warning(
                "Task state does not persist across tries before Airflow 3.3: if this try fails after it asked "
                "for a run, the next may start a second one."
            )
        again = (OutcomeUnknownError,) if self.on_unknown_start == "start_again" else ()
        with self.open_hook() as hook, failing_for_good(START_ADVICE, but_for=again):
            request = hook.prepare_trigger(self.inputs, self.rendered_flow_id())
            return call_patiently(
                lambda: self._ask(request, record, in_doubt=in_doubt),
                seconds=self.send_retry_timeout,
                log=self.log,
                is_ended=lambda: self.is_ended,
            )

    def _ask(self, request: Request, record: StartRecord, *, in_doubt: bool) -> dict[str, Any]:
        """Ask for a run once, with the record always ahead of what is known."""
        if self.is_ended:
            raise NotSentError("Nothing was sent, for the task was ended. No run was started.")
        # Before the record, whose writing takes Airflow's answer: so the log has it by then, and a task that is
        # killed in its last try, which nobody comes to tell of, leaves these words behind.
        self.log.info(
            "Asking the service for a run. If no more is said of it here, a run may have been started: "
            "look in the workflow's list of runs."
        )
        handed_over = threading.Event()
        try:
            record.starting()
            run = self.hook.send_trigger(request, handing_over=handed_over.set)
        except WorkflowAutomationError as error:
            if error.accepted is Accepted.YES:
                self._record_unidentified(record, str(error))
            elif error.accepted is Accepted.NO:
                self._take_back(record, in_doubt=in_doubt)
            raise
        # Nothing is known then: of what went wrong, nor of this process's right to write.
        except Exception:
            raise
        except BaseException:  # such as Airflow's timeout of the task
            if handed_over.is_set():
                self.log.warning(
                    "Interrupted while the service was asked for a run: a run may have been started."
                )
            else:
                self._take_back(record, in_doubt=in_doubt)
            raise
        return self._keep(run, record)

    def _keep(self, run: Run, record: StartRecord) -> dict[str, Any]:
        """Record and return a run that was started."""
        if run.run_id is None:
            self.log.warning(
                "Started a run, but the response has no run_id: find it in the workflow's list of runs. %s",
                run.run_link or "It has no run_link either.",
            )
        else:
            self.log.info("Started run %s: %s", run.run_id, run.run_link)
        known = {
            "run_id": run.run_id,
            "run_link": run.run_link,
            "reply": run.reply if run.run_id is None else None,
        }
        # Airflow 3.0 cannot store None as an XCom, and would fail a task whose run was started.
        result = {key: value for key, value in known.items() if value is not None}
        try:
            self._record_started(record, result)
        except Exception:
            # The run is there, and what this try returns is recorded as well: failing now would lose it.
            self.log.exception("Run %s could not be recorded; a later try will not know of it.", run.run_id)
        return result

    def _record_started(self, record: StartRecord, result: dict[str, Any]) -> None:
        try:
            record.started(result)
        except Exception:
            raise
        except BaseException:  # the task ends, but a later one is to know of the run
            record.started(result)
            raise

    def _record_unidentified(self, record: StartRecord, message: str) -> None:
        try:
            record.unidentified(message)
        except Exception:  # the record says "starting", of which a later try makes as much
            self.log.exception("A run was started, but its record could not be completed.")

    def _take_back(self, record: StartRecord, *, in_doubt: bool) -> None:
        if in_doubt:
            self.log.warning("Nothing was started now, but an earlier try may have started a run.")
            return
        try:
            record.take_back()
        except Exception:
            self.log.exception(
                "No run was started, but this could not be recorded: a later try will report that a run may have "
                "been started. None was started by this try."
            )


class UploadFilesOperator(FlowOperator):
    """
    Upload files for a run (section 4.3), as a stream: memory does not grow with their size or number.

    Returns ``{"run_id", "files", "bytes", "requests"}``; each of ``requests`` has the names of its ``files``, its
    ``bytes`` and the service's ``reply``. What the service confirmed is recorded (Airflow 3.3+): a later try
    sends only what is missing. Clearing the task sends everything again.

    :param run_id: the run that the files belong to, such as ``trigger.output["run_id"]`` (templated)
    :param files: local paths and globs; URLs, prefixes (ending in ``/``) and globs that Airflow's object storage
        reads (``s3://conn_id@bucket/key``); ``Path`` and ``ObjectStoragePath`` objects; assets; and mappings
        that are sent as they stand (templated, deeply)
    :param flow_id: the flow of the run, by default the connection's (templated). A template that renders to None
        or to nothing is an error
    :param workflow_automation_conn_id: connection with the base URL and the API key (templated)
    :param file_format: how a file is written, in place of the connection's: a mapping of field name to ``name``,
        ``base64``, ``data_url``, ``text``, ``content_type`` or ``size``; one of these words; or a callable that
        takes a :class:`~workflow_automation_provider.client.files.File` and returns any JSON value
    :param content_types: media types by name pattern (``{"*.log": "text/plain"}``), in place of those that the
        name's ending tells
    :param files_per_request: the most files in one request; by default all go in one
    :param max_request_bytes: the most bytes in the body of one request, base64 and all
    :param max_file_bytes: refuse a larger file before anything is sent
    :param on_unknown_upload: what to do where nobody can tell whether files were taken: ``"send_again"``, or
        ``"fail"`` without a retry
    :param request_timeout: seconds that a connection, each send and the whole reply may take, in place of
        the connection's ``timeout``
    :param send_retry_timeout: seconds to go on trying each request within one try of the task, before
        Airflow's retry takes over; 0 sends once
    :raises AirflowFailException: where trying again cannot help
    :raises WorkflowAutomationError: where Airflow's retry may help
    """

    _flow_left_out = "to use the connection's"

    template_fields: Sequence[str] = ("run_id", "files", "flow_id", "workflow_automation_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"files": "json"}

    def __init__(
        self,
        *,
        run_id: str,
        files: FileSource | Sequence[FileSource],
        flow_id: str | Unset = UNSET,
        workflow_automation_conn_id: str = "workflow_automation_default",
        file_format: FileFormat | None = None,
        content_types: Mapping[str, str] | None = None,
        files_per_request: int | None = None,
        max_request_bytes: int | None = None,
        max_file_bytes: int | None = None,
        on_unknown_upload: Literal["send_again", "fail"] = "send_again",
        request_timeout: float | None = None,
        send_retry_timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            flow_id=flow_id, request_timeout=request_timeout, send_retry_timeout=send_retry_timeout, **kwargs
        )
        if on_unknown_upload not in ("send_again", "fail"):
            raise ValueError(f"on_unknown_upload is {on_unknown_upload!r}: use 'send_again' or 'fail'.")
        for name, limit in (
            ("files_per_request", files_per_request),
            ("max_request_bytes", max_request_bytes),
            ("max_file_bytes", max_file_bytes),
        ):
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
                raise ValueError(
                    f"{name} is {limit!r}: give a whole number of 1 or more, or None for no limit."
                )
        if file_format is not None or content_types is not None:
            # Imported only where there is something to check: most DAG files say neither.
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
        self.on_unknown_upload = on_unknown_upload

    def execute(self, context: Context) -> dict[str, Any]:
        """Upload the files that no earlier try did; return which file went in which request."""
        from workflow_automation_provider.operators.uploading import upload_files

        again = (OutcomeUnknownError,) if self.on_unknown_upload == "send_again" else ()
        record = UploadRecord(context, self.task_id)
        with record.in_use(self), self.open_hook(), failing_for_good(UPLOAD_ADVICE, but_for=again):
            return upload_files(
                self,
                record,
                run_id=rendered("run_id", self.run_id),
                flow_id=self.rendered_flow_id(),
                retry=again,
                is_ended=lambda: self.is_ended,
            )
