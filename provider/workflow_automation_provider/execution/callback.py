"""
The callback of a flow: its URL, its token, and what it may say.

The task that waits makes the token and keeps only a hash of it; the endpoint in Airflow's API server
(``plugins``) knows nothing but the tokens' hashes. Both read this module, so that they agree.

A token is the id of the task instance (16 bytes) and 32 random bytes, in base64url. With the id, its task is
found by primary key, so that a token that was never given out costs little.

.. code-block:: text

    POST {base}/workflow-automation/callback?token=…
    {"status": "success" | "failed", "result": …, "message": "…"}
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_args
from uuid import UUID

from workflow_automation_provider.client.redaction import CALLBACK_PATH, Redactor

__all__ = [
    "CALLBACK_USER",
    "LARGEST_BODY",
    "MAX_VALUES",
    "OPTIONS",
    "PATH",
    "TOKEN_LENGTH",
    "Answer",
    "CallbackRow",
    "ClaimRow",
    "Status",
    "WordRow",
    "claim_key",
    "digest_of",
    "end_key",
    "is_token",
    "new_token",
    "receipt_key",
    "task_of",
    "token_key",
    "word_key",
]

PATH = CALLBACK_PATH
"""Path of the endpoint, below the base URL of Airflow's API server."""

_WITHHELD = "(withheld: the token of the callback)"

LARGEST_BODY = 64 * 1024
"""The largest body of a callback in bytes: its result becomes an XCom."""

_DEEPEST = 50
"""How deeply a result may be nested: Airflow's own JSON would fail on much deeper ones."""

MAX_VALUES = 10_000
"""How many values a result may contain, nested ones included: each costs time and memory wherever it is read."""

TOKEN_LENGTH = 64
"""Of a token: 48 bytes, in base64url without padding."""

_TOKEN = re.compile(f"[A-Za-z0-9_-]{{{TOKEN_LENGTH}}}")

_INTEGERS = range(-(2**63), 2**64)
"""What Airflow can hand to a task: others would make each of its reads fail."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_RESERVED = {"__classname__", "__id__", "__type", "__var"}
"""Names of fields that Airflow takes for objects of Python: as an XCom they fail, or become something else."""

Status = Literal["success", "failed"]
"""How a run ended."""

CALLBACK_USER = "workflow_automation_callback"
"""Id of the user in whose name the endpoint answers a question of the waiting task under **Required Actions**."""

OPTIONS: dict[Status, str] = {"success": "The run succeeded", "failed": "The run failed"}
"""What a person can choose in place of the flow, by what the flow would say."""


class CallbackRow(TypedDict, total=False):
    """An answer, as an entry of the task state store."""

    status: Status
    result: Any
    """What the flow returned, missing if nothing."""
    message: str
    """What the flow said, missing if nothing."""
    at: str
    """When the answer came, as ISO 8601 text in UTC."""


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


class WordRow(TypedDict, total=False):
    """The last word of a run that works, as an entry of the task state store."""

    message: str
    progress: float
    """From 0 to 1."""
    at: str
    """When it came, as ISO 8601 text in UTC."""


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


# The hash is part of the keys, because a value may be kept elsewhere ([workers] state_store_backend).


def token_key(digest: str, max_tries: int) -> str:
    """
    Return the key of a token's entry, which the task writes: while it exists, the run may answer.

    :param max_tries: of the task instance: a Clear changes it, and what was started before no longer counts
    """
    return f"workflow_automation_token/{digest}/{max_tries}"


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


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a flow said of its end.

    :param result: any JSON value, None if there is none
    :param message: None if there is none
    """

    status: Status
    result: Any = None
    message: str | None = None

    @classmethod
    def read(cls, body: bytes) -> Answer:
        """
        Parse the body of a callback.

        :raises ValueError: if it is not what a callback may say, naming the field and the kind of its value
        """
        try:
            document = json.loads(
                body, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_fields
            )
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise ValueError(f"The body is not JSON: {why}.") from None
        if not isinstance(document, dict):
            raise ValueError(f"The body is {_kind(document)}; expected an object with a status.")
        if unknown := document.keys() - {"status", "result", "message"}:
            raise ValueError(
                f"{min(unknown)!r:.60} is not supported; expected status, result and message. "
                "Put what else the flow returns into result."
            )
        message = document.get("message")
        status: Status | None = next((s for s in get_args(Status) if s == document.get("status")), None)
        if status is None:
            found = _kind(document["status"]) if "status" in document else "missing"
            raise ValueError(f"status is {found}; expected 'success' or 'failed'.")
        if message is not None and not isinstance(message, str):
            raise ValueError(f"message is {_kind(message)}; expected text.")
        _check("message", message)
        _check("result", document.get("result"))
        return cls(status, document.get("result"), message)

    def without(self, token: str) -> Answer:
        """Return the answer with a note in place of the token, which a flow returns together with its inputs."""
        redactor = Redactor([], key=token)
        result, message = (_without(token, value) for value in (self.result, self.message))
        # Where it is in another form, such as base64.
        return replace(
            self,
            result=_WITHHELD if redactor.reveals(json.dumps(result)) else result,
            message=_WITHHELD if redactor.reveals(message or "") else message,
        )

    def row(self, at: str) -> CallbackRow:
        """Return the entry to store."""
        row: CallbackRow = {"status": self.status, "at": at}
        if self.result is not None:
            row["result"] = self.result
        if self.message is not None:
            row["message"] = self.message
        return row

    def fingerprint(self, token: str) -> str:
        """Return what tells two answers apart, and nothing else to those who do not know the token."""
        said = json.dumps([self.status, self.result, self.message], sort_keys=True)
        return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Answer | None:
        """Return the answer of an entry, None if there is none yet."""
        status: Status | None = next((s for s in get_args(Status) if s == row.get("status")), None)
        return cls(status, row.get("result"), row.get("message")) if status else None


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


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return f"{value!r:.60}"
        case list():
            return "an array"
    return "an object"


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not a JSON value")


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has the field {name!r:.60} twice")
        fields[name] = value
    return fields


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text:.40} is too large")
    return value


def _check(field: str, value: object) -> None:
    """Reject what neither the database nor the task could read as JSON, and would only then fail the task."""
    level, depth, count = [value], 0, 1
    while level:
        if depth > _DEEPEST:
            raise ValueError(f"{field} is nested too deeply; expected at most {_DEEPEST} levels.")
        if count > MAX_VALUES:
            raise ValueError(
                f"{field} contains more than {MAX_VALUES} values; return a reference to them instead."
            )
        level = [inner for item in level for inner in _contents(field, item)]
        depth, count = depth + 1, count + len(level)


def _contents(field: str, value: object) -> Iterable[object]:
    match value:
        case str():
            _check_text(field, value)
        case int() if value not in _INTEGERS:
            raise ValueError(f"{field} contains an integer of more than 64 bits; send it as text.")
        case list():
            return value
        case dict():
            if reserved := value.keys() & _RESERVED:
                raise ValueError(f"{field} contains a field {min(reserved)!r}, a name that Airflow reserves.")
            for name in value:
                _check_text(field, name)
            return value.values()
    return ()


def _check_text(field: str, text: str) -> None:
    if _UNSTORABLE.search(text):
        raise ValueError(f"{field} contains a NUL character or half of a surrogate pair.")
