"""What the body of a response contains: JSON, a web page, or the service's own words."""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any

import httpcore

from workflow_automation_provider.client.responses.cause import describe

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Response
    from workflow_automation_provider.client.redaction import Redactor

RESPONSE_LIMIT = 1024 * 1024
"""In bytes. A valid response has two short fields; a longer one would only fill the memory."""

QUOTE_LIMIT = 500
"""How much of the service's response an error quotes, in characters."""

_WEB_PAGES = ("text/html", "application/xhtml+xml")
_TEXTS = ("", "text/plain", *_WEB_PAGES)

# How a web page begins, after a byte order mark, a declaration and comments, as browsers recognize
# one. Atomic groups, because each comment could otherwise end in many places.
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?(?>\s++|<\?xml[^>]*+>|(?><!--.*?-->))*+"
    rb"<(?:!doctype\s+html|html|head|title|meta|script|style|body|div|form|h1|p|table|a|br?)[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_SNIFFED = 1024

_MARKUP = re.compile(r"<[a-z/!?]", re.IGNORECASE)
_PAGE = "(a web page, perhaps of a gateway or login in front of the service)"

# gzip or zlib, which the first bytes of a body tell.
_GZIP_OR_ZLIB = 47


def too_large() -> httpcore.ReadError:
    """Return the error that ends a response at the limit."""
    return httpcore.ReadError(f"the limit is {RESPONSE_LIMIT // 1024} KiB")


def decompressed(response: Response) -> Response:
    """
    Return a response with its body decompressed, if the body was compressed without being asked.

    The body decides: some services compress and do not declare it, others the other way round.
    """
    decoder = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        body = decoder.decompress(response.body, RESPONSE_LIMIT + 1)
    except zlib.error:
        return response

    if len(body) > RESPONSE_LIMIT:
        return response._replace(error=too_large())

    is_whole = decoder.eof and not decoder.unused_data
    return response._replace(body=body) if is_whole else response


# JSON ---------------------------------------------------------------------------------------------


def parse_json(body: bytes) -> Any:
    """
    Parse JSON; an integer that is too long for Python stays text.

    :raises ValueError: if it is not JSON
    :raises RecursionError: if it is nested too deeply
    """
    return json.loads(body, parse_int=_integer)


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


def json_in(body: bytes) -> Any:
    """Return the JSON of a body, None if it has none that is whole."""
    try:
        return parse_json(body)
    except (ValueError, RecursionError):
        return None


def may_name_a_run(response: Response) -> bool:
    """Return whether a response that cannot be used may nevertheless be that of a run."""
    if is_web_page(response):
        return False
    if response.error:
        return True

    document = json_in(response.body)
    if document is None:
        return b"run_id" in response.body

    return isinstance(document, dict) and document.get("run_id") is not None


# Other formats ------------------------------------------------------------------------------------


def is_web_page(response: Response) -> bool:
    """
    Return whether a response is a web page, such as of a login, whatever its media type says.

    Some services declare their JSON as one.
    """
    body = response.body.lstrip()
    is_declared = _media_type(response) in _WEB_PAGES and not body.startswith((b"{", b"["))
    if is_declared:
        return bool(body or response.error)
    return _HTML.match(response.body[:_SNIFFED]) is not None


def _media_type(response: Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


# The service's own words --------------------------------------------------------------------------


def own_words(response: Response, redactor: Redactor) -> str:
    """
    Return the service's own words, or in parentheses why they are not shown.

    Only JSON and plain text are shown: in another format, a secret could be written in a way that
    is not searched for. Of a JSON string, its content is shown.
    """
    if not response.body.strip():
        return ""
    if response.error:  # the redactor would not find a part of a secret
        return f"(not shown: {cut_off(response, response.error, redactor)})"
    if is_web_page(response):
        return _PAGE

    text = response.body.decode(errors="replace")
    kind = _media_type(response)
    document = json_in(text.encode())
    has_markup = document is None and _MARKUP.search(text)
    is_text = "\ufffd" not in text and (kind in _TEXTS or kind.endswith("json"))
    if has_markup or not is_text:
        return "(not shown: it is neither JSON nor plain text)"
    if isinstance(document, str):
        return redactor.text(document)

    return redactor.text(text.strip())


def quote(response: Response, redactor: Redactor) -> str:
    """Return the service's own words in one line, shortened."""
    words = own_words(response, redactor)
    printable = "".join(char if char.isprintable() else " " for char in words)
    line = " ".join(printable.split())
    return line if len(line) <= QUOTE_LIMIT else f"{line[:QUOTE_LIMIT]}…"


def cut_off(response: Response, error: Exception, redactor: Redactor) -> str:
    """Return that a response was cut off, and why."""
    return f"it was cut off after {len(response.body)} bytes: {describe(error, redactor)}"
