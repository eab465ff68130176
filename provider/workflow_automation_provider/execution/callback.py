"""
The callback of a flow: its URL, its token, and what it may say.

The task makes the token and keeps only a hash of it; the endpoint in Airflow's API server (``plugins``) knows
nothing but the tokens' hashes. Both read this module, so that they agree.

A token is the id of the task instance (16 bytes) and 32 random bytes, in base64url. With the id, its task is
found by primary key, so that a token that was never given out costs little.

.. code-block:: text

    POST {base}/workflow-automation/callback?token=…
    {"status": "started", "run_id": …, "run_link": "…"}
    {"status": "running", "message": "…", "progress": 0.5, "run_id": …}
    {"status": "success" | "failed", "result": …, "message": "…", "run_id": …}

Only ``status`` is required. A ``run_id`` is text or a whole number. What is empty is as if it were left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from uuid import UUID

from workflow_automation_provider.client.redaction import CALLBACK_PATH, Redactor
from workflow_automation_provider.execution.callback_json import check, document, kind

PATH = CALLBACK_PATH
"""Path of the endpoint, below the base URL of Airflow's API server."""

_WITHHELD = "(withheld: the token of the callback)"

MAX_BODY = 64 * 1024
"""The maximum size of a callback's body in bytes: its result becomes an XCom."""

TOKEN_LENGTH = 64
"""Of a token: 48 bytes, in base64url without padding."""

_TOKEN = re.compile(f"[A-Za-z0-9_-]{{{TOKEN_LENGTH}}}")

Status = Literal["success", "failed"]
"""How a run ended."""

_END = ("status", "run_id", "result", "message")
_FIELDS = {
    "started": ("status", "run_id", "run_link"),
    "running": ("status", "run_id", "message", "progress"),
    "success": _END,
    "failed": _END,
}


def new_token(ti_id: UUID) -> str:
    """
    Return a new token.

    :param ti_id: of the task instance that gives it out
    """
    return base64.urlsafe_b64encode(ti_id.bytes + secrets.token_bytes(32)).decode()


def is_token(text: str) -> bool:
    """Return whether ``text`` may be a token, by its letters and its length."""
    return _TOKEN.fullmatch(text) is not None


def task_of(token: str) -> UUID:
    """Return the id that the task instance had when it gave out the token: a retry may have changed it."""
    return UUID(bytes=base64.urlsafe_b64decode(token)[:16])


def digest_of(token: str) -> str:
    """Return what is kept of a token: its SHA-256, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Started(NamedTuple):
    """
    The claim of a run, at its first step.

    :param run_id: None if it did not name itself
    :param run_link: None if there is none
    """

    run_id: str | None = None
    run_link: str | None = None


class Running(NamedTuple):
    """
    A word of a run that works.

    :param message: None if there is none
    :param progress: from 0 to 1, None if there is none
    :param run_id: None if it did not name itself
    """

    message: str | None = None
    progress: float | None = None
    run_id: str | None = None


class Ended(NamedTuple):
    """
    What a flow said of its end.

    :param result: any JSON value, None if there is none
    :param message: None if there is none
    :param run_id: None if it did not name its run
    """

    status: Status
    result: Any = None
    message: str | None = None
    run_id: str | None = None


Said: TypeAlias = Started | Running | Ended
"""What a flow can send."""


def read(body: bytes) -> Said:
    """
    Parse the body of a callback.

    :raises ValueError: if it is not what a flow may send, naming the field and the kind of its value
    """
    fields = document(body)
    status = fields.get("status")
    if not (isinstance(status, str) and status in _FIELDS):
        given = kind(status) if "status" in fields else "missing"
        raise ValueError(f"status is {given}; expected 'started', 'running', 'success' or 'failed'.")
    if unknown := fields.keys() - {*_FIELDS[status]}:
        *most, last = _FIELDS[status]
        hint = "" if "result" not in _FIELDS[status] else " Put what else the flow returns into result."
        raise ValueError(
            f"{min(unknown)!r:.60} is not supported with the status {status!r}; "
            f"expected {', '.join(most)} and {last}.{hint}"
        )
    run_id = _run_id(fields.get("run_id"))
    if status == "started":
        return Started(run_id, _text(fields, "run_link"))
    if status == "running":
        return Running(_text(fields, "message"), _progress(fields.get("progress")), run_id)
    check("result", fields.get("result"))
    (end,) = (word for word in get_args(Status) if word == status)
    return Ended(end, fields.get("result"), _text(fields, "message"), run_id)


def without_token(said: Said, token: str) -> Said:
    """Return what a flow says with a note in place of the token, which it returns together with its inputs."""
    return type(said)(*(_withhold(token, value) for value in said))


def _run_id(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            pass
        case int():
            return str(value)
        case str():
            check("run_id", value)
            return value if value.strip() else None
    raise ValueError(f"run_id is {kind(value)}; expected text or a whole number.")


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {kind(value)}; expected text.")
    check(name, value)
    return value or None


def _progress(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"progress is {kind(value)}; expected a number from 0 to 1.")
    return float(min(max(value, 0), 1))


def _withhold(token: str, value: Any) -> Any:
    """Return a JSON value with a note in place of the token."""
    if value is None:
        return None
    replaced = _without(token, value)
    # Where it is in another form, such as base64.
    return _WITHHELD if Redactor([], key=token).reveals(json.dumps(replaced)) else replaced


def _without(token: str, value: Any) -> Any:
    match value:
        case str():
            # The task would withhold all of a text that contains the URL.
            return value.replace(f"{PATH}?token={token}", _WITHHELD).replace(token, _WITHHELD)
        case list():
            return [_without(token, item) for item in value]
        case dict():
            return {_without(token, name): _without(token, item) for name, item in value.items()}
    return value
