"""
Upload the files for a run: which files, in which requests, without those that an earlier try uploaded.

Each file is resolved and measured only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.protocol import Request, identifier
from workflow_automation_provider.exceptions import (
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.confirmed_files import MAX_FILES, identities_of, without
from workflow_automation_provider.execution.upload_progress import (
    Progress,
    count_of,
    name_of,
    names_of,
    size_of,
)
from workflow_automation_provider.hooks.sources import FileSource, resolve

if TYPE_CHECKING:
    from workflow_automation_provider.client.files import Element, FileFormat
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.upload_record import ConfirmedRequest, UploadRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# The response to an upload is a short text; this much of it is kept, because it becomes an XCom.
_KEPT_RESPONSE = 2000

# Names of a request, and requests of a result, that are kept: what can be read, whatever their number.
_KEPT_NAMES = 20
_KEPT_REQUESTS = 20

# Stands for a run that is not started yet.
_ANY_RUN = "0"


class UploadRequest(TypedDict):
    """One request of an upload."""

    files: list[str | None]
    """Names of its first 20 files, None for a mapping."""
    count: int
    """Number of its files and mappings."""
    bytes: int
    """Total size of its files."""
    response: str
    """The service's response, truncated to 2,000 characters."""


class UploadResult(TypedDict):
    """The result of an upload task: a summary, because it becomes an XCom."""

    run_id: str
    """The run that the files were uploaded for."""
    files: int
    """Number of files and mappings."""
    bytes: int
    """Total size of the files."""
    request_count: int
    """Number of requests."""
    requests: list[UploadRequest]
    """The first 20 requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesToUpload:
    """
    What to upload, and how.

    :param files: as passed by the DAG author
    :param file_format: the format of each file, None for the connection's
    :param files_per_request: the maximum number of files in one request, None for no limit
    :param max_request_bytes: the maximum size of a request's body in bytes, None for no limit
    """

    files: FileSource | Iterable[FileSource]
    file_format: FileFormat | None = None
    files_per_request: int | None = None
    max_request_bytes: int | None = None


class Uploader:
    """
    Send the files that no earlier try sent.

    :param record: what earlier tries sent
    :param hook: sends the requests; closed afterwards
    :param retrier: how long to keep retrying each request while the service is busy or cannot be reached
    """

    def __init__(
        self,
        record: UploadRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._prepared: list[Element] | None = None
        self.elements: Sequence[Element] = ()
        """The files, for lineage: those of earlier tries as well."""

    def prepare(self, flow_id: str | None, what: FilesToUpload) -> None:
        """
        Resolve the files before there is a run, for :meth:`upload`, and check all that can be checked by then.

        :param flow_id: the flow, None for the connection's
        :raises WorkflowAutomationError: if they could not be uploaded
        """
        elements = resolve(what.files)
        self._requests(_ANY_RUN, flow_id, elements, what)
        self._prepared = elements

    def upload(self, run_id: object, flow_id: str | None, what: FilesToUpload) -> UploadResult:
        """
        Upload the missing files, request by request.

        :param run_id: text, or a whole number
        :param flow_id: the flow, None for the connection's
        :raises WorkflowAutomationError: if a request was not confirmed
        """
        with self._hook:
            try:
                flow_id = identifier("flow_id", self._hook.flow_of_upload(flow_id))
                run_id = identifier("run_id", run_id)
                return self._upload(run_id, flow_id, what)
            except WorkflowAutomationError as error:
                raise error.with_facts(
                    flow_id=None if flow_id is None else str(flow_id), run_id=str(run_id)
                ) from error.__cause__

    def _upload(self, run_id: str, flow_id: str, what: FilesToUpload) -> UploadResult:
        elements = resolve(what.files) if self._prepared is None else self._prepared
        self.elements = elements
        self._log.info("Uploading %s for run %s.", count_of(elements), run_id)
        confirmed, missing = self._without_confirmed(elements, f"{flow_id} {run_id}")
        requests = self._requests(run_id, flow_id, missing, what) if missing else []
        progress = Progress(sum(len(request.content) for request in requests), self._log)
        for number, request in enumerate(requests, start=1):
            confirmed.append(self._send(request, f"{flow_id} {run_id}", len(confirmed), progress))
            self._log_confirmed(number, requests, confirmed[-1], progress)
        return {
            "run_id": run_id,
            "files": len(elements),
            "bytes": size_of(elements),
            "request_count": len(confirmed),
            "requests": confirmed[:_KEPT_REQUESTS],
        }

    def _log_confirmed(
        self, number: int, requests: Sequence[Request], confirmed: UploadRequest, progress: Progress
    ) -> None:
        """Log the last request of an upload, and of a long one some of those before."""
        response = one_line(confirmed["response"])
        if number == len(requests):
            sent = (element for request in requests for element in request.files)
            count = sum(len(request.files) for request in requests)
            of = f" in {number:,} requests" if number > 1 else ""
            self._log.info(
                "Uploaded %s%s: %s. The service said: %s",
                f"{count:,} file{'' if count == 1 else 's'}",
                of,
                names_of(sent, count),
                response,
            )
        elif progress.is_due():
            self._log.info(
                "Request %d of %d confirmed. The service said: %s", number, len(requests), response
            )

    def _requests(
        self, run_id: str, flow_id: str | None, elements: Sequence[Element], what: FilesToUpload
    ) -> list[Request]:
        return self._hook.prepare_uploads(
            run_id,
            elements,
            flow_id,
            file_format=what.file_format,
            files_per_request=what.files_per_request,
            max_request_bytes=what.max_request_bytes,
        )

    def _send(self, request: Request, target: str, already: int, progress: Progress) -> UploadRequest:
        """Send one request, with retries."""
        # Computed before the files are read: a file that changes later is not the one that was confirmed.
        identities = identities_of(request.files, target)
        try:
            return self._retrier.send(
                lambda: self._send_once(request, target, identities, progress),
                retry_unknown=True,
            )
        except WorkflowAutomationError:
            if already:
                self._log.warning(
                    "%d requests were confirmed before this one. A retry sends the rest; clearing the task sends all files again.",
                    already,
                )
            raise

    def _send_once(
        self, request: Request, target: str, identities: list[str], progress: Progress
    ) -> UploadRequest:
        """Send one request, and record that it was confirmed."""
        progress.begin()
        response = self._hook.send_upload(request, sent=progress.sent, begun=progress.begun)
        progress.confirmed()
        confirmed: UploadRequest = {
            "files": [name_of(element) for element in request.files[:_KEPT_NAMES]],
            "count": len(request.files),
            "bytes": size_of(request.files),
            "response": response[:_KEPT_RESPONSE],
        }
        self._confirm({**confirmed, "target": target, "identities": identities})
        return confirmed

    def _confirm(self, request: ConfirmedRequest) -> None:
        try:
            self._record.confirmed(request)
        except Exception:
            # The files are there: failing now would send them again.
            self._log.exception(
                "The request was confirmed, but that could not be recorded: a retry would repeat it."
            )

    def _without_confirmed(
        self, elements: Sequence[Element], target: str
    ) -> tuple[list[UploadRequest], list[Element]]:
        """Return the requests that earlier tries sent, and the elements that were in none of them."""
        recorded = self._record.read(target)
        # For a run_id that has changed since, nothing was sent yet.
        earlier = [request for request in recorded if request["target"] == target]
        if not earlier:
            return [], list(elements)
        if too_many := sum(not request["identities"] for request in earlier):
            self._log.warning(
                "%d confirmed requests had more than %s files each, which are not recorded: all files of these requests are "
                "sent again.",
                too_many,
                f"{MAX_FILES:,}",
            )
        confirmed = (text for request in earlier for text in request["identities"])
        missing = without(elements, target, confirmed)
        self._log.info(
            "An earlier try uploaded %d of them; %s to go.", len(elements) - len(missing), count_of(missing)
        )
        return [_summary(request) for request in earlier], missing


def _summary(request: ConfirmedRequest) -> UploadRequest:
    return {
        "files": request["files"][:_KEPT_NAMES],
        "count": request["count"],
        "bytes": request["bytes"],
        "response": request["response"],
    }
