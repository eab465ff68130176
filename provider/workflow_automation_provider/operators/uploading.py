"""The work of ``UploadFilesOperator``: what to send, in which requests, and what an earlier try did already."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.errors import (
    Accepted,
    FileUnavailableError,
    InvalidRequestError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.client.files import Element, File
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.protocol import identifier
from workflow_automation_provider.client.upload_body import split
from workflow_automation_provider.hooks.progress import mebibytes
from workflow_automation_provider.hooks.sources import resolve
from workflow_automation_provider.operators.retries import call_patiently

if TYPE_CHECKING:
    from workflow_automation_provider.operators.flows import UploadFilesOperator
    from workflow_automation_provider.start_record import UploadRecord

__all__ = ["upload_files"]

# A service's answer to an upload is a short text; what is kept of it is passed on through XCom.
_KEPT_REPLY = 2000


def upload_files(
    task: UploadFilesOperator,
    record: UploadRecord,
    *,
    run_id: object,
    flow_id: str | None,
    retry: tuple[type[WorkflowAutomationError], ...],
    is_ended: Callable[[], bool],
) -> dict[str, Any]:
    """
    Send what is missing, request by request.

    :param task: the operator, its fields rendered
    :param record: what earlier tries sent
    :param run_id: the run, text or a whole number
    :param flow_id: the flow, None for the connection's
    :param retry: errors to send a request again after, besides busy and not sent
    :param is_ended: tells whether Airflow ended the task
    :return: what the operator returns
    """
    hook = task.hook
    flow_id = identifier("flow_id", hook.flow_of_upload(flow_id))
    run_id = identifier("run_id", run_id)
    file_format = hook.get_conn().file_format if task.file_format is None else task.file_format
    target = f"{flow_id} {run_id}"
    elements = resolve(task.files, content_types=task.content_types)
    _refuse_large(elements, task.max_file_bytes)
    task.log.info("Uploading %s for run %s.", _count(elements), run_id)

    if not retry and record.interrupted():
        raise OutcomeUnknownError(
            "An earlier try ended while it uploaded, and what came of that was not recorded."
        )
    requests, missing = _without_confirmed(elements, record, target)
    if requests:
        task.log.info(
            "An earlier try uploaded %d of them; %s to go.", len(elements) - len(missing), _count(missing)
        )
    groups = split(
        flow_id,
        run_id,
        missing,
        file_format,
        files_per_request=task.files_per_request,
        max_request_bytes=task.max_request_bytes,
    )
    for number, group in enumerate(groups, start=1):
        # Taken before the files are read: one that changes later is not the one that was confirmed.
        digests = [_digest(element, target) for element in group] if record.outlives_try else []
        if not retry:
            record.sending()
        try:
            reply = call_patiently(
                functools.partial(hook.upload_files, run_id, group, flow_id, file_format=file_format),
                seconds=task.send_retry_timeout,
                log=task.log,
                is_ended=is_ended,
                retry=retry,
            )
        except WorkflowAutomationError as error:
            if error.accepted is Accepted.NO:
                record.take_back()
            if requests:
                task.log.warning(
                    "%d requests were confirmed before this one: a retry sends the rest, a Clear sends everything again.",
                    len(requests),
                )
            raise
        request = {"files": [_name(e) for e in group], "bytes": _size(group), "reply": reply[:_KEPT_REPLY]}
        requests.append(request)
        record.confirmed({**request, "digests": digests, "target": target})
        task.log.info(
            "Request %d of %d confirmed: %s. The service said: %s",
            number,
            len(groups),
            _count(group),
            reply[:_KEPT_REPLY],
        )
    return {"run_id": run_id, "files": len(elements), "bytes": _size(elements), "requests": requests}


def _without_confirmed(
    elements: Sequence[Element], record: UploadRecord, target: str
) -> tuple[list[dict[str, Any]], list[Element]]:
    """Return the requests that earlier tries sent, and the elements that were in none of them."""
    # For a run_id that has changed since, nothing was sent yet.
    earlier = [request for request in record.read() if request.get("target", target) == target]
    if not earlier:
        return [], list(elements)
    # Counted, for a file may be named twice.
    confirmed = Counter(digest for request in earlier for digest in request["digests"])
    missing = []
    for element in elements:
        digest = _digest(element, target)
        if confirmed[digest]:
            confirmed[digest] -= 1
        else:
            missing.append(element)
    return [{key: request[key] for key in ("files", "bytes", "reply")} for request in earlier], missing


def _digest(element: Element, target: str) -> str:
    """Identify a file as it is now, or a mapping, for one run."""
    if isinstance(element, File):
        what = f"{element.source} {element.size} {_fingerprint(element)}"
    else:
        what = encode("files", element).decode()
    return hashlib.sha256(f"{target} {what}".encode(errors="surrogatepass")).hexdigest()[:32]


def _fingerprint(file: File) -> object:
    try:
        return file.fingerprint()
    except Exception as error:  # of any kind, by store
        what = getattr(error, "strerror", None) or type(error).__name__
        raise FileUnavailableError(
            f"{file.source} can no longer be read ({what}). Its request was not sent."
        ) from None


def _refuse_large(elements: Sequence[Element], max_file_bytes: int | None) -> None:
    for element in elements:
        if max_file_bytes is not None and isinstance(element, File) and element.size > max_file_bytes:
            raise InvalidRequestError(
                f"{element.source} has {element.size} bytes, more than max_file_bytes ({max_file_bytes}): raise that, "
                "or leave the file out. Nothing was sent."
            )


def _count(elements: Sequence[Element]) -> str:
    return f"{len(elements)} file{'' if len(elements) == 1 else 's'} of {mebibytes(_size(elements))}"


def _size(elements: Sequence[Element]) -> int:
    return sum(element.size for element in elements if isinstance(element, File))


def _name(element: Element) -> str | None:
    if not isinstance(element, File):
        return None
    # A name of an odd file system (surrogate escapes) is nothing that XCom, a log or the record can hold.
    return element.name.encode(errors="backslashreplace").decode()
