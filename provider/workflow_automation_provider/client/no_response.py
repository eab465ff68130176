"""What it means that a request has no response, or none of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpcore

from workflow_automation_provider.client.protocol import Operation, Request
from workflow_automation_provider.client.responses import nothing_done
from workflow_automation_provider.client.transport import SendProgress, StoppedError
from workflow_automation_provider.exceptions import (
    Code,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor


def no_response(
    request: Request, error: Exception, progress: SendProgress, redact: Redactor, via: str = ""
) -> WorkflowAutomationError:
    """
    Return the exception of a request without a response: not sent, or of unknown outcome.

    :param error: what happened in place of the response
    :param progress: how much of the request was sent
    :param via: the proxy that was used
    """
    why = described(progress.write_error or error, progress, redact)
    if progress.whole and not isinstance(error, StoppedError):
        return unknown(request, f"no response: {why}")
    what = "aborted before all of it was sent" if progress.begun else f"not sent{via}"
    return NotSentError(
        f"{request.title} was {what}: {why}.",
        consequence=nothing_done(request),
        next_step=hint(error, progress, via),
        flow_id=request.flow_id,
    )


def unknown(request: Request, instead: str) -> OutcomeUnknownError:
    """
    Return the exception of a request that was sent.

    :param instead: what came in place of the response
    """
    code = Code.UPLOAD_UNKNOWN if request.operation is Operation.UPLOAD else None
    return OutcomeUnknownError(
        f"{request.title} was sent, but got {instead}.", code=code, flow_id=request.flow_id
    )


def hint(error: Exception, progress: SendProgress, via: str) -> str:
    """Return what to do about a request that was not sent."""
    text = str(error)
    if isinstance(error, StoppedError):
        return ""
    if progress.write_error:
        return "The request may be too large for the service."
    if progress.begun:
        return ""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "Check the connection's CA bundle, and that the base URL has the host name that the certificate is for."
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return "Check the connection's base URL: it must begin with http:// if the service does not use TLS."
    return f"Check {'the proxy and ' if via else ''}the connection's base URL."


def described(error: Exception, progress: SendProgress, redact: Redactor) -> str:
    """Return what happened, without secrets."""
    match error:
        case StoppedError():
            return "the task was ended"
        case httpcore.ConnectTimeout():
            return f"no connection within {progress.seconds:g} s (the timeout)"
        case httpcore.ReadTimeout():
            return f"no response within {progress.seconds:g} s (the timeout)"
        case httpcore.WriteTimeout():
            return f"no more data could be sent for {progress.seconds:g} s (the timeout)"
    # h11 quotes an invalid header in its errors, and the service may have put the key into one.
    text = redact.text(str(error)).strip().rstrip(".")
    if type(error).__module__.startswith("httpcore"):
        return text or "the connection failed"
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind
