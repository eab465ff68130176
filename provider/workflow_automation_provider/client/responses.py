"""Turn each response of the service into an :mod:`~.outcome`, without any I/O."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from workflow_automation_provider.client.outcome import (
    Busy,
    Confirmed,
    Failure,
    NotSent,
    Outcome,
    Rejected,
    Started,
    Unidentified,
    Unknown,
    Unquoted,
)
from workflow_automation_provider.client.protocol import Operation, Request, Response, Run
from workflow_automation_provider.client.redaction import WITHHELD, Redactor, readable_text

# The status says that nothing was done, and that the same request may be sent later.
_BUSY = frozenset({425, 429})

# Found, and See Other: the URL of a login page, or of the result of a POST that was carried out. Request Timeout:
# gateways return it also if the service was too slow with its response.
_MAYBE_ACCEPTED = frozenset({302, 303, 408})

# How much of the service's response an outcome quotes, in characters.
_QUOTE_LIMIT = 500

# A longer wait is a fault rather than advice (and a much longer one overflows a timedelta).
_MAX_RETRY_AFTER = timedelta(days=7).total_seconds()


def read(
    response: Response, request: Request, redact: Redactor, busy_statuses: Collection[int] = ()
) -> Outcome:
    """
    Read the response to a request. After an unexpected error, its status and ``Retry-After`` count alone.

    :param busy_statuses: with which the service rejects a request before it has done anything
    """
    try:
        return _read(response, request, redact, busy_statuses)
    except Exception as error:
        headers = {name: value for name, value in response.headers.items() if name == "retry-after"}
        why = f"it could not be read ({type(error).__name__})"
        response = response._replace(headers=headers, body=b"", incomplete=why)
        return _read(response, request, redact, busy_statuses)


def _read(response: Response, request: Request, redact: Redactor, busy_statuses: Collection[int]) -> Outcome:
    if not 200 <= response.status < 300:
        return _failure(response, request, redact, busy_statuses)
    reader = read_upload_response if request.operation is Operation.UPLOAD else read_trigger_response
    return reader(response, request, redact)


def read_trigger_response(response: Response, request: Request, redact: Redactor) -> Outcome:
    """
    Read a 2xx response to a trigger request.

    Follows sections 4.1 and 4.2 of the interface.

    :return: started, or a failure
    """
    try:
        document = _read_json(response)
        run_id, run_link = _run_fields(
            document, redact, required=request.operation is Operation.TRIGGER_BY_PATH
        )
        kept = WITHHELD if _reveals(response, redact) else _storable(document)
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError as error:
        why = redact.text(str(error))
    else:
        return Started(request=request, run=Run(run_id, run_link, request.flow_id, kept))
    # One that came early is from a proxy or a login page, for example: the service itself has no complete request.
    kind = NotSent if response.early else Unidentified
    return kind(**_facts(response, request, redact), detail=why)


def read_upload_response(response: Response, request: Request, redact: Redactor) -> Outcome:
    """
    Read a 2xx response to an upload, whose body is of type string.

    The status says that the files were accepted, so any body is valid but a web page, such as that of a login: a JSON
    string is decoded, other JSON and plain text are returned as text. A body that was cut off, is neither, or reveals a
    secret, is not returned.

    Follows section 4.3 of the interface.

    :return: confirmed, or a failure: unknown if the body is a web page
    """
    if response.early:
        return NotSent(**_facts(response, request, redact), detail="not all files had been sent")
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "text/html" and (response.body.strip() or response.incomplete):
        return Unknown(**_facts(response, request, redact), detail="with a web page")
    return Confirmed(request=request, response=_returned(response, redact))


def _returned(response: Response, redact: Redactor) -> str:
    if response.incomplete:
        return f"(not shown: {response.incomplete})"
    text = _text(response)
    if text is None:
        return "(not shown: it is neither JSON nor plain text)"
    if _reveals(response, redact):
        return WITHHELD
    document = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
    kept: str = _storable(document if isinstance(document, str) else text.strip())
    return kept


def _failure(
    response: Response, request: Request, redact: Redactor, busy_statuses: Collection[int]
) -> Failure:
    status = response.status
    facts = _facts(response, request, redact)
    if status in _BUSY or status in busy_statuses or _says_busy(response, request, facts["retry_after"]):
        return Busy(**facts)
    if 300 <= status < 500 and status not in _MAYBE_ACCEPTED:
        return Rejected(**facts)
    return NotSent(**facts) if response.early else Unknown(**facts)


def _facts(response: Response, request: Request, redact: Redactor) -> dict[str, Any]:
    location = redact.text(response.headers.get("location", ""))[:_QUOTE_LIMIT]
    return {
        "request": request,
        "status": response.status,
        "quote": _quote(response, redact),
        "location": location if 300 <= response.status < 400 else "",
        "retry_after": retry_after(response.headers.get("retry-after")),
        "early": response.early,
    }


def _says_busy(response: Response, request: Request, wait: float | None) -> bool:
    """
    Return whether a 408, or a 503 with ``Retry-After``, is to be taken at its word.

    Gateways return both also for a request that they had forwarded. So they count only where not all of the request
    was sent, or where it may be sent twice.
    """
    is_harmless = response.early or request.may_repeat
    return is_harmless and (response.status == 408 or (response.status == 503 and wait is not None))


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
        return min(float(value), _MAX_RETRY_AFTER)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max((when - (now or datetime.now(UTC))).total_seconds(), 0.0), _MAX_RETRY_AFTER)


class _NotFinite(str):
    """NaN or an infinity as text: no database stores one, and it is not a run_id."""

    __slots__ = ()


def _float(text: str) -> float | str:
    number = float(text)
    return _NotFinite(text) if math.isinf(number) else number


def _read_json(response: Response) -> Any:
    if response.incomplete:
        raise ValueError(response.incomplete)
    if not response.body.strip():
        raise ValueError("it is empty")
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ValueError(f"it is compressed ({coding!a}) although no compression was requested")
    try:
        # NaN is no reason to lose a run whose id is in the same response.
        return json.loads(response.body, parse_float=_float, parse_constant=_NotFinite)
    except ValueError:
        raise ValueError("it is not JSON") from None


def _run_fields(document: Any, redact: Redactor, *, required: bool) -> tuple[str | None, str | None]:
    """Return run_id and run_link, each None if it is missing or contains the API key; neither is altered."""
    fields = document if isinstance(document, dict) else {}
    run_id, run_link = fields.get("run_id"), fields.get("run_link")
    text = str(run_id)
    why = ""
    if run_id is None:
        why = "it has no run_id"
    elif type(run_id) not in (str, int) or not text.strip():
        why = "its run_id is neither text nor a whole number"
    elif redact.reveals(text, key_only=True):
        why = "its run_id contained the API key"
    elif _storable(text) != text:
        why = "its run_id contains characters that a database cannot store (NUL, lone surrogates)"
    if required and why:
        raise ValueError(why)
    if type(run_link) is not str or redact.reveals(run_link, key_only=True):
        run_link = None
    return None if why else text, _storable(run_link) or None


def _reveals(response: Response, redact: Redactor) -> bool:
    return redact.reveals(response.body.decode(errors="replace"))


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


def _text(response: Response) -> str | None:
    return readable_text(response.body, response.headers.get("content-type", ""))


def _quote(response: Response, redact: Redactor) -> str | Unquoted:
    """Return the service's own words, or why they are not quoted."""
    if response.body.strip() and response.incomplete:
        return Unquoted.INCOMPLETE  # the redactor would not find a part of a secret
    text = _text(response)
    if text is None:
        return Unquoted.NOT_TEXT
    if _reveals(response, redact):
        return Unquoted.SECRET
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _QUOTE_LIMIT else f"{text[:_QUOTE_LIMIT]}…"
