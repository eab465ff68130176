"""What it means that a request got no response, or one that cannot be read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workflow_automation_provider.client.protocol import Operation, Request
from workflow_automation_provider.client.responses.cause import describe, hint_for
from workflow_automation_provider.client.responses.statuses import code_of, nothing_done
from workflow_automation_provider.exceptions import (
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor
    from workflow_automation_provider.client.send_progress import SendProgress

# The status line of a response; those from 100 to 199 only announce one.
_STATUS_LINE = re.compile(rb"^HTTP/1\.[01] ([2-5][0-9]{2})\b", re.MULTILINE)


def error_without_response(
    request: Request, error: Exception, progress: SendProgress, redactor: Redactor, via: str
) -> WorkflowAutomationError:
    """
    Return the exception for a request without a response that can be read.

    The outcome is unknown if all of the request was sent, or if the status of a trigger says that
    it was carried out. Otherwise the request was not sent.

    :param error: what happened in place of the response
    :param progress: how much of the request was sent
    :param via: the proxy that was used, empty if there was none
    """
    instead = what_came(error, progress, redactor)
    status = _status_in(progress.head)
    if progress.whole:
        return OutcomeUnknownError(
            f"{request.title} was sent, but got {instead}.",
            code=code_of(OutcomeUnknownError, request),
            status=status,
            flow_id=request.flow_id,
        )

    is_trigger = request.operation is not Operation.UPLOAD
    is_success = status is not None and status < 300
    if is_trigger and is_success:
        return OutcomeUnknownError(
            f"{request.title} was aborted before all of it was sent, but got {instead}.",
            status=status,
            flow_id=request.flow_id,
        )

    what = "aborted before all of it was sent" if progress.begun else f"not sent{via}"
    why = f"it got {instead}" if progress.head else describe(error, redactor)
    return NotSentError(
        f"{request.title} was {what}: {why}.",
        consequence=nothing_done(request),
        next_step=hint_for(error, progress),
        status=status,
        flow_id=request.flow_id,
    )


def what_came(error: Exception, progress: SendProgress, redactor: Redactor) -> str:
    """Return what came in place of a response that can be read: no response, or a part of one."""
    why = describe(error, redactor)
    if not progress.head:
        return f"no response: {why}"

    status = _status_in(progress.head)
    if status is None:
        return f"a response that cannot be read: {why}"
    return f"a response with the status {status} that cannot be read: {why}"


def _status_in(head: bytes) -> int | None:
    """Return the status at the beginning of a response, None if there is none."""
    found = _STATUS_LINE.search(head)
    return int(found[1]) if found else None
