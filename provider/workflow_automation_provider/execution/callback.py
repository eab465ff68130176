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

Only ``status`` is required. A ``run_id`` is text or a whole number. An empty field counts as left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

from workflow_automation_provider.client.json_values import why_not_storable
from workflow_automation_provider.client.redaction import CALLBACK_PATH, Redactor

PATH = CALLBACK_PATH
"""Path of the endpoint, below the base URL of Airflow's API server."""

_WITHHELD = "(withheld: the token of the callback)"

MAX_BODY = 64 * 1024
"""The maximum size of a callback's body in bytes: its result becomes an XCom."""

MAX_RUN_ID = 250
"""The maximum length of a run_id in characters: the endpoint also records those that it refuses."""

_TOKEN = re.compile("[A-Za-z0-9_-]{64}")


def new_token(ti_id: UUID) -> str:
    """
    Return a new token.

    :param ti_id: id of the task instance that gives it out
    """
    return base64.urlsafe_b64encode(ti_id.bytes + secrets.token_bytes(32)).decode()


def is_token(text: str) -> bool:
    """Return whether ``text`` has the characters and the length of a token."""
    return _TOKEN.fullmatch(text) is not None


def task_of(token: str) -> UUID:
    """Return the id that the task instance had when it gave out the token: a retry may have changed it."""
    return UUID(bytes=base64.urlsafe_b64decode(token)[:16])


def digest_of(token: str) -> str:
    """Return what is kept of a token: its SHA-256, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Started(NamedTuple):
    """The claim of a run, at its first step."""

    run_id: str | None = None
    run_link: str | None = None


class Running(NamedTuple):
    """A run's word that it is still running; ``progress`` is a number from 0 to 1."""

    message: str | None = None
    progress: float | None = None
    run_id: str | None = None


class Ended(NamedTuple):
    """A run's word that it has ended; ``result`` is any JSON value."""

    status: Literal["success", "failed"]
    result: Any = None
    message: str | None = None
    run_id: str | None = None


Said: TypeAlias = Started | Running | Ended
"""What a flow can send."""

_WORDS: dict[str, type[Said]] = {
    "started": Started,
    "running": Running,
    "success": Ended,
    "failed": Ended,
}
_EXPECTED = {"run_id": "text or a whole number", "progress": "a number from 0 to 1"}


def read(body: bytes) -> Said:
    """
    Parse the body of a callback.

    :raises ValueError: if it is not what a flow may send, naming the field and the kind of its value
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"The body is not JSON: {why}.") from None
    if not isinstance(fields, dict):
        raise ValueError(f"The body is {_kind(fields)}; expected an object with a status.")
    status = fields.get("status")
    if not (isinstance(status, str) and status in _WORDS):
        given = f"{status!r:.20}" if isinstance(status, str) else _kind(status)
        raise ValueError(
            f"status is {given}; expected 'started', 'running', 'success' or 'failed'."
        )
    word = _WORDS[status]
    if unknown := fields.keys() - {"status", *word._fields}:
        hint = " Put what else the flow returns into result." if word is Ended else ""
        raise ValueError(
            f"{min(unknown)!r:.20} is not supported with the status {status!r}; "
            f"expected {', '.join({**dict.fromkeys(['status', *word._fields])})}.{hint}"
        )
    said: dict[str, Any] = {
        name: status if name == "status" else _value(name, fields.get(name))
        for name in word._fields
    }
    return word(**said)


# In the words of those who build flows.
_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "an array",
    dict: "an object",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "missing or null")


def without_token(said: Said, token: str) -> Said:
    """Return what a flow says with a note in place of the token: it may return its inputs."""
    return type(said)(*(_withheld(token, value) for value in said))


def _withheld(token: str, value: Any) -> Any:
    # The task would withhold the whole text that contains the URL.
    text = json.dumps(value).replace(f"{PATH}?token={token}", _WITHHELD).replace(token, _WITHHELD)
    # The token may be in another form, such as base64.
    return _WITHHELD if Redactor([], key=token).reveals(text) else json.loads(text)


def _value(name: str, value: Any) -> Any:
    """Return the value of a field, None if it is empty."""
    if name != "run_id" or isinstance(value, str):  # as a number, it may have any number of digits
        fault = why_not_storable(value)
        if fault:
            raise ValueError(f"{name} contains {fault}.")
    if name == "result" or value is None:
        return value
    match name, value:
        case _, bool():
            pass
        case "progress", int() | float():
            return float(min(max(value, 0), 1))
        case ("run_id", int()) | ("run_id" | "run_link" | "message", str()):
            text = str(value)
            if name == "run_id" and len(text) > MAX_RUN_ID:
                raise ValueError(
                    f"run_id has {len(text)} characters; expected at most {MAX_RUN_ID}."
                )
            return text if text.strip() else None
    raise ValueError(f"{name} is {_kind(value)}; expected {_EXPECTED.get(name, 'text')}.")
