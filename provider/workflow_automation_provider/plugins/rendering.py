"""
The page's HTML: ``page.html`` is its template, ``page.css`` its style, ``page.js`` its script.

Whatever comes from a run or a person is escaped, cut, and shown without invisible characters. The
content security policy allows the style and the script of these files, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pendulum
from fastapi.responses import HTMLResponse, Response
from jinja2 import ChainableUndefined, Environment
from markupsafe import Markup

from workflow_automation_provider.client.urls import web_link
from workflow_automation_provider.execution.errors import printable, without_colors
from workflow_automation_provider.plugins.task_starts import RunStatus

ONE_LINE = 100
"""Up to how many characters a value is shown in one line."""


def visible(text: object, limit: int = 300) -> str:
    """
    Return any value as text, cut, without characters that hide or reverse others.

    JSON is in one line, unless it is long. Jinja escapes the text.
    """
    if isinstance(text, str):
        whole = without_colors(text)
    else:
        whole = json.dumps(text, ensure_ascii=False)
        if len(whole) > ONE_LINE:
            whole = json.dumps(text, indent=2, ensure_ascii=False)

    if len(whole) > limit:
        whole = f"{whole[: limit - 1]}…"
    if whole.isprintable():
        return whole

    return "\n".join(printable(line) for line in whole.splitlines())


def from_now(time: datetime) -> str:
    """Return how long ago a time was, or in how long it will be."""
    return pendulum.instance(time).diff_for_humans()


def _source(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


_STYLE = _source("page.css")
_SCRIPT = _source("page.js")

# Nothing is known of a batch or of a start that cannot be read: what is not there is left out.
_ENVIRONMENT = Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=ChainableUndefined
)
_ENVIRONMENT.filters |= {"shown": visible, "web": web_link, "from_now": from_now}
_ENVIRONMENT.filters["segment"] = partial(quote, safe="")  # of a path
_TEMPLATE = _ENVIRONMENT.from_string(
    _source("page.html"),
    {
        "RunStatus": RunStatus,
        "ONE_LINE": ONE_LINE,
        "style": Markup(_STYLE),  # noqa: S704
        "script": Markup(_SCRIPT),  # noqa: S704
    },
)

RESPONSE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Headers of every response: they allow the page's own style and script, and nothing else."""


def response(status: int = HTTPStatus.OK, **values: Any) -> Response:
    """
    Return the page as a response.

    :param values: the variables of the template
    """
    page = _TEMPLATE.render(now=datetime.now(UTC), **values)
    # Half of a surrogate pair, which JSON can have, is no text.
    return HTMLResponse(page.encode(errors="replace"), status, headers=RESPONSE_HEADERS)
