"""The operator that uploads files for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from workflow_automation_provider.client.checks import identifier, is_positive_integer
from workflow_automation_provider.client.file_format import FileFormat, check_file_format
from workflow_automation_provider.client.rendered_values import rendered
from workflow_automation_provider.exceptions import OutcomeUnknownError
from workflow_automation_provider.execution.errors import task_error
from workflow_automation_provider.operators.base import UNSET, FlowOperator, TaskSummary, link_of
from workflow_automation_provider.operators.xcom_arg import check_references

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.files import Element
    from workflow_automation_provider.exceptions import WorkflowAutomationError
    from workflow_automation_provider.execution.upload import UploadResult
    from workflow_automation_provider.hooks.files.sources import FileSource
    from workflow_automation_provider.operators.templates import Resolvable


class UploadFilesOperator(FlowOperator["UploadResult"]):
    """
    Upload files for a run, as a stream: memory does not grow with their size.

    Returns a summary: ``run_id``, the number of ``files``, their ``bytes``, the ``request_count``,
    and the first ``requests``, each with the names of its first ``files``, their ``count``, their
    ``bytes`` and the service's ``response``. Confirmed requests are recorded (Airflow 3.3+): a
    retry sends only what is missing. Clearing the task sends everything again.

    Follows section 4.3 of the interface.

    :param run_id: the run: its ID, or what a trigger returned (``trigger.output``), whose
        ``flow_id`` is then also used (templated)
    :param files: a source or a list of them: local paths and globs; URLs, prefixes and globs of an
        object store; ``Path`` and ``ObjectStoragePath`` objects; assets; and mappings, which are
        sent unchanged (templated, nested values too)
    :param flow_id: the flow of the run, by default the one that the trigger returned, or else the
        connection's (templated). None and an empty string are errors
    :param workflow_automation_conn_id: the connection with the base URL and the API key (templated)
    :param file_format: how a file is written: a mapping of field name to ``name``, ``path``,
        ``base64``, ``data_url``, ``content_type`` or ``size``, or one of these. By default the
        connection's
    :param files_per_request: the most files in one request, by default unlimited
    :param max_request_bytes: the largest body of a request, encoding included, by default unlimited
    :param send_retry_timeout: how long to retry each request within one try; then Airflow retries
        the task. 0 sends once
    """

    _uploaded: Sequence[Element] = ()
    """The files, for lineage."""

    template_fields: Sequence[str] = ("run_id", "files", "flow_id", "workflow_automation_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"files": "json"}

    def __init__(
        self,
        *,
        run_id: str | Mapping[str, Any] | Resolvable,
        files: FileSource | Sequence[FileSource | Resolvable] | Resolvable,
        flow_id: str | Resolvable = UNSET,
        workflow_automation_conn_id: str | Resolvable = "workflow_automation_default",
        file_format: FileFormat | None = None,
        files_per_request: int | None = None,
        max_request_bytes: int | None = None,
        send_retry_timeout: timedelta | float = timedelta(seconds=60),
        **kwargs: Any,
    ) -> None:
        super().__init__(flow_id=flow_id, send_retry_timeout=send_retry_timeout, **kwargs)
        limits = {"files_per_request": files_per_request, "max_request_bytes": max_request_bytes}
        for name, limit in limits.items():
            if limit is not None and not is_positive_integer(limit):
                raise ValueError(
                    f"{name} is {limit!r}: expected a whole number of 1 or more, or None for no "
                    "limit."
                )

        if file_format is not None:
            check_file_format(file_format)

        # Of whatever type the template or XCom has by then.
        self.run_id: Any = run_id
        self.files: Any = files
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.file_format = file_format
        self.files_per_request = files_per_request
        self.max_request_bytes = max_request_bytes
        check_references(self.run_id, self.files)

    def _run_once(self, context: Context, **_: Any) -> UploadResult:
        # Not at the top: the DAG processor needs none of it.
        from workflow_automation_provider.execution.upload import Uploader

        uploader = Uploader(
            context,
            self.hook,
            self._retrier,
            self.files,
            file_format=self.file_format,
            files_per_request=self.files_per_request,
            max_request_bytes=self.max_request_bytes,
        )
        result = uploader.upload(*self._run_and_flow())
        self._uploaded = uploader.elements
        return result

    def _summary(self, result: UploadResult) -> TaskSummary:
        _, flow_id = self._run_and_flow()
        extra = {
            "run_id": result["run_id"],
            **(link_of(self.run_id) if isinstance(self.run_id, Mapping) else {}),
            "flow_id": flow_id or self.hook.extra.flow_id,
            "files": result["files"],
            "bytes": result["bytes"],
        }
        return TaskSummary(extra, read=self._uploaded or self.files)

    def _run_and_flow(self) -> tuple[Any, str | None]:
        """Return the id of the run, and its flow if one is given, or in the result of a trigger."""
        flow_id = self._rendered_flow_id()
        run_id = self.run_id
        if isinstance(run_id, Mapping):
            flow_id = flow_id or run_id.get("flow_id")
            run_id = run_id.get("run_id")

        return identifier("run_id", rendered("run_id", run_id)), flow_id

    def _failure(self, context: Context, error: WorkflowAutomationError) -> WorkflowAutomationError:
        """Return the error to fail the task with: clearing it uploads all files again."""
        again = "clear the task to upload all files."
        return task_error(error, context, retried=(OutcomeUnknownError,), again=again)
