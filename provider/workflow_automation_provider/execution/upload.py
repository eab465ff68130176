"""
Upload the files for a run: which files, in which requests, without those that an earlier try uploaded.

Each file is resolved and measured only once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from workflow_automation_provider.client.files import Element, File, FileFormat, fingerprint
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.protocol import Operation, Request, identifier
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.hooks.file_sources import FileSource, resolve
from workflow_automation_provider.hooks.upload_progress import mebibytes

if TYPE_CHECKING:
    from workflow_automation_provider.execution.retry import Patience
    from workflow_automation_provider.execution.task_state import ConfirmedRequest, UploadRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = ["FilesToUpload", "OnUnknownUpload", "UploadRequest", "UploadResult", "Uploader"]

OnUnknownUpload = Literal["send_again", "fail"]
"""What to do if it is unknown whether files were accepted."""

# The response to an upload is a short text; this much of it is kept, because it becomes an XCom.
_KEPT_RESPONSE = 2000


class UploadRequest(TypedDict):
    """One request of an upload."""

    files: list[str | None]
    """Names of the files, None for a mapping."""
    bytes: int
    """Total size of the files."""
    response: str
    """The service's response, truncated to 2,000 characters."""


class UploadResult(TypedDict):
    """The result of an upload task."""

    run_id: str
    files: int
    """Number of files and mappings."""
    bytes: int
    """Total size of the files."""
    requests: list[UploadRequest]


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesToUpload:
    """
    What to upload, and how.

    :param files: as passed by the DAG author
    :param file_format: the format of each file, None for the connection's
    :param content_types: media types by name pattern, None to guess them from the file extensions
    :param files_per_request: the maximum number of files in one request, None for no limit
    :param max_request_bytes: the maximum size of a request's body in bytes, None for no limit
    :param max_file_bytes: the maximum size of a file in bytes, None for no limit
    """

    files: FileSource | Iterable[FileSource]
    file_format: FileFormat | None = None
    content_types: Mapping[str, str] | None = None
    files_per_request: int | None = None
    max_request_bytes: int | None = None
    max_file_bytes: int | None = None


def _retried_after(on_unknown_upload: OnUnknownUpload) -> tuple[type[WorkflowAutomationError], ...]:
    """Return the errors after which a request may be sent again, besides busy and not sent."""
    return (OutcomeUnknownError,) if on_unknown_upload == "send_again" else ()


class Uploader:
    """
    Send the files that no earlier try sent.

    :param record: what earlier tries sent
    :param hook: sends the requests; closed afterwards
    :param patience: how long to keep retrying each request while the service is busy or cannot be reached
    """

    def __init__(
        self,
        record: UploadRecord,
        hook: WorkflowAutomationHook,
        patience: Patience,
        *,
        on_unknown_upload: OnUnknownUpload = "send_again",
    ) -> None:
        self._record = record
        self._hook = hook
        self._patience = patience
        self._log = patience.log
        self._retry = _retried_after(on_unknown_upload)

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
                error.locate(self._hook.workflow_automation_conn_id, flow_id, run_id)
                raise

    def _upload(self, run_id: str, flow_id: str, what: FilesToUpload) -> UploadResult:
        elements = resolve(what.files, content_types=what.content_types)
        _check_sizes(elements, what.max_file_bytes)
        self._log.info("Uploading %s for run %s.", _count(elements), run_id)
        confirmed, missing = self._without_confirmed(elements, f"{flow_id} {run_id}")
        requests = self._requests(run_id, flow_id, missing, what) if missing else []
        for number, request in enumerate(requests, start=1):
            confirmed.append(self._send(request, f"{flow_id} {run_id}", len(confirmed)))
            self._log.info(
                "Request %d of %d confirmed: %s. The service said: %s",
                number,
                len(requests),
                _count(request.files),
                confirmed[-1]["response"],
            )
        return {"run_id": run_id, "files": len(elements), "bytes": _size(elements), "requests": confirmed}

    def _requests(
        self, run_id: str, flow_id: str, elements: Sequence[Element], what: FilesToUpload
    ) -> list[Request]:
        return self._hook.prepare_uploads(
            run_id,
            elements,
            flow_id,
            file_format=what.file_format,
            files_per_request=what.files_per_request,
            max_request_bytes=what.max_request_bytes,
        )

    def _send(self, request: Request, target: str, confirmed: int) -> UploadRequest:
        """Send one request, and record that it was confirmed."""
        # Computed before the files are read: a file that changes later is not the one that was confirmed.
        digests = [_digest(e, target) for e in request.files] if self._record.outlives_try else []
        if not self._retry:
            self._record.sending()
        try:
            response = self._patience.call(lambda: self._hook.send_upload(request), retry=self._retry)
        except WorkflowAutomationError as error:
            if error.accepted is Accepted.NO:
                self._take_back()
            if confirmed:
                self._log.warning(
                    "%d requests were confirmed before this one. A retry sends the rest; clearing the task sends all files again.",
                    confirmed,
                )
            raise
        sent: UploadRequest = {
            "files": [_name(element) for element in request.files],
            "bytes": _size(request.files),
            "response": response[:_KEPT_RESPONSE],
        }
        self._confirm({**sent, "digests": digests, "target": target})
        return sent

    def _confirm(self, request: ConfirmedRequest) -> None:
        try:
            self._record.confirmed(request)
        except Exception:
            # The files are there: failing now would send them again.
            self._log.exception(
                "The request was confirmed, but that could not be recorded: a retry would repeat it."
            )

    def _take_back(self) -> None:
        try:
            self._record.take_back()
        except Exception:
            self._log.exception(
                "No files were accepted, but that could not be recorded: a later try will report that they may have been."
            )

    def _without_confirmed(
        self, elements: Sequence[Element], target: str
    ) -> tuple[list[UploadRequest], list[Element]]:
        """Return the requests that earlier tries sent, and the elements that were in none of them."""
        recorded = self._record.read()
        if not self._retry and self._record.interrupted():
            raise OutcomeUnknownError(
                "An earlier try ended while it was uploading, before the outcome was known.",
                consequence=Operation.UPLOAD.consequence(Accepted.MAYBE),
                next_step=Operation.UPLOAD.look,
            )
        # For a run_id that has changed since, nothing was sent yet.
        earlier = [request for request in recorded if request["target"] in ("", target)]
        if not earlier:
            return [], list(elements)
        missing = _missing(elements, earlier, target)
        self._log.info(
            "An earlier try uploaded %d of them; %s to go.", len(elements) - len(missing), _count(missing)
        )
        return [
            {"files": r["files"], "bytes": r["bytes"], "response": r["response"]} for r in earlier
        ], missing


def _missing(elements: Sequence[Element], earlier: Sequence[ConfirmedRequest], target: str) -> list[Element]:
    # Counted, because a file may be listed twice.
    confirmed = Counter(digest for request in earlier for digest in request["digests"])
    missing = []
    for element in elements:
        digest = _digest(element, target)
        if confirmed[digest]:
            confirmed[digest] -= 1
        else:
            missing.append(element)
    return missing


def _digest(element: Element, target: str) -> str:
    """Return a hash that identifies the current version of a file, or a mapping, for one run."""
    if isinstance(element, File):
        what = f"{element.source} {element.size} {fingerprint(element)}"
    else:
        what = encode("files", element).decode()
    return hashlib.sha256(f"{target} {what}".encode(errors="surrogatepass")).hexdigest()[:32]


def _check_sizes(elements: Sequence[Element], max_file_bytes: int | None) -> None:
    for element in elements:
        if max_file_bytes is not None and isinstance(element, File) and element.size > max_file_bytes:
            raise InvalidRequestError(
                f"{element.source} has {element.size} bytes, more than max_file_bytes ({max_file_bytes}): raise the limit, "
                "or leave the file out."
            )


def _count(elements: Sequence[Element]) -> str:
    return f"{len(elements)} file{'' if len(elements) == 1 else 's'} of {mebibytes(_size(elements))}"


def _size(elements: Sequence[Element]) -> int:
    return sum(element.size for element in elements if isinstance(element, File))


def _name(element: Element) -> str | None:
    if not isinstance(element, File):
        return None
    # XComs, logs and the record cannot store a file name that is not valid Unicode (surrogate escapes).
    return element.name.encode(errors="backslashreplace").decode()
