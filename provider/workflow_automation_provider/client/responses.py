"""Turn each response of the service into a result or an error: the only place that does, without any I/O."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from workflow_automation_provider.client.protocol import Operation, Request, Response, Run
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)

__all__ = ["read_trigger_response", "read_upload_response", "response_error", "retry_after"]

# The status says that nothing was done, and that the same request may be sent later.
_BUSY = frozenset({408, 425, 429})

# Found, and See Other: the URL of a login page, or of the result of a POST that was carried out.
_MAYBE_ACCEPTED = frozenset({302, 303})

# How much of the service's response an error quotes, in characters.
_QUOTE_LIMIT = 500

# A longer wait is a fault rather than advice (and a much longer one overflows a timedelta).
_LONGEST_RETRY_AFTER = timedelta(days=7).total_seconds()


def read_trigger_response(response: Response, request: Request, redact: Redactor) -> Run:
    """
    Read the response to a trigger request.

    :raises ResponseUnusableError: if a run was started, but the response does not identify it
    :raises WorkflowAutomationError: if the status is not 2xx, see :func:`response_error`
    """
    if not 200 <= response.status < 300:
        raise response_error(response, request, redact)
    unusable = _early if response.early else _unusable
    try:
        document = _read_json(response)
        run_id, run_link = _run_fields(
            document, redact, required=request.operation is Operation.TRIGGER_BY_PATH
        )
        kept = _kept(response, _plain_numbers(document), redact)
    except RecursionError:
        raise unusable(response, "it is nested too deeply", request, redact) from None
    except ValueError as error:
        raise unusable(response, redact.text(str(error)), request, redact) from None
    return Run(run_id, run_link, request.flow_id, kept)


def read_upload_response(response: Response, request: Request, redact: Redactor) -> str:
    """
    Read the response to an upload, whose body is of type string.

    The status says that the files were accepted, so any body is valid but a web page, such as that of a login: a JSON
    string is decoded, anything else is returned as text. A body that was cut off, or reveals a secret, is not returned.

    Follows section 4.3 of the interface.

    :raises OutcomeUnknownError: if the body is a web page
    :raises WorkflowAutomationError: if the status is not 2xx, see :func:`response_error`
    """
    if not 200 <= response.status < 300:
        raise response_error(response, request, redact)
    if response.early:
        raise _early(response, "not all files had been sent", request, redact)
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "text/html" and (response.body.strip() or response.incomplete):
        raise _web_page(response, request, redact)
    if response.incomplete:
        return f"(not shown: {response.incomplete})"
    text = response.body.decode(errors="replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    returned: str = _kept(response, document if isinstance(document, str) else text.strip(), redact)
    return returned


def _early(response: Response, why: str, request: Request, redact: Redactor) -> NotSentError:
    # From a proxy or a login page, for example: the service itself has no complete request to act on.
    return NotSentError(
        f"{request.title} returned {_status(response.status)} before all of it was sent, and was then "
        f"aborted: {why}.{_quote(response, redact)}",
        consequence=request.operation.consequence(Accepted.NO),
        next_step="Check the connection's base URL, and any proxy in front of the service.",
        status=response.status,
    )


def _web_page(response: Response, request: Request, redact: Redactor) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{request.title} returned {_status(response.status)} with a web page.{_quote(response, redact)}",
        consequence=request.operation.consequence(Accepted.MAYBE),
        next_step="\n".join(
            (
                "It may be a login page: check the connection's base URL, and any proxy in front of the service.",
                request.operation.look,
            )
        ),
        status=response.status,
    )


def _unusable(response: Response, why: str, request: Request, redact: Redactor) -> ResponseUnusableError:
    return ResponseUnusableError(
        f"{request.title} returned {_status(response.status)}, but the response cannot be used: {why}."
        f"{_quote(response, redact)}",
        consequence=request.operation.consequence(Accepted.YES),
        next_step="Find it in the workflow's list of runs. Sending the request again would start another run.",
        status=response.status,
    )


def response_error(response: Response, request: Request, redact: Redactor) -> WorkflowAutomationError:
    """
    Return the error for a response outside 2xx: busy, rejected, or of unknown outcome.

    503 is busy only where it says when to come back: a gateway answers it for a service that it lost after it had
    forwarded the request.
    """
    status, operation = response.status, request.operation
    quote = _quote(response, redact)
    wait = retry_after(response.headers.get("retry-after"))
    nothing = operation.consequence(Accepted.NO)
    if status in _BUSY or (status == 503 and wait is not None):
        asked = "" if wait is None else f", with a Retry-After of {wait:.0f} s"
        return BusyError(
            f"{request.title} was rejected as busy: {_status(status)}{asked}.{quote}",
            consequence=nothing,
            status=status,
            retry_after=wait,
        )
    hint = _hint(response, operation, redact)
    if 300 <= status < 500 and status not in _MAYBE_ACCEPTED:
        return RejectedError(
            f"{request.title} was rejected: {_status(status)}.{quote}",
            consequence=nothing,
            next_step=hint,
            status=status,
            retry_after=wait,
        )
    if response.early:
        return NotSentError(
            f"{request.title} returned {_status(status)} before all of it was sent.{quote}",
            consequence=nothing,
            next_step=hint,
            status=status,
            retry_after=wait,
        )
    return OutcomeUnknownError(
        f"{request.title} returned {_status(status)}.{quote}",
        consequence=operation.consequence(Accepted.MAYBE),
        next_step="\n".join(filter(None, (hint, request.operation.look))),
        status=status,
        retry_after=wait,
    )


def retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """
    Read a ``Retry-After`` header, in seconds or as an HTTP date.

    :param value: the header as received, None if there was none
    :param now: the time to compare a date with, by default the current time
    :return: seconds to wait, from 0 to a week; None if there is no header, or it is invalid
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return min(float(value), _LONGEST_RETRY_AFTER)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max((when - (now or datetime.now(UTC))).total_seconds(), 0.0), _LONGEST_RETRY_AFTER)


class _Constant(str):
    """NaN or an infinity: not valid JSON, but not a reason to lose a run whose id is in the same response."""

    __slots__ = ()


class _Number(str):
    """A JSON number as it was written: a run id may have more digits than a float represents exactly."""

    __slots__ = ()


def _read_json(response: Response) -> Any:
    if response.incomplete:
        raise ValueError(response.incomplete)
    if not response.body.strip():
        raise ValueError("it is empty")
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ValueError(f"it is compressed ({coding!a}) although no compression was requested")
    try:
        return json.loads(response.body, parse_int=_Number, parse_float=_Number, parse_constant=_Constant)
    except ValueError:
        raise ValueError("it is not JSON") from None


def _run_fields(document: Any, redact: Redactor, *, required: bool) -> tuple[str | None, str | None]:
    """Return run_id and run_link, each None if it is missing or contains the API key; neither is altered."""
    fields = document if isinstance(document, dict) else {}
    run_id, run_link = fields.get("run_id"), fields.get("run_link")
    why = ""
    if run_id is None:
        why = "it has no run_id"
    elif not isinstance(run_id, str) or isinstance(run_id, _Constant) or not run_id.strip():
        why = "its run_id is neither text nor a number"
    elif redact.reveals(run_id, key_only=True):
        why = "its run_id contained the API key"
    elif _storable(run_id) != run_id:
        why = "its run_id contains characters that a database cannot store (NUL, lone surrogates)"
    if required and why:
        raise ValueError(why)
    if type(run_link) is not str or redact.reveals(run_link, key_only=True):
        run_link = None
    return None if why else str(run_id), _storable(run_link) or None


def _kept(response: Response, document: Any, redact: Redactor) -> Any:
    """Return a document as it is kept: without text that a database rejects, or a note if it reveals a secret."""
    return WITHHELD if _reveals(response, document, redact) else _storable(document)


def _reveals(response: Response, document: Any, redact: Redactor) -> bool:
    """Return whether a response reveals a secret, which may be spread over several names or values."""
    names, values = _names_and_values(document)
    return redact.reveals(
        "\n".join((response.body.decode(errors="replace"), "".join(names), "".join(values)))
    )


def _names_and_values(document: Any) -> tuple[list[str], list[str]]:
    """Return all names and values of a JSON document as text, however deeply it is nested."""
    names: list[str] = []
    values: list[str] = []
    waiting = [document]
    while waiting:
        match waiting.pop():
            case dict() as item:
                names.extend(item)
                waiting.extend(reversed(item.values()))
            case list() as item:
                waiting.extend(reversed(item))
            case item:
                values.append(str(item))
    return names, values


def _storable(document: Any) -> Any:
    """Return a JSON value without the text that a database rejects (NUL, lone surrogates)."""
    match document:
        case str():
            return document.replace("\0", "\ufffd").encode(errors="replace").decode()
        case dict():
            return {_storable(name): _storable(item) for name, item in document.items()}
        case list():
            return [_storable(item) for item in document]
    return document


def _plain_numbers(document: Any) -> Any:
    match document:
        case _Number():
            try:
                return int(document)
            except ValueError:  # not a whole number, or more digits than int() accepts
                number = float(document)
                return str(document) if math.isinf(number) else number
        case dict():
            return {key: _plain_numbers(item) for key, item in document.items()}
        case list():
            return [_plain_numbers(item) for item in document]
    return document


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _quote(response: Response, redact: Redactor) -> str:
    """Return the body of the response as a separate line of an error message."""
    text = response.body.decode(errors="replace")
    if text.strip() and response.incomplete:
        # The redactor would not find a part of a secret.
        return "\nThe response is not shown, because it is incomplete."
    document = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text, parse_int=str, parse_float=str)
    if _reveals(response, document, redact):
        return "\nThe response is withheld: it contains the API key or another secret."
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not text:
        return ""
    return f'\nThe service said: "{text[:_QUOTE_LIMIT]}{"…" if len(text) > _QUOTE_LIMIT else ""}"'


def _hint(response: Response, operation: Operation, redact: Redactor) -> str:
    match response.status:
        case 400 | 422 if operation is not Operation.UPLOAD:
            return "Compare the inputs with those that the workflow defines."
        case 401 | 402 | 403 | 404 if operation is Operation.UPLOAD:
            return "Check that the run belongs to the flow, and that the API key belongs to this flow and has not expired."
        case 401 | 402 | 403 if operation.takes_key:
            return "Check the API key: it must be this workflow's, not expired, and have runs left."
        case 401 | 402 | 403:
            return "A trigger with a flow_id does not send the API key: to send it, leave flow_id out."
        case 400 | 422:
            return "Check that file_format is what the service expects."
        case 404 | 405 if operation is Operation.TRIGGER_BY_PATH:
            return "Check the connection's base URL and the flow_id."
        case 404 | 405:
            return "Check the connection's base URL."
        case 407:
            return "Check the connection's proxy."
        case 413 if operation is Operation.UPLOAD:
            return "Send fewer or smaller files in one request: see files_per_request and max_request_bytes."
        case 413:
            return "Shorten the inputs: for example, pass the URL of a file instead of its content."
        case 503 if not response.early:
            return "A 503 without Retry-After may come from a gateway that had already forwarded the request."
        case status if 300 <= status < 400:
            location = redact.text(response.headers.get("location", "another URL"))[:_QUOTE_LIMIT]
            if status in _MAYBE_ACCEPTED:
                return (
                    f"It redirects to {location!a}: the result, a login page, or the service's new URL. If it is "
                    "the new URL, set it as the connection's base URL. Redirects are never followed."
                )
            return (
                f"It redirects to {location!a}. Redirects are never followed, because the API key would be sent "
                "there too: set the correct URL as the connection's base URL."
            )
    return ""
