"""
Upload the files for a run, and record how many requests were confirmed.

Each file is resolved and measured only once. The record is one entry: a digest of the requests, and
how many of them the service has confirmed. A retry with the same digest continues after these; with
another one, it sends all files. Once all are confirmed, the entry has the result, and a retry needs
no file. More need not be certain, because requests of an upload may be repeated.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
from msgspec.structs import replace

from workflow_automation_provider.client.files import Element, File, checked_fingerprint
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    InvalidRequestError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.record.entries import entry_of, read_entry
from workflow_automation_provider.execution.record.state_store import TaskRecord
from workflow_automation_provider.hooks.files.sources import FileSource, resolve
from workflow_automation_provider.wording import one_line

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.file_format import FileFormat
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

UPLOAD_KEY = "workflow_automation_upload"
"""The entry of the task state store."""

# Characters that are kept of the response to an upload, a short text: it becomes an XCom.
_KEPT_RESPONSE = 2000

# How much of an upload a result has, so that a person can read it.
_KEPT_NAMES = 20
_KEPT_REQUESTS = 20

# In place of the run_id, to check what can be checked before there is one.
_ANY_RUN = "0"

# Seconds between two lines of the log that say how far an upload is.
_INTERVAL = 15.0


class UploadEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    How far an upload is.

    ``upload``. The task writes it after each request that the service confirms, in place of the one
    before.

    :param digest: hash of all requests, and of the run: with another one, all files are sent
    :param confirmed: how many requests are confirmed
    :param responses: the service's responses to the first 20 of them
    :param max_tries: the task instance's, of an upload task whose files are all confirmed: a Clear
        sends them again. None otherwise
    :param result: what the task returns, None before all files are confirmed
    """

    digest: str
    confirmed: int
    responses: list[str]
    max_tries: int | None = None
    result: UploadResult | None = None


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


class Uploader:
    """
    Send the requests that no earlier try sent.

    :param hook: sends the requests
    :param retrier: how long to keep retrying each request while the service is busy or cannot be
        reached
    :param files: as passed by the DAG author
    :param of_own_run: whether the same task starts the run. If so, the record counts after a Clear
        as well: that starts another run, or continues with this run and its files. If not, a Clear
        sends all files again
    :param file_format: the format of each file, None for the connection's
    :param files_per_request: as ``max_request_bytes``, of
        :meth:`.WorkflowAutomationHook.prepare_uploads`
    :raises InvalidRequestError: if this try of the task has another upload
    """

    def __init__(
        self,
        context: Context,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        files: FileSource | Iterable[FileSource],
        *,
        of_own_run: bool = False,
        file_format: FileFormat | None = None,
        files_per_request: int | None = None,
        max_request_bytes: int | None = None,
    ) -> None:
        self.elements: Sequence[Element] = ()
        """The files, for lineage: those of earlier tries as well."""
        self._context = context
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._files = files
        self._of_own_run = of_own_run
        self._file_format = file_format
        self._files_per_request = files_per_request
        self._max_request_bytes = max_request_bytes

        self._record = TaskRecord(context)
        self._record.use()

    @functools.cached_property
    def _earlier(self) -> UploadEntry | None:
        """The entry of an earlier try, None if there is none."""
        entry = self._record.find(UPLOAD_KEY)
        if entry is None:
            return None

        try:
            return read_entry(UploadEntry, UPLOAD_KEY, entry)
        except InvalidRequestError as error:
            # It says nothing of a run, unlike the others.
            code = Code.INVALID
            raise error.with_facts(code=code, accepted=Accepted.NO, consequence="") from None

    @property
    def _max_tries(self) -> int | None:
        """What a Clear changes, None if the record counts after a Clear as well."""
        return None if self._of_own_run else self._context["ti"].max_tries

    def prepare(self, flow_id: str | None) -> None:
        """
        Resolve the files, and check all that can be checked before there is a run.

        :param flow_id: the flow, None for the connection's
        :raises WorkflowAutomationError: if they could not be uploaded
        """
        self.elements = resolve(self._files)
        self._requests(_ANY_RUN, flow_id)

    def earlier_result(self, run_id: str) -> UploadResult | None:
        """Return the result of an earlier try that has uploaded all files of a run."""
        entry = self._earlier
        if entry is None or entry.max_tries != self._max_tries:
            return None
        result = entry.result
        return result if result and result["run_id"] == run_id else None

    def upload(self, run_id: str, flow_id: str | None) -> UploadResult:
        """
        Upload the missing files, request by request.

        :param flow_id: the flow, None for the connection's
        :raises WorkflowAutomationError: if a request was not confirmed
        """
        try:
            return self._upload(run_id, flow_id)
        except WorkflowAutomationError as error:
            located = error.with_facts(flow_id=error.flow_id or flow_id, run_id=run_id)
            raise located from error.__cause__

    def _upload(self, run_id: str, flow_id: str | None) -> UploadResult:
        earlier = self.earlier_result(run_id)
        if earlier:
            self._log.info("An earlier try has uploaded all files for run %s.", run_id)
            return earlier

        requests = self._prepared(run_id, flow_id)
        names = ", ".join(name or "a mapping" for name in _names_of(self.elements))
        self._log.info(
            "Uploading for run %s: %s (files: %d, bytes: %d).",
            run_id,
            names,
            len(self.elements),
            _size_of(self.elements),
        )
        file_format = self._file_format or self._hook.extra.file_format
        target = [requests[0].flow_id, run_id, file_format, self._max_tries]
        return self._send_unconfirmed(run_id, _digest(target, requests), requests)

    def _prepared(self, run_id: str, flow_id: str | None) -> list[Request]:
        """Return the requests, of files that an earlier try may have sent in part."""
        try:
            if not self.elements:
                self.elements = resolve(self._files)
            return self._requests(run_id, flow_id)
        except WorkflowAutomationError as error:
            if self._earlier is None:
                raise
            raise error.with_facts(consequence="Nothing was sent in this try.") from error.__cause__

    def _result(
        self, run_id: str, requests: Sequence[Request], responses: Sequence[str]
    ) -> UploadResult:
        return {
            "run_id": run_id,
            "files": len(self.elements),
            "bytes": _size_of(self.elements),
            "request_count": len(requests),
            "requests": [
                _summary_of(request, response)
                for request, response in zip(requests, responses, strict=False)
            ],
        }

    def _requests(self, run_id: str, flow_id: str | None) -> list[Request]:
        return self._hook.prepare_uploads(
            run_id,
            self.elements,
            flow_id,
            file_format=self._file_format,
            files_per_request=self._files_per_request,
            max_request_bytes=self._max_request_bytes,
        )

    def _send_unconfirmed(
        self, run_id: str, digest: str, requests: Sequence[Request]
    ) -> UploadResult:
        """Send the requests that no earlier try sent; return the result of all of them."""
        confirmed, responses = self._confirmed(digest, len(requests))
        logged_at = time.monotonic()
        for number, request in enumerate(requests[confirmed:], start=confirmed + 1):
            response = self._send(request)[:_KEPT_RESPONSE]
            responses = [*responses, response][:_KEPT_REQUESTS]
            is_last = number == len(requests)
            entry = UploadEntry(digest, number, responses)
            if is_last:
                result = self._result(run_id, requests, responses)
                entry = replace(entry, max_tries=self._max_tries, result=result)

            self._confirm(entry)
            now = time.monotonic()

            if is_last or now - logged_at >= _INTERVAL:
                logged_at = now
                self._log.info(
                    "Request %d of %d confirmed. The service said: %s",
                    number,
                    len(requests),
                    one_line(response),
                )

        return self._result(run_id, requests, responses)

    def _confirmed(self, digest: str, count: int) -> tuple[int, list[str]]:
        """Return how many of the requests earlier tries sent, and the first responses."""
        entry = self._earlier
        if entry is None:
            return 0, []

        if entry.digest != digest:
            self._log.warning(
                "The files, their format or the run are not those of an earlier try, or the task "
                "was cleared: sending all files."
            )
            return 0, []

        self._log.info("An earlier try sent %d of %d requests.", entry.confirmed, count)
        return entry.confirmed, entry.responses

    def _send(self, request: Request) -> str:
        return self._retrier.send(lambda: self._hook.get_conn().upload(request), retry_unknown=True)

    def _confirm(self, entry: UploadEntry) -> None:
        try:
            self._record.set(UPLOAD_KEY, entry_of(entry))
        except Exception:
            # The files are there: failing now would send them again.
            self._log.exception(
                "The request was confirmed, but that could not be recorded: "
                "a retry would repeat it."
            )


def _digest(target: list[Any], requests: Sequence[Request]) -> str:
    """
    Return a hash of requests, without reading a file.

    :param target: what else the requests depend on
    :raises FileUnavailableError: if a file can no longer be looked at
    """
    digest = hashlib.sha256(encode("upload", target))
    for request in requests:
        digest.update(f"\n{len(request.files)}".encode())
        for element in request.files:
            digest.update(b"\n" + _identity_of(element))

    return digest.hexdigest()


def _identity_of(element: File | bytes) -> bytes:
    """Return what identifies a file and its version; of a mapping, its JSON."""
    if not isinstance(element, File):
        return element

    # Not the media type that is guessed: it differs between machines.
    identity = [
        element.name,
        element.path,
        element.content_type,
        element.source,
        element.size,
        str(checked_fingerprint(element)),
    ]
    return json.dumps(identity).encode()


def _summary_of(request: Request, response: str) -> UploadRequest:
    return {
        "files": _names_of(request.files),
        "count": len(request.files),
        "bytes": _size_of(request.files),
        "response": response,
    }


def _size_of(elements: Iterable[object]) -> int:
    """Return the total size of the files among the elements."""
    return sum(element.size for element in elements if isinstance(element, File))


def _names_of(elements: Sequence[object]) -> list[str | None]:
    """Return the first names of files, as logs and XComs can show them; None for a mapping."""
    return [
        one_line(element.name) if isinstance(element, File) else None
        for element in elements[:_KEPT_NAMES]
    ]
