"""What the body of a response says: the run, the response to an upload, and the service's own words, without secrets."""

from __future__ import annotations

import contextlib
import json
import math
import re
from typing import Any

from workflow_automation_provider.client.protocol import Operation, Request, Response, Run
from workflow_automation_provider.client.redaction import WITHHELD, Redactor, readable_text

QUOTE_LIMIT = 500
"""How much of the service's response an error quotes, in characters."""

# How deep a JSON value may be nested that is stored as such.
_MAX_DEPTH = 100

_WEB_PAGES = ("text/html", "application/xhtml+xml")

# How a web page begins, after a byte order mark, a declaration and comments, as browsers recognize one. Atomic groups,
# because each comment could otherwise end in many places.
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?(?>\s++|<\?xml[^>]*+>|(?><!--.*?-->))*+"
    rb"<(?:!doctype\s+html|html|head|title|meta|script|style|body|div|form|h1|p|table|a|br?)[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_SNIFFED = 1024


def found(response: Response, request: Request, redact: Redactor) -> Run | str | ValueError:
    """Return the run, the response to an upload, or why the response does not say which run was started."""
    if request.operation is Operation.UPLOAD:
        return redact.text(_storable(_words(response, redact)))
    try:
        document = _read_json(response)
        is_required = request.operation is Operation.TRIGGER_BY_PATH
        run_id, run_link = _run_fields(document, redact, required=is_required)
        # Also what it decodes to, for that is shown.
        is_secret = _reveals(response, redact) or redact.reveals(json.dumps(document))
        kept = WITHHELD if is_secret else _kept(document, response)
    except RecursionError:
        return ValueError("it is nested too deeply")
    except ValueError as error:
        return ValueError(redact.text(str(error)))
    return Run(run_id, run_link, request.flow_id, kept)


def is_web_page(response: Response) -> bool:
    """Return whether a response is a web page, such as that of a login, whatever it is declared as."""
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type in _WEB_PAGES:
        return bool(response.body.strip() or response.incomplete)
    return _HTML.match(response.body[:_SNIFFED]) is not None


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
    """Return run_id, None if it is missing or contains the API key, and run_link, None if it reveals a secret."""
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
    if type(run_link) is not str or redact.reveals(run_link):
        run_link = None
    return None if why else text, _storable(run_link) or None


def _reveals(response: Response, redact: Redactor) -> bool:
    return redact.reveals(response.body.decode(errors="replace"))


def _kept(document: Any, response: Response) -> Any:
    """Return a JSON value, or its text where Airflow could not store it."""
    return _storable(document if _can_be_stored(document) else response.body.decode(errors="replace").strip())


def _can_be_stored(document: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether Airflow's task runner can send a JSON value: no whole number of more than 64 bits, no deep nesting."""
    if isinstance(document, int):
        return -(2**63) <= document < 2**63
    if not isinstance(document, dict | list):
        return True
    parts = document.values() if isinstance(document, dict) else document
    return depth > 0 and all(_can_be_stored(part, depth - 1) for part in parts)


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


def _words(response: Response, redact: Redactor) -> str:
    """Return the service's own words, of a JSON string what it says; or in parentheses why they are not shown."""
    if response.incomplete:
        return f"(not shown: {response.incomplete})"  # the redactor would not find a part of a secret
    text = readable_text(response.body, response.headers.get("content-type", ""))
    if text is None:
        return "(not shown: it is neither JSON nor plain text)"
    document = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
    words = document if isinstance(document, str) else text.strip()
    return WITHHELD if _reveals(response, redact) else redact.text(words)


def quote(response: Response, redact: Redactor) -> str:
    """Return the service's own words in one line, shortened."""
    if not response.body.strip():
        return ""
    words = "".join(c if c.isprintable() else " " for c in _words(response, redact))
    line = " ".join(words.split())
    return line if len(line) <= QUOTE_LIMIT else f"{line[:QUOTE_LIMIT]}…"
