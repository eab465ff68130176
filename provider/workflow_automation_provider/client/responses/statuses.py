"""
What the response to a request means, and what it means that there is none, without any I/O.

Of :data:`ROWS`, the first that fits decides. A trigger returns the run that it started, an upload
the service's response; all else is an exception.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

import httpcore
import httpx

from workflow_automation_provider.client.checks import MAX_TIMEOUT
from workflow_automation_provider.client.json_values import storable, storable_text
from workflow_automation_provider.client.network import is_refusal_of_client, rejects_form
from workflow_automation_provider.client.protocol import Operation, Request, Response, Run
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.client.transport import (
    RESPONSE_LIMIT,
    SendProgress,
    StoppedError,
)
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

# How a web page begins, after a byte order mark, a declaration and comments, as browsers recognize
# one. Atomic groups, because each comment could otherwise end in many places.
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?(?>\s++|<\?xml[^>]*+>|(?><!--.*?-->))*+"
    rb"<(?:!doctype\s+html|html|head|title|meta|script|style|body|div|form|h1|p|table|a|br?)[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_SNIFFED = 1024

_MARKUP = re.compile(r"<[a-z/!?]", re.IGNORECASE)

# Formats of compressed bodies, as zlib numbers them: gzip or zlib, which their first bytes tell,
# and the bare deflate that some servers send, which only the header tells.
_GZIP_OR_ZLIB, _BARE_DEFLATE = 47, -15

# A Retry-After of more is no number of seconds but a time: seconds, or milliseconds, since 1970.
_EPOCH_SECONDS, _EPOCH_MILLISECONDS = 1e9, 1e11

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")

# The status line of a response; those from 100 to 199 only announce one.
_STATUS_LINE = re.compile(rb"^HTTP/1\.[01] ([2-5][0-9]{2})\b", re.MULTILINE)

Fact = Literal["run", "may name a run", "early", "page", "Retry-After", "declared"]
"""
What a row may ask for: the response says which run was started; it cannot be used, but may name a
run; it came before all of the request was sent; it is a web page; it has a valid ``Retry-After``;
its status is one of the connection's ``busy_statuses``.
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
_LOGIN_PAGE = f"It may be a login page: check {_NOT_THE_SERVICE}"
_COMPARE_INPUTS = "Compare the inputs with those that the workflow defines."
_COMPARE_FORMAT = "Check that file_format is what the service expects."
_CHECK_URL_AND_FLOW = "Check the connection's base URL and the flow_id."
_ANOTHER_RUN = "Sending the request again would start another run."
_MOVED = (
    "It redirects to {location}: the result, a login page, or the service's new URL. "
    "If it is the new URL, set it as the connection's base URL: redirects are never followed."
)
_OF_UPLOAD = (
    "Check that the run belongs to the flow, and that the API key belongs to this flow and has not "
    "expired."
)
# Gateways return 408 and 503 also for a request that they had forwarded. So these count only where
# not all of the request was sent, and for an upload, which may be sent twice. 302 and 303 may
# follow a POST that was carried out.
_GATEWAY = (
    "A gateway may have returned this after it had forwarded the request. "
    "If the service, and every gateway in front of it, returns {status} only before it does "
    "anything, add {status} to the connection's busy_statuses."
)
_NO_KEY_BY_PATH = (
    "A trigger with a flow_id does not send the API key: to send it, leave flow_id out."
)
_CHECK_KEY = "Check the API key: it must be this workflow's, not expired, and have runs left."
_SHORTER = "Shorten the inputs: for example, pass the URL of a file instead of its content."
_SMALLER = (
    "Send fewer or smaller files in one request: see files_per_request and max_request_bytes of "
    "UploadFilesOperator."
)

# fmt: off
ROWS: tuple[Row, ...] = (
    Row("2xx", _TRIGGER, ("run",), None),
    Row("2xx", _TRIGGER, ("early", "may name a run"), UnidentifiedError, hint=_ANOTHER_RUN),
    Row("2xx", "", ("early",), NotSentError, hint=f"Check {_NOT_THE_SERVICE}"),
    Row("2xx", _TRIGGER, (), UnidentifiedError, hint=_ANOTHER_RUN),
    Row("2xx", "upload", ("page",), OutcomeUnknownError, hint=_LOGIN_PAGE),
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
    Row("400 422", _TRIGGER, (), RejectedError, hint=_COMPARE_INPUTS),
    Row("400 422", "upload", (), RejectedError, hint=_COMPARE_FORMAT),
    Row("401 402 403", "path", (), RejectedError, Code.KEY_REJECTED, _NO_KEY_BY_PATH),
    Row("401 402 403", "key", (), RejectedError, Code.KEY_REJECTED, _CHECK_KEY),
    Row("401 402 403", "upload", (), RejectedError, Code.KEY_REJECTED, _OF_UPLOAD),
    Row("404", "upload", (), RejectedError, Code.NOT_FOUND, _OF_UPLOAD),
    Row("404 405", "path", (), RejectedError, Code.NOT_FOUND, _CHECK_URL_AND_FLOW),
    Row("404 405", "", (), RejectedError, Code.NOT_FOUND, "Check the connection's base URL."),
    Row("407", "", (), RejectedError, hint="Check the connection's proxy."),
    Row("413", _TRIGGER, (), RejectedError, Code.TOO_LARGE, _SHORTER),
    Row("413", "upload", (), RejectedError, Code.TOO_LARGE, _SMALLER),
    Row("408", _TRIGGER, (), OutcomeUnknownError, hint=_GATEWAY),
    Row("4xx", "", (), RejectedError),
    Row("any", "", ("early",), NotSentError),
    Row("503", "", (), OutcomeUnknownError, hint=_GATEWAY),
    Row("any", "", (), OutcomeUnknownError),
)
# fmt: on
"""
What each response means: the first row that fits.

docs/if-it-fails.md has the statuses of each code.
"""

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

    Follows section 4 of the interface.

    :param busy_statuses: with which the service rejects a request before it has done anything
    :return: the run that a trigger started, or the response to an upload
    :raises WorkflowAutomationError: what the first of :data:`ROWS` that fits says
    """
    response = _decompressed(response)
    if request.operation is Operation.UPLOAD:
        return _read_upload(response, request, redact, busy_statuses)
    return _read_trigger(response, request, redact, busy_statuses)


def _read_trigger(
    response: Response, request: Request, redact: Redactor, busy_statuses: Collection[int]
) -> Run:
    run: Run | None = None
    why = ""
    try:
        run = _run_of(response, request, redact)
    except ValueError as error:
        why = redact.text(str(error))

    row = row_of(response, request, run, busy_statuses)
    if run is None or row.outcome is not None:
        raise _error(row, response, request, redact, why)
    return run


def _read_upload(
    response: Response, request: Request, redact: Redactor, busy_statuses: Collection[int]
) -> str:
    """
    Return the response to an upload.

    Its status says that the files were accepted, so any body is valid but a web page, such as that
    of a login, whatever it is declared as.
    """
    row = row_of(response, request, None, busy_statuses)
    if row.outcome is not None:
        raise _error(row, response, request, redact)
    return redact.text(storable_text(_words(response, redact)))


def row_of(
    response: Response,
    request: Request,
    run: Run | None = None,
    busy_statuses: Collection[int] = (),
) -> Row:
    """
    Return the row of a response.

    :param run: the run, if the response says which one was started
    """
    is_given: dict[Fact, bool] = {
        "run": run is not None,
        "may name a run": _may_name_a_run(response),
        "early": response.early,
        "page": _is_web_page(response),
        "Retry-After": _retry_after_of(response) is not None,
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
    row: Row, response: Response, request: Request, redact: Redactor, why: str = ""
) -> WorkflowAutomationError:
    """
    Return the exception of a row.

    :param why: why the response does not say which run was started
    """
    kind = row.outcome or UnidentifiedError
    wait = _retry_after_of(response)
    phrase = httpx.codes.get_reason_phrase(response.status)
    message = _MESSAGES[kind].format(
        title=request.title,
        status=f"{response.status} {phrase}".rstrip(),
        asked="" if wait is None else f", with a Retry-After of {wait:g} s",
        why=why,
    )
    location = redact.text(response.headers.get("location", ""))[:_QUOTE_LIMIT]
    return kind(
        message,
        consequence=nothing_done(request) if kind.accepted is Accepted.NO else "",
        next_step=row.hint.format(
            status=response.status, location=ascii(location or "another URL")
        ),
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
    """Return the consequence of an upload that was not accepted, empty for a trigger."""
    return "No files were accepted." if request.operation is Operation.UPLOAD else ""


# When to send the request again ------------------------------------------------------------------


def _retry_after_of(response: Response) -> float | None:
    headers = response.headers
    return retry_after(headers.get("retry-after", ""), headers.get("date", ""))


def retry_after(value: str, date: str = "") -> float | None:
    """
    Read a ``Retry-After`` header as servers send it.

    They send seconds, also with decimals, the time as an HTTP or ISO 8601 date, or as seconds or
    milliseconds since 1970. Of two headers, such as a gateway's and the service's, the longer
    counts.

    :param value: the header as received, empty if there was none
    :param date: the response's ``Date``, by the same clock as a time in ``value``; without a valid
        one, our own clock counts
    :return: seconds to wait, from 0 to a week, since a longer wait is a fault rather than advice;
        None if there is no header, or it is invalid
    """
    now = (_time_of(date) or datetime.now(UTC)).timestamp()
    texts = [text.strip() for text in value.split(",")]
    if all(_NUMBER.fullmatch(text) for text in texts):
        wait = max(_seconds_of(float(text), now) for text in texts)
    else:
        when = _time_of(value)
        if when is None:
            return None
        wait = when.timestamp() - now
    return min(max(wait, 0.0), MAX_TIMEOUT)


def _seconds_of(number: float, now: float) -> float:
    if number < _EPOCH_SECONDS:
        return number
    if number < _EPOCH_MILLISECONDS:
        return number - now
    return number / 1000 - now


def _time_of(text: str) -> datetime | None:
    """Return the time that an HTTP or ISO 8601 date names, which is UTC if it names no zone."""
    text = text.strip()
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        with contextlib.suppress(ValueError, OverflowError):
            when = parse(text)
            if when.tzinfo is None:
                when = when.replace(tzinfo=UTC)
            return when
    return None


# What the body says ------------------------------------------------------------------------------


def _decompressed(response: Response) -> Response:
    """
    Return a response with the body that was compressed, although that was not requested.

    The body decides, for some services compress and do not say so, and others say so and do not.
    """
    body = response.body
    if response.error or _is_json(body):
        return response

    formats = [_GZIP_OR_ZLIB]
    if "deflate" in _coding(response):
        formats.append(_BARE_DEFLATE)
    for wbits in formats:
        decoded = _members(body, wbits)
        if decoded is None:
            continue
        if len(decoded) > RESPONSE_LIMIT:
            limit = f"the limit is {RESPONSE_LIMIT // 1024} KiB"
            return response._replace(error=httpcore.ReadError(limit))
        return response._replace(body=decoded)
    return response


def _members(body: bytes, wbits: int) -> bytes | None:
    """Return what is compressed, up to the limit and one byte; None if it is not whole."""
    decoded = b""
    while body.strip(b"\0"):
        decoder = zlib.decompressobj(wbits)
        try:
            decoded += decoder.decompress(body, RESPONSE_LIMIT + 1 - len(decoded))
        except zlib.error:
            return None
        if len(decoded) > RESPONSE_LIMIT:
            break
        if not decoder.eof:
            return None
        body = decoder.unused_data
    return decoded


def _parsed(body: bytes) -> Any:
    """
    Return the value of JSON; an integer that Python would not read stays text.

    :raises ValueError: if it is not JSON
    :raises RecursionError: if it is nested too deeply
    """
    return json.loads(body, parse_int=_integer)


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


def _is_json(body: bytes) -> bool:
    try:
        _parsed(body)
    except (ValueError, RecursionError):
        return False
    return True


def _coding(response: Response) -> str:
    return response.headers.get("content-encoding", "").strip().lower()


def _is_web_page(response: Response) -> bool:
    """Return whether a response is a web page, such as of a login, whatever its media type says."""
    if _media_type(response) in _WEB_PAGES:
        return bool(response.body.strip() or response.error)
    return _HTML.match(response.body[:_SNIFFED]) is not None


def _media_type(response: Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _may_name_a_run(response: Response) -> bool:
    """Return whether a response that cannot be used may nevertheless be that of a run."""
    if _is_web_page(response):
        return False
    if response.error:
        return True
    try:
        document = _parsed(response.body)
    except (ValueError, RecursionError):
        return b"run_id" in response.body
    return isinstance(document, dict) and document.get("run_id") is not None


def _cut_off(response: Response, error: Exception, redact: Redactor) -> str:
    return f"it was cut off after {len(response.body)} bytes: {described(error, redact)}"


# The run -----------------------------------------------------------------------------------------


def _run_of(response: Response, request: Request, redact: Redactor) -> Run:
    """
    Return the run that a response says was started.

    :raises ValueError: if it does not say which one, though it must: by path, and in a response
        that came before all of the request was sent, for only a run_id shows that it started a run
    """
    document = _read_json(response, redact)
    fields = document if isinstance(document, dict) else {}
    run_id, why = _run_id(fields.get("run_id"), redact)
    is_required = request.operation is Operation.TRIGGER_BY_PATH or response.early
    if run_id is None and is_required:
        raise ValueError(why)

    run_link = _run_link(fields.get("run_link"), redact)
    # What names the run is a service's own, in which a part of the key does not count.
    named = {"run_id": run_id, "run_link": run_link}
    rest: object = document
    if isinstance(document, dict):
        rest = {name: item for name, item in document.items() if named.get(name) is None}
    kept = _kept(document, rest, response.body.decode(errors="replace"), redact)
    return Run(run_id, run_link, request.flow_id, kept)


def _read_json(response: Response, redact: Redactor) -> Any:
    """
    Return the document of a response.

    :raises ValueError: if it has none
    """
    if response.error and not _is_whole_object(response.body):
        raise ValueError(_cut_off(response, response.error, redact))
    if not response.body.strip():
        raise ValueError("it is empty")
    try:
        return _parsed(response.body)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    except ValueError:
        coding = _coding(response)
        declared = f", and has the Content-Encoding {coding!a}" if coding else ""
        raise ValueError(f"it is not JSON{declared}") from None


def _is_whole_object(body: bytes) -> bool:
    """Return whether a body is an object to its closing brace, also if more was announced."""
    try:
        return isinstance(_parsed(body), dict)
    except (ValueError, RecursionError):
        return False


def _run_id(value: object, redact: Redactor) -> tuple[str | None, str]:
    """Return a run_id as text, or None and why it cannot be used."""
    if value is None:
        return None, "it has no run_id"

    text = str(value) if type(value) in (str, int) else ""
    if not text.strip() or storable_text(text) != text:
        return None, "its run_id is neither text that a database can store nor a whole number"
    if redact.has_key(text):
        return None, "its run_id contained the API key"
    return text, ""


def _run_link(value: object, redact: Redactor) -> str | None:
    """Return a run_link, None if it is missing or contains a secret."""
    if type(value) is not str or redact.has_secret(value):
        return None
    return storable_text(value) or None


def _kept(document: object, rest: object, text: str, redact: Redactor) -> Any:
    """
    Return a response as it is kept, or a note instead if it reveals a secret.

    :param document: what it says
    :param rest: that without what names the run
    :param text: what it was parsed from, which is kept of what Airflow cannot store
    """
    decoded = json.dumps(document)
    is_secret = redact.has_secret(text) or redact.has_secret(decoded)
    if is_secret or redact.reveals(json.dumps(rest)):
        return WITHHELD
    kept = storable(document, text.strip())
    return redact.text(kept) if isinstance(kept, str) else kept


# The service's own words -------------------------------------------------------------------------


def _words(response: Response, redact: Redactor) -> str:
    """
    Return the service's own words, of a JSON string what it says; or in parentheses why not.

    They are shown of JSON and plain text: in other formats, such as HTML, a secret could be in a
    form that is not searched for.
    """
    if not response.body.strip():
        return ""
    if response.error:  # the redactor would not find a part of a secret
        return f"(not shown: {_cut_off(response, response.error, redact)})"

    text = response.body.decode(errors="replace")
    kind = _media_type(response)
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


# No response -------------------------------------------------------------------------------------


def no_response(
    request: Request, error: Exception, progress: SendProgress, redact: Redactor, via: str
) -> WorkflowAutomationError:
    """
    Return the exception of a request without a response that can be read.

    The outcome is unknown if all of the request was sent, or the status says that it was carried
    out. Otherwise it was not sent.

    :param error: what happened in place of the response
    :param progress: how much of the request was sent
    :param via: the proxy that was used
    """
    instead = what_came(error, progress, redact)
    status = _status_in(progress.head)
    if progress.whole:
        return unknown(request, instead, status=status)

    is_trigger = request.operation is not Operation.UPLOAD
    if is_trigger and status is not None and status < 300:
        return OutcomeUnknownError(
            f"{request.title} was aborted before all of it was sent, but got {instead}.",
            status=status,
            flow_id=request.flow_id,
        )

    what = "aborted before all of it was sent" if progress.begun else f"not sent{via}"
    why = f"it got {instead}" if progress.head else described(error, redact)
    return NotSentError(
        f"{request.title} was {what}: {why}.",
        consequence=nothing_done(request),
        next_step=hint(error, progress, via),
        status=status,
        flow_id=request.flow_id,
    )


def unknown(request: Request, instead: str, *, status: int | None = None) -> OutcomeUnknownError:
    """
    Return the exception of a request that was sent.

    :param instead: what came in place of the response
    :param status: that of a response that cannot be read
    """
    return OutcomeUnknownError(
        f"{request.title} was sent, but got {instead}.",
        code=_code_of(OutcomeUnknownError, request),
        status=status,
        flow_id=request.flow_id,
    )


def what_came(error: Exception, progress: SendProgress, redact: Redactor) -> str:
    """Return what came in place of a response that can be read: no response, or a part of one."""
    why = described(error, redact)
    if not progress.head:
        return f"no response: {why}"

    status = _status_in(progress.head)
    with_status = "" if status is None else f" with the status {status}"
    return f"a response{with_status} that cannot be read: {why}"


def _status_in(head: bytes) -> int | None:
    """Return the status at the beginning of a response, None if there is none."""
    found = _STATUS_LINE.search(head)
    return int(found[1]) if found else None


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
        return (
            "Check the connection's CA bundle, and that the base URL has the host name that the "
            "certificate is for."
        )
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return (
            "Check the connection's base URL: it must begin with http:// if the service does not "
            "use TLS."
        )
    proxy = "the proxy, " if via else ""
    return f"Check that the service is up, {proxy}and the connection's base URL."


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
