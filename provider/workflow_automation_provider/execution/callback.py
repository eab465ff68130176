"""
The callback of a flow: its URL, its token, and the entries of the task state store that belong to it.

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
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, cast, get_args
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


class ClaimRow(TypedDict, total=False):
    """A run's claim, as an entry of the task state store."""

    digest: str
    """Hash of the token that the run was given."""
    run_id: str
    """What the run said, missing if nothing."""
    run_link: str
    """What the run said, missing if nothing."""
    at: str
    """When it claimed, as ISO 8601 text in UTC."""
    stopped: str
    """When it was first told to stop, missing if it was not."""


def _row(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


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


START_KEY = "workflow_automation_start"
"""Key of the entry of the task's start, which the endpoint reads."""

STARTED_KEY = "workflow_automation_started"
"""Key of another one that says the same of a run that was started: a late write of *starting* cannot undo it."""

WAIT_KEY = "workflow_automation_wait"
"""Key of the entry of its wait, likewise."""

# The hash is part of the keys, because a value may be kept elsewhere ([workers] state_store_backend).


def token_key(digest: str, max_tries: int) -> str:
    """
    Return the key of a token's entry, which the task writes: while it exists, the run may answer.

    :param max_tries: of the task instance: a Clear changes it, and what was started before no longer counts
    """
    return f"workflow_automation_token/{digest}/{max_tries}"


def token_keys(digest: str, max_tries: int) -> tuple[str, str]:
    """
    Return the keys of a token's entries: that of its send, and that by which a token that was deleted counts again.

    Each is written once. A late repeat of its deletion, which Airflow makes if a request times out, cannot undo that.

    :param max_tries: as for :func:`token_key`
    """
    key = token_key(digest, max_tries)
    return key, f"{key}/again"


def end_key(digest: str) -> str:
    """Return the key of the entry with the flow's answer, which the endpoint writes for the task."""
    return f"workflow_automation_end/{digest}"


def receipt_key(digest: str) -> str:
    """Return the key of the entry by which the endpoint recognizes the answer, also once the task has deleted it."""
    return f"workflow_automation_receipt/{digest}"


def claim_key(max_tries: int) -> str:
    """Return the key of the entry with the claim of a run, which the endpoint writes: one until a Clear."""
    return f"workflow_automation_claim/{max_tries}"


def word_key(digest: str) -> str:
    """Return the key of the entry with a run's last word, which the endpoint writes."""
    return f"workflow_automation_word/{digest}"


class Started(NamedTuple):
    """
    The claim of a run, at its first step.

    :param run_id: None if it did not name itself
    :param run_link: None if there is none
    """

    run_id: str | None = None
    run_link: str | None = None

    def row(self, digest: str, at: str) -> ClaimRow:
        """Return the entry to store."""
        return cast("ClaimRow", _row(digest=digest, at=at, run_id=self.run_id, run_link=self.run_link))


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

    def row(self, at: str) -> dict[str, Any]:
        """
        Return the entry to store.

        :param at: when it came, as ISO 8601 text in UTC
        """
        return _row(at=at, message=self.message, progress=self.progress)


class Answer(NamedTuple):
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

    @classmethod
    def read(cls, body: bytes) -> Answer:
        """
        Parse the body of a callback that says how the run ended.

        :raises ValueError: if it is not what a callback may say, naming the field and the kind of its value
        """
        said = read(body)
        if not isinstance(said, cls):
            raise ValueError("status is not that of an end; expected 'success' or 'failed'.")
        return said

    def row(self, at: str) -> dict[str, Any]:
        """
        Return the entry to store.

        :param at: when it came, as ISO 8601 text in UTC
        """
        return _row(status=self.status, at=at, result=self.result, message=self.message, run_id=self.run_id)

    def fingerprint(self, token: str) -> str:
        """Return what tells two answers apart, and nothing else to those who do not know the token."""
        named = [] if self.run_id is None else [self.run_id]
        said = json.dumps([self.status, self.result, self.message, *named], sort_keys=True)
        return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Answer | None:
        """Return the answer of an entry, None if there is none yet."""
        status: Status | None = next((s for s in get_args(Status) if s == row.get("status")), None)
        return cls(status, row.get("result"), row.get("message"), row.get("run_id")) if status else None


Said: TypeAlias = Started | Running | Answer
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
    return Answer(end, fields.get("result"), _text(fields, "message"), run_id)


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
