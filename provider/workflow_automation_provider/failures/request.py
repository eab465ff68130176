"""The words of failed requests, and of checks of the connection."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from workflow_automation_provider.client.outcome import (
    Busy,
    Check,
    Confirmed,
    Failure,
    NotSent,
    Outcome,
    Proxy,
    Reason,
    Rejected,
    Started,
    Unidentified,
    Unknown,
    Unquoted,
)
from workflow_automation_provider.client.protocol import Operation, Run
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    Code,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)

__all__ = [
    "check_text",
    "code_of",
    "consequence_of",
    "error_class",
    "reason_of",
    "request_error",
    "response_of",
    "run_of",
    "shortened",
    "where_to_look",
]

# How much of a reason is kept, in characters.
_MAX_REASON = 500

_OF_TRIGGER = {
    Accepted.NO: "No run was started.",
    Accepted.MAYBE: "A run may have been started.",
    Accepted.YES: "A run was started, but its run_id is unknown.",
}
_OF_UPLOAD = {
    Accepted.NO: "No files were accepted.",
    Accepted.MAYBE: "The files may have been accepted.",
    Accepted.YES: "The files were accepted.",
}

_UNQUOTED = {
    Unquoted.INCOMPLETE: "The response is not shown, because it is incomplete.",
    Unquoted.NOT_TEXT: "The response is not shown, because it is neither JSON nor plain text.",
    Unquoted.SECRET: "The response is withheld: it contains the API key or another secret.",
}


_VIA = {
    None: "",
    Proxy.CONNECTION: " via the connection's proxy",
    Proxy.ENVIRONMENT: " via the proxy from the environment (HTTPS_PROXY and the like)",
}


def consequence_of(operation: Operation, accepted: Accepted) -> str:
    """Say what the service did with a request."""
    return (_OF_UPLOAD if operation is Operation.UPLOAD else _OF_TRIGGER)[accepted]


def where_to_look(operation: Operation) -> str:
    """Say where to look if the outcome of a request is unknown."""
    where = "the run's files" if operation is Operation.UPLOAD else "the workflow's list of runs"
    return f"Look in {where}."


def run_of(outcome: Outcome) -> Run:
    """
    Return the run that a trigger has started.

    :raises WorkflowAutomationError: if there is none
    """
    if isinstance(outcome, Started):
        return outcome.run
    raise _error(outcome)


def response_of(outcome: Outcome) -> str:
    """
    Return the service's response to an upload.

    :raises WorkflowAutomationError: if there is none
    """
    if isinstance(outcome, Confirmed):
        return outcome.response
    raise _error(outcome)


def _error(outcome: Outcome) -> Exception:
    return request_error(outcome) if isinstance(outcome, Failure) else TypeError(f"not expected: {outcome}")


def request_error(failure: Failure) -> WorkflowAutomationError:
    """Return the error of a request that did not succeed, as the hook raises it."""
    operation = failure.request.operation
    kind, message, _ = _KINDS[type(failure)]
    lines = [message(failure), _quote(failure)]
    if tries := failure.attempts:
        is_longer = (failure.retry_after or 0) > tries.limit - tries.seconds
        lines.append(
            f"Tried {tries.number} times in {tries.seconds:.0f} s ({tries.limited_by}: {tries.limit:g} s)."
            f"{' The service asks for a longer wait.' if is_longer else ''}"
        )
    where = "" if failure.accepted is Accepted.NO else where_to_look(operation)
    return kind(
        "\n".join(filter(None, lines)),
        code=code_of(failure),
        consequence=consequence_of(operation, failure.accepted),
        next_step="\n".join(filter(None, (_hint(failure), where))),
        status=failure.status,
        retry_after=failure.retry_after,
    )


def error_class(failure: Failure) -> type[WorkflowAutomationError]:
    """Return the class of the error of a request that did not succeed."""
    return _KINDS[type(failure)][0]


def reason_of(failure: Failure) -> str:
    """Return what happened in one line, for an item of a batch."""
    return shortened(f"{_KINDS[type(failure)][1](failure)} {_quote(failure)}")


def shortened(text: str) -> str:
    """Return a reason in one line, and no more of it than is kept."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 1]}…"


def _quote(failure: Failure) -> str:
    if isinstance(failure.quote, Unquoted):
        return _UNQUOTED[failure.quote]
    return f'The service said: "{failure.quote}"' if failure.quote else ""


def code_of(failure: Failure) -> Code:
    """Return the code of a request that did not succeed."""
    if isinstance(failure, Unknown) and failure.request.operation is Operation.UPLOAD:
        return Code.UPLOAD_UNKNOWN
    *_, code = _KINDS[type(failure)]
    if not isinstance(failure, Rejected) or failure.status is None:
        return code
    return Code.REDIRECTED if failure.status < 400 else _REJECTIONS.get(failure.status, code)


def _hint(failure: Failure) -> str:
    operation = failure.request.operation
    is_upload = operation is Operation.UPLOAD
    match failure.status:
        case _ if isinstance(failure, Busy):
            return ""
        case None:
            return "" if isinstance(failure, Unknown) else _connection_hint(failure.reason, failure.via)
        case 400 | 422 if is_upload:
            return "Check that file_format is what the service expects."
        case 400 | 422:
            return "Compare the inputs with those that the workflow defines."
        case 401 | 402 | 403 | 404 if is_upload:
            return "Check that the run belongs to the flow, and that the API key belongs to this flow and has not expired."
        case 401 | 402 | 403 if operation.takes_key:
            return "Check the API key: it must be this workflow's, not expired, and have runs left."
        case 401 | 402 | 403:
            return "A trigger with a flow_id does not send the API key: to send it, leave flow_id out."
        case 404 | 405:
            also = " and the flow_id" if operation is Operation.TRIGGER_BY_PATH else ""
            return f"Check the connection's base URL{also}."
        case 407:
            return "Check the connection's proxy."
        case 413 if is_upload:
            return "Send fewer or smaller files in one request: see files_per_request and max_request_bytes."
        case 413:
            return "Shorten the inputs: for example, pass the URL of a file instead of its content."
        case 408 | 503 as status if isinstance(failure, Unknown):
            return (
                "A gateway may have returned this after it had forwarded the request. If the service, and every gateway in front of it, returns "
                f"{status} only before it does anything, add {status} to the connection's busy_statuses."
            )
        case status if 300 <= status < 400:
            return _redirect_hint(status, failure.location or "another URL")
        case status if 200 <= status < 300 and isinstance(failure, Unidentified):
            return "Sending the request again would start another run."
        case status if 200 <= status < 300:
            page = "It may be a login page: check" if isinstance(failure, Unknown) else "Check"
            return f"{page} the connection's base URL, and any proxy in front of the service."
    return ""


def _redirect_hint(status: int, location: str) -> str:
    if status in (302, 303):
        return (
            f"It redirects to {location!a}: the result, a login page, or the service's new URL. If it is the new URL, "
            "set it as the connection's base URL. Redirects are never followed."
        )
    return (
        f"It redirects to {location!a}. Redirects are never followed, because the API key would be sent there too: set "
        "the correct URL as the connection's base URL."
    )


def _connection_hint(reason: Reason | None, via: Proxy | None) -> str:
    match reason:
        case Reason.CERTIFICATE:
            return "Check the connection's CA bundle, and that the base URL has the host name that the certificate is for."
        case Reason.NO_TLS:
            return (
                "Check the connection's base URL: it must begin with http:// if the service does not use TLS."
            )
        case Reason.UNREACHABLE:
            return f"Check {'the proxy and ' if via else ''}the connection's base URL."
        case Reason.WRITE:
            return "The request may be too large for the service."
    return ""


def _status(failure: Failure) -> str:
    try:
        return f"{failure.status} {HTTPStatus(failure.status or 0).phrase}"
    except ValueError:
        return str(failure.status)


def _rejected(failure: Failure) -> str:
    return f"{failure.request.title} was rejected: {_status(failure)}."


def _busy(failure: Failure) -> str:
    asked = "" if failure.retry_after is None else f", with a Retry-After of {failure.retry_after:.0f} s"
    return f"{failure.request.title} was rejected as busy: {_status(failure)}{asked}."


def _unidentified(failure: Failure) -> str:
    return f"{failure.request.title} returned {_status(failure)}, but the response cannot be used: {failure.detail}."


def _not_sent(failure: Failure) -> str:
    why = f": {failure.detail}" if failure.detail else ""
    if failure.status is not None:
        return f"{failure.request.title} returned {_status(failure)} before all of it was sent, and was then aborted{why}."
    if failure.reason is Reason.STOPPED:
        why = ": the task was ended"
    what = "aborted before all of it was sent" if failure.begun else f"not sent{_VIA[failure.via]}"
    return f"{failure.request.title} was {what}{why}."


def _unknown(failure: Failure) -> str:
    if failure.reason is Reason.REPEATED:
        return f"{failure.request.title} was sent, but got the response to an earlier request: run {failure.detail} was known."
    if failure.status is None:
        return f"{failure.request.title} was sent, but got no response: {failure.detail}."
    return f"{failure.request.title} returned {_status(failure)}{f' {failure.detail}' if failure.detail else ''}."


_KINDS: dict[type[Failure], tuple[type[WorkflowAutomationError], Callable[[Failure], str], Code]] = {
    Unidentified: (ResponseUnusableError, _unidentified, Code.RUN_UNIDENTIFIED),
    Rejected: (RejectedError, _rejected, Code.REJECTED),
    Busy: (BusyError, _busy, Code.BUSY),
    NotSent: (NotSentError, _not_sent, Code.NOT_SENT),
    Unknown: (OutcomeUnknownError, _unknown, Code.START_UNKNOWN),
}

_REJECTIONS = {
    401: Code.KEY_REJECTED,
    402: Code.KEY_REJECTED,
    403: Code.KEY_REJECTED,
    404: Code.NOT_FOUND,
    405: Code.NOT_FOUND,
    413: Code.TOO_LARGE,
}


def check_text(check: Check) -> str:
    """Say what a check of the connection came to."""
    title = f"HEAD {check.url}"
    if check.status is None and check.reason is Reason.STOPPED:
        return f"{title} was not sent: the task was ended."
    if check.status is None:
        hint = _connection_hint(check.reason, check.via) or _connection_hint(Reason.UNREACHABLE, check.via)
        return f"{title} got no response{_VIA[check.via]}: {check.detail}.\n{hint}".strip()
    if 300 <= check.status < 400:
        location = check.location or "another URL"
        return f"{title} redirects to {location!a}, which may be the right base URL: redirects are never followed"
    return f"{title} returned {check.status}{': the service is not working.' * (check.status >= 500)}"
