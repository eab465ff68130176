"""
The service's interface as values, without any I/O: requests as bytes, replies as a run or an error.

What each reply means is decided here and nowhere else. "Section" refers to the service's interface
description.
"""

from __future__ import annotations

import enum
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.errors import (
    BusyError,
    InvalidRequestError,
    OutcomeUnknownError,
    RefusedError,
    ReplyUnusableError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor

API_KEY_HEADER = "X-API-Key"

# Nothing was done, says the status, and the same request may be sent again later.
_BUSY = frozenset({408, 425, 429, 503})

# How much of the service's own words goes into an error, in characters.
_QUOTED_WORDS = 500

# A wait longer than this is no advice to a scheduler but a fault (and overflows a timedelta soon after).
_LONGEST_RETRY_AFTER = timedelta(days=7).total_seconds()


class Operation(enum.Enum):
    """The three operations of the service (section 4), each with what it does when it is accepted."""

    TRIGGER_BY_PATH = "trigger by path"
    TRIGGER_BY_KEY = "trigger by key"
    UPLOAD = "upload"

    @property
    def takes_key(self) -> bool:
        """Whether the API key goes along (section 5: trigger by path declares none)."""
        return self is not Operation.TRIGGER_BY_PATH

    @property
    def nothing_done(self) -> str:
        """What a request came to that was not accepted, in words."""
        return "No file was taken." if self is Operation.UPLOAD else "No run was started."

    @property
    def maybe_done(self) -> str:
        """What a request may have come to whose answer is not known, in words."""
        if self is Operation.UPLOAD:
            return "The files may have been taken."
        return "A run may have been started: look in the workflow's list of runs before you start it again."


@dataclass(frozen=True, slots=True)
class Run:
    """
    A run that was started (section 2).

    :param run_id: its identifier, always text, digit for digit as the service wrote it; None where a
        trigger by key was answered without one
    :param run_link: URL of the run in the application, None where the service gave none
    :param reply: the service's whole JSON reply, without the API key where it was echoed
    """

    run_id: str | None
    run_link: str | None
    reply: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """One POST of the interface, but for the key, which only the sender knows."""

    operation: Operation
    url: str
    content: bytes = field(repr=False)

    @property
    def title(self) -> str:
        """Name the request in logs and errors."""
        return f"POST {self.url}"


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What came back.

    :param status: HTTP status code
    :param headers: reply headers, names in lower case
    :param body: the bytes read
    :param incomplete: why ``body`` is not the whole body ("it was cut off: …"), empty where it is whole
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    incomplete: str = ""


# Requests ---------------------------------------------------------------------------------------------


def parse_base_url(text: str, *, allow_http: bool = False) -> str:
    """
    Check and normalise the base address of the service.

    :param text: such as ``https://service.example/api``; a missing scheme means https
    :param allow_http: accept plain http to another machine, where the API key can be read on the way
    :return: the address without a trailing slash
    :raises InvalidRequestError: if it is empty, is not http(s), holds user-info, a query or a fragment, or
        is plain http to anything but loopback while ``allow_http`` is false
    """
    text = text.strip()
    if not text:
        raise InvalidRequestError(
            "The base URL is empty: give the service's address, such as https://service.example/api."
        )
    if "://" not in text:
        text = f"https://{text}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        # Not the error's own words: they quote the address, and it may hold a password.
        raise InvalidRequestError(
            "The base URL is not a valid address: write it as https://host[:port]/api."
        ) from None
    if parts.scheme not in ("http", "https"):
        raise InvalidRequestError(f"The base URL has the scheme {parts.scheme!r}: use https.")
    if "@" in parts.netloc:
        raise InvalidRequestError(
            "The base URL holds a user name or password: the API key is all that is needed, in its own field."
        )
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise InvalidRequestError(
            "The base URL has a query (?) or fragment (#): end it at the path, such as https://service.example/api."
        )
    if not host or any(c.isspace() or not c.isprintable() or c == "\\" for c in text):
        raise InvalidRequestError(
            "The base URL has no host name, or has white space or a backslash in it: write it as "
            "https://host[:port]/api."
        )
    if parts.scheme == "http" and not (allow_http or is_loopback(host)):
        raise InvalidRequestError(
            f"The base URL is plain http to {host}, where the API key can be read on the way: "
            "use https, or set the connection's extra allow_http to true."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` (a name or an address, without brackets) is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def path_segment(name: str, value: object) -> str:
    """
    Percent-encode ``value`` so that it can only ever be one segment of a path.

    :param name: what the value is called in errors
    :raises InvalidRequestError: if it is empty or no text
    """
    segment = quote(identifier(name, value), safe="")
    # Dots are left alone by quote(), but a segment of nothing else would be resolved as "here" or "up".
    return segment if segment.strip(".") else segment.replace(".", "%2E")


def identifier(name: str, value: object) -> str:
    """
    Check a ``flow_id`` or ``run_id``: text, or a whole number, which becomes text.

    :raises InvalidRequestError: if it is empty or of another type; a float is refused because its digits
        may not be those that the service wrote
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} is a {type(value).__name__}: give it as text. Nothing was sent.")
    if not value.strip():
        raise InvalidRequestError(
            f"{name} is empty: give the identifier as the service shows it. Nothing was sent."
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{name} is not valid Unicode text: repair its decoding. Nothing was sent."
        ) from None
    return value


def trigger_request(base_url: str, inputs: object, flow_id: object = None) -> Request:
    """
    Make the request that starts a run: by path (section 4.1) with a ``flow_id``, by key (4.2) without.

    :param base_url: as :func:`parse_base_url` returns it
    :param inputs: mapping of input names to JSON values
    :param flow_id: the flow to start; None lets the API key identify it
    :raises InvalidRequestError: if an argument cannot be sent
    """
    if not isinstance(inputs, Mapping):
        raise InvalidRequestError(
            f"inputs is a {type(inputs).__name__}: give a dict of input names and values ({{}} for none). Nothing was sent."
        )
    content = b'{"inputs":%b}' % json_values.encode("inputs", inputs)
    if flow_id is None:
        return Request(Operation.TRIGGER_BY_KEY, f"{base_url}/trigger", content)
    return Request(
        Operation.TRIGGER_BY_PATH, f"{base_url}/flows/{path_segment('flow_id', flow_id)}/trigger", content
    )


def upload_url(base_url: str) -> str:
    """Return the address of the upload operation (section 4.3)."""
    return f"{base_url}/public/upload"


# Replies ----------------------------------------------------------------------------------------------


def read_trigger_reply(reply: Reply, operation: Operation, title: str, redact: Redactor) -> Run:
    """
    Read the reply to a trigger request.

    :param title: how errors name the request
    :raises ReplyUnusableError: a run was started, but the reply does not tell which
    :raises WorkflowAutomationError: as :func:`reply_error` makes it, for anything but 2xx
    """
    if not 200 <= reply.status < 300:
        raise reply_error(reply, operation, title, redact)
    try:
        document = _read_json(reply)
        run_id, run_link = _run_fields(document, required=operation is Operation.TRIGGER_BY_PATH)
        run = Run(redact.value(run_id), redact.value(run_link), redact.value(_plain_numbers(document)))
    except RecursionError:
        raise _unusable(reply, "it is nested too deeply", title, redact) from None
    except ValueError as error:
        raise _unusable(reply, str(error), title, redact) from None
    return run


def read_upload_reply(reply: Reply, title: str, redact: Redactor) -> str:
    """
    Read the reply to an upload (section 4.3: a body of type string).

    The status alone says that the files were taken, so any body will do: a JSON string is decoded,
    anything else is returned as the text it is.

    :raises WorkflowAutomationError: as :func:`reply_error` makes it, for anything but 2xx
    """
    if not 200 <= reply.status < 300:
        raise reply_error(reply, Operation.UPLOAD, title, redact)
    text = reply.body.decode(errors="replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    answer: str = redact.value(document if isinstance(document, str) else text.strip())
    return redact.text(answer, cut=bool(reply.incomplete))


def _unusable(reply: Reply, why: str, title: str, redact: Redactor) -> ReplyUnusableError:
    return ReplyUnusableError(
        f"{title} started a run ({_status(reply.status)}), but the reply cannot be used: {why}."
        f"{_words(reply, redact)} The run's id is unknown: find it in the workflow's list of runs. "
        "Sending the request again would start another run.",
        status=reply.status,
    )


def reply_error(reply: Reply, operation: Operation, title: str, redact: Redactor) -> WorkflowAutomationError:
    """Return the error that a reply outside 2xx is: busy, refused, or of unknown outcome."""
    status = reply.status
    words = _words(reply, redact)
    if status in _BUSY:
        wait = retry_after(reply.headers.get("retry-after"))
        asked = "" if wait is None else f" It asks to wait {wait:.0f} s."
        return BusyError(
            f"{title} was put off with {_status(status)}.{words}{asked} {operation.nothing_done}",
            status=status,
            retry_after=wait,
        )
    if 300 <= status < 500:
        return RefusedError(
            f"{title} was refused with {_status(status)}.{words} {operation.nothing_done}"
            f"{_hint(reply, operation, redact)}",
            status=status,
        )
    return OutcomeUnknownError(
        f"{title} was answered with {_status(status)}.{words} {operation.maybe_done}", status=status
    )


def retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """
    Read a ``Retry-After`` header, in seconds or as an HTTP date.

    :param value: the header as received, None where there was none
    :param now: the time that a date is compared with, by default the clock's
    :return: seconds to wait, from 0 to a week; None where it says nothing that can be understood
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        # A number of this many digits is past any clock; int() itself gives up at some thousands.
        return min(float(value[:20]), _LONGEST_RETRY_AFTER)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max((when - (now or datetime.now(UTC))).total_seconds(), 0.0), _LONGEST_RETRY_AFTER)


class _Constant(str):
    """NaN or an infinity: no JSON, but no reason either to lose a run whose id stands beside it."""

    __slots__ = ()


class _Number(str):
    """A JSON number as it was written: a run id may be longer than a float is exact."""

    __slots__ = ()


def _read_json(reply: Reply) -> Any:
    if reply.incomplete:
        raise ValueError(reply.incomplete)
    if not reply.body.strip():
        raise ValueError("it is empty")
    if coding := reply.headers.get("content-encoding", "").strip().lower().removeprefix("identity"):
        raise ValueError(f"it is compressed ({coding!a}) though that was not asked for")
    try:
        return json.loads(reply.body, parse_int=_Number, parse_float=_Number, parse_constant=_Constant)
    except ValueError:
        raise ValueError("it is not JSON") from None


def _run_fields(document: Any, *, required: bool) -> tuple[str | None, str | None]:
    fields = document if isinstance(document, dict) else {}
    run_id, run_link = fields.get("run_id"), fields.get("run_link")
    usable = isinstance(run_id, str) and not isinstance(run_id, _Constant) and bool(run_id.strip())
    if required and not usable:
        raise ValueError("it has no run_id" if run_id is None else "its run_id is neither text nor a number")
    return (
        str(run_id) if usable else None,
        run_link if isinstance(run_link, str) and not isinstance(run_link, _Number) and run_link else None,
    )


def _plain_numbers(document: Any) -> Any:
    match document:
        case _Number():
            try:
                return int(document)
            except ValueError:  # not whole, or more digits than int() reads
                number = float(document)
                return number if number not in (float("inf"), float("-inf")) else str(document)
        case _Constant():
            return str(document)
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


def _words(reply: Reply, redact: Redactor) -> str:
    text = redact.text(reply.body.decode(errors="replace"), cut=bool(reply.incomplete))
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not text:
        return ""
    return f' The service said: "{text[:_QUOTED_WORDS]}{"…" if len(text) > _QUOTED_WORDS else ""}".'


def _hint(reply: Reply, operation: Operation, redact: Redactor) -> str:
    match reply.status:
        case 400 | 422 if operation is not Operation.UPLOAD:
            return " Compare the inputs with those that the workflow defines."
        case 401 | 402 | 403 | 404 if operation is Operation.UPLOAD:
            return " Check that the run_id and the flow_id belong together, and that the API key is this flow's and has not expired."
        case 401 | 402 | 403 if operation.takes_key:
            return " Check the API key: it must be this workflow's, not expired, and have runs left."
        case 404 | 405:
            return " Check the connection's base URL and the flow_id."
        case 407:
            return " Check the connection's proxy."
        case 413 if operation is Operation.UPLOAD:
            return " Send fewer or smaller files in one request."
        case status if 300 <= status < 400:
            location = redact.text(reply.headers.get("location", "another address"))[:_QUOTED_WORDS]
            return (
                f" It points to {location!a}. Redirects are never followed, for the API key would go along: "
                "put the right address into the connection's base URL."
            )
    return ""
