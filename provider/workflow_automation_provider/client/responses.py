"""
What the response to a request means, and what it means that there is none, without any I/O.

Of :data:`ROWS`, the first that fits decides. A trigger returns the run that it started, an upload the service's response;
all else is an exception.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple, cast

import httpcore
import httpx

from workflow_automation_provider.client.checks import MAX_TIMEOUT
from workflow_automation_provider.client.json_values import storable
from workflow_automation_provider.client.network import is_refusal_of_client, rejects_form
from workflow_automation_provider.client.protocol import Operation, Request, Response, Run
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.client.transport import SendProgress, StoppedError
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    Code,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

# How much of the service's response an error quotes, in characters.
_QUOTE_LIMIT = 500

_WEB_PAGES = ("text/html", "application/xhtml+xml")

# How a web page begins, after a byte order mark, a declaration and comments, as browsers recognize one. Atomic groups,
# because each comment could otherwise end in many places.
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?(?>\s++|<\?xml[^>]*+>|(?><!--.*?-->))*+"
    rb"<(?:!doctype\s+html|html|head|title|meta|script|style|body|div|form|h1|p|table|a|br?)[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_SNIFFED = 1024

_MARKUP = re.compile(r"<[a-z/!?]", re.IGNORECASE)

Fact = Literal["run", "early", "page", "Retry-After", "declared"]
"""
What a row may ask for: the response says which run was started; it came before all of the request was sent; it is a web
page; it has a valid ``Retry-After``; its status is one of the connection's ``busy_statuses``.
"""


class Row(NamedTuple):
    """
    What a response means.

    :param statuses: ``4xx`` for all from 400 to 499, ``any`` for all
    :param operations: ``path`` and ``key`` for triggers, ``upload``; empty for all
    :param facts: what else must be true
    :param outcome: the exception, None for success
    :param code: by default that of the exception, for an upload of unknown outcome its own
    :param hint: what to do about it, in addition to what the code means
    """

    statuses: str
    operations: str
    facts: tuple[Fact, ...]
    outcome: type[WorkflowAutomationError] | None
    code: Code | None = None
    hint: str = ""


_TRIGGER = "path key"
_NOT_THE_SERVICE = "the connection's base URL, and any proxy in front of the service."
_MOVED = (
    "It redirects to {location}: the result, a login page, or the service's new URL. If it is the new URL, set it as the "
    "connection's base URL: redirects are never followed."
)
_OF_UPLOAD = "Check that the run belongs to the flow, and that the API key belongs to this flow and has not expired."
# Gateways return 408 and 503 also for a request that they had forwarded. So these count only where not all of the
# request was sent, and for an upload, which may be sent twice. 302 and 303 may follow a POST that was carried out.
_GATEWAY = (
    "A gateway may have returned this after it had forwarded the request. If the service, and every gateway in front of it, "
    "returns {status} only before it does anything, add {status} to the connection's busy_statuses."
)

# fmt: off
ROWS: tuple[Row, ...] = (
    Row("2xx", _TRIGGER, ("run",), None),
    Row("2xx", "", ("early",), NotSentError, hint=f"Check {_NOT_THE_SERVICE}"),
    Row("2xx", _TRIGGER, (), UnidentifiedError, hint="Sending the request again would start another run."),
    Row("2xx", "upload", ("page",), OutcomeUnknownError, hint=f"It may be a login page: check {_NOT_THE_SERVICE}"),
    Row("2xx", "upload", (), None),
    Row("any", "", ("declared",), BusyError),
    Row("425 429", "", (), BusyError),
    Row("408", "upload", (), BusyError),
    Row("408", "", ("early",), BusyError),
    Row("503", "upload", ("Retry-After",), BusyError),
    Row("503", "", ("early", "Retry-After"), BusyError),
    Row("302 303", "", ("early",), NotSentError, hint=_MOVED),
    Row("302 303", "", (), OutcomeUnknownError, hint=_MOVED),
    Row("3xx", "", (), RejectedError, Code.REDIRECTED, _MOVED),
    Row("400 422", _TRIGGER, (), RejectedError, hint="Compare the inputs with those that the workflow defines."),
    Row("400 422", "upload", (), RejectedError, hint="Check that file_format is what the service expects."),
    Row("401 402 403", "path", (), RejectedError, Code.KEY_REJECTED, "A trigger with a flow_id does not send the API key: to send it, leave flow_id out."),
    Row("401 402 403", "key", (), RejectedError, Code.KEY_REJECTED, "Check the API key: it must be this workflow's, not expired, and have runs left."),
    Row("401 402 403", "upload", (), RejectedError, Code.KEY_REJECTED, _OF_UPLOAD),
    Row("404", "upload", (), RejectedError, Code.NOT_FOUND, _OF_UPLOAD),
    Row("404 405", "path", (), RejectedError, Code.NOT_FOUND, "Check the connection's base URL and the flow_id."),
    Row("404 405", "", (), RejectedError, Code.NOT_FOUND, "Check the connection's base URL."),
    Row("407", "", (), RejectedError, hint="Check the connection's proxy."),
    Row("413", _TRIGGER, (), RejectedError, Code.TOO_LARGE, "Shorten the inputs: for example, pass the URL of a file instead of its content."),
    Row("413", "upload", (), RejectedError, Code.TOO_LARGE, "Send fewer or smaller files in one request: see files_per_request and max_request_bytes of UploadFilesOperator."),
    Row("408", _TRIGGER, (), OutcomeUnknownError, hint=_GATEWAY),
    Row("4xx", "", (), RejectedError),
    Row("any", "", ("early",), NotSentError),
    Row("503", "", (), OutcomeUnknownError, hint=_GATEWAY),
    Row("any", "", (), OutcomeUnknownError),
)
# fmt: on
"""What each response means: the first row that fits. docs/if-it-fails.md has the statuses of each code."""

_MESSAGES: dict[type[WorkflowAutomationError], str] = {
    UnidentifiedError: "{title} returned {status}, but the response cannot be used: {why}.",
    RejectedError: "{title} was rejected: {status}.",
    BusyError: "{title} was rejected as busy: {status}{asked}.",
    NotSentError: "{title} returned {status} before all of it was sent, and was then aborted.",
    OutcomeUnknownError: "{title} returned {status}.",
}


def read(
    response: Response, request: Request, redact: Redactor, busy_statuses: Collection[int] = ()
) -> Run | str:
    """
    Return what the response to a request says.

    Follows section 4 of the interface. The status of an upload says that the files were accepted, so any body is valid but
    a web page, such as that of a login, whatever it is declared as.

    :param busy_statuses: with which the service rejects a request before it has done anything
    :return: the run that a trigger started, or the response to an upload
    :raises WorkflowAutomationError: what the first of :data:`ROWS` that fits says
    """
    result = _found(response, request, redact)
    row = row_of(response, request, result, busy_statuses)
    if row.outcome is not None:
        raise _error(row.outcome, row, response, request, redact, str(result))
    return cast("Run | str", result)


def row_of(
    response: Response, request: Request, result: object = None, busy_statuses: Collection[int] = ()
) -> Row:
    """
    Return the row of a response.

    :param result: the run, if the response says which one was started
    """
    is_given: dict[Fact, bool] = {
        "run": isinstance(result, Run),
        "early": response.early,
        "page": _is_web_page(response),
        "Retry-After": retry_after(response.headers.get("retry-after")) is not None,
        "declared": response.status in busy_statuses,
    }
    names = {str(response.status), f"{response.status // 100}xx", "any"}
    operation = request.operation.value
    return next(
        row
        for row in ROWS
        if names & {*row.statuses.split()}
        and operation in (row.operations or operation)
        and all(is_given[fact] for fact in row.facts)
    )


def _error(
    kind: type[WorkflowAutomationError],
    row: Row,
    response: Response,
    request: Request,
    redact: Redactor,
    why: str,
) -> WorkflowAutomationError:
    wait = retry_after(response.headers.get("retry-after"))
    message = _MESSAGES[kind].format(
        title=request.title,
        status=f"{response.status} {httpx.codes.get_reason_phrase(response.status)}".rstrip(),
        asked="" if wait is None else f", with a Retry-After of {wait:.0f} s",
        why=why,
    )
    location = redact.text(response.headers.get("location", ""))[:_QUOTE_LIMIT] or "another URL"
    return kind(
        message,
        consequence=nothing_done(request) if kind.accepted is Accepted.NO else "",
        next_step=row.hint.format(status=response.status, location=ascii(location)),
        code=row.code or _code_of(kind, request),
        status=response.status,
        quote=_quote(response, redact),
        retry_after=wait,
        flow_id=request.flow_id,
    )


def _code_of(kind: type[WorkflowAutomationError], request: Request) -> Code | None:
    is_unknown_upload = kind is OutcomeUnknownError and request.operation is Operation.UPLOAD
    return Code.UPLOAD_UNKNOWN if is_unknown_upload else None


def nothing_done(request: Request) -> str:
    """Return the consequence of an upload that was not accepted, in place of the code's; empty for a trigger."""
    return "No files were accepted." if request.operation is Operation.UPLOAD else ""


def retry_after(value: str | None) -> float | None:
    """
    Read a ``Retry-After`` header, in seconds or as an HTTP date.

    :param value: the header as received, None if there was none
    :return: seconds to wait, from 0 to a week, since a longer wait is a fault rather than advice; None if there is no
        header, or it is invalid
    """
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), MAX_TIMEOUT)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max((when - datetime.now(UTC)).total_seconds(), 0.0), MAX_TIMEOUT)


# What the body says --------------------------------------------------------------------------------------


def _found(response: Response, request: Request, redact: Redactor) -> Run | str | ValueError:
    """Return the run, the response to an upload, or why the response does not say which run was started."""
    if request.operation is Operation.UPLOAD:
        return redact.text(storable(_words(response, redact)))
    try:
        document = _read_json(response, redact)
        is_required = request.operation is Operation.TRIGGER_BY_PATH
        run_id, run_link = _run_fields(document, redact, required=is_required)
        text = response.body.decode(errors="replace")
        # Also what it decodes to, for that is shown.
        is_secret = redact.reveals(text) or redact.reveals(json.dumps(document))
    except (ValueError, RecursionError) as error:
        return ValueError(redact.text(str(error)))
    try:
        kept = WITHHELD if is_secret else storable(document)
    except ValueError:
        kept = storable(text.strip())
    return Run(run_id, run_link, request.flow_id, kept)


def _is_web_page(response: Response) -> bool:
    """Return whether a response is a web page, such as a login page, whatever its media type says."""
    if _media_type(response) in _WEB_PAGES:
        return bool(response.body.strip() or response.error)
    return _HTML.match(response.body[:_SNIFFED]) is not None


def _media_type(response: Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _cut_off(response: Response, error: Exception, redact: Redactor) -> str:
    return f"it was cut off after {len(response.body)} bytes: {described(error, redact)}"


def _read_json(response: Response, redact: Redactor) -> Any:
    if response.error:
        raise ValueError(_cut_off(response, response.error, redact))
    if not response.body.strip():
        raise ValueError("it is empty")
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ValueError(f"it is compressed ({coding!a}) although no compression was requested")
    try:
        return json.loads(response.body)
    except ValueError:
        raise ValueError("it is not JSON") from None


def _run_fields(
    document: Any, redact: Redactor, *, required: bool
) -> tuple[str | None, str | None]:
    """Return run_id, None if it is missing or contains the API key, and run_link, None if it reveals a secret."""
    fields = document if isinstance(document, dict) else {}
    run_id, run_link = fields.get("run_id"), fields.get("run_link")
    text = str(run_id)
    if run_id is None:
        why = "it has no run_id"
    elif type(run_id) not in (str, int) or not text.strip() or storable(text) != text:
        why = "its run_id is neither text that a database can store nor a whole number"
    else:
        why = "its run_id contained the API key" if redact.reveals(text, key_only=True) else ""
    if required and why:
        raise ValueError(why)
    link = run_link if type(run_link) is str and not redact.reveals(run_link) else ""
    return None if why else text, storable(link) or None


def _words(response: Response, redact: Redactor) -> str:
    """
    Return the service's own words, of a JSON string what it says; or in parentheses why they are not shown.

    They are shown of JSON and plain text: in other formats, such as HTML, a secret could be in a form that is not searched for.
    """
    if not response.body.strip():
        return ""
    if response.error:  # the redactor would not find a part of a secret
        return f"(not shown: {_cut_off(response, response.error, redact)})"
    text, kind = response.body.decode(errors="replace"), _media_type(response)
    is_shown = "\ufffd" not in text and (kind in ("", "text/plain") or kind.endswith("json"))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
        is_shown = is_shown and not _MARKUP.search(text)
    if not is_shown:
        return "(not shown: it is neither JSON nor plain text)"
    return redact.text(document if isinstance(document, str) else text.strip())


def _quote(response: Response, redact: Redactor) -> str:
    """Return the service's own words in one line, shortened."""
    words = "".join(c if c.isprintable() else " " for c in _words(response, redact))
    line = " ".join(words.split())
    return line if len(line) <= _QUOTE_LIMIT else f"{line[:_QUOTE_LIMIT]}…"


# No response ----------------------------------------------------------------------------------------------


def no_response(
    request: Request, error: Exception, progress: SendProgress, redact: Redactor, via: str
) -> WorkflowAutomationError:
    """
    Return the exception of a request without a response: not sent, or of unknown outcome.

    :param error: what happened in place of the response
    :param progress: how much of the request was sent
    :param via: the proxy that was used
    """
    why = described(error, redact)
    if progress.whole:
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
    code = _code_of(OutcomeUnknownError, request)
    return OutcomeUnknownError(
        f"{request.title} was sent, but got {instead}.", code=code, flow_id=request.flow_id
    )


def hint(error: Exception, progress: SendProgress, via: str) -> str:
    """Return what to do about a request that was not sent."""
    text = str(error)
    if progress.begun or isinstance(error, StoppedError):
        is_cut_off = _is_of_network(error) and not progress.whole
        return "The request may be too large for the service." if is_cut_off else ""
    if is_refusal_of_client(error):
        return (
            "Check the connection's client_cert: the service requires a certificate, and got "
            "none, or one that it rejects."
        )
    if rejects_form(error):
        return (
            "From Python 3.13, a certificate must have the form that RFC 5280 requires. Set the "
            "connection's ca_bundle to the authority's file: the form is then not checked, all "
            "else is. Or have the certificate issued again."
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "Check the connection's CA bundle, and that the base URL has the host name that the certificate is for."
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return "Check the connection's base URL: it must begin with http:// if the service does not use TLS."
    return f"Check that the service is up, {'the proxy, ' if via else ''}and the connection's base URL."


def described(error: Exception, redact: Redactor) -> str:
    """Return what happened, without secrets."""
    match error:
        case StoppedError():
            return "the task was ended"
        case httpcore.TimeoutException():
            return "it took longer than the connection's timeout"
    # h11 quotes an invalid header in its errors, and the service may have put the key into one.
    text = redact.text(str(error)).strip().removesuffix(".")
    if _is_of_network(error):
        return text or "the connection failed"
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _is_of_network(error: Exception) -> bool:
    return type(error).__module__.startswith("httpcore")
