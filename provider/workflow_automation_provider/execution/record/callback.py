"""
The callback of a flow: its URL, its token, and what it may report.

The task makes the token and keeps only a hash of it; the endpoint in Airflow's API server
(``plugins``) knows nothing but the tokens' hashes. Both read this module, so that they agree.

A token is the id of the task instance (16 bytes) and 32 random bytes, in base64url. With the id,
its task is found by primary key, so that a token that was never given out costs little.

.. code-block:: text

    POST {base}/workflow-automation/callback?token=…
    {"status": "started", "run_id": …, "run_link": "…"}
    {"status": "running", "message": "…", "progress": 0.5, "run_id": …, "run_link": "…"}
    {"status": "success" | "failed", "result": …, "message": "…", "run_id": …}

Only ``status`` is required. A ``run_id`` is text or a whole number. An empty field counts as left
out. What is only shown to people, such as ``message`` and ``progress``, never costs the rest: it is
made text, or left out.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import re
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from workflow_automation_provider.client.json_values import storable_text, why_not_storable
from workflow_automation_provider.client.redaction import CALLBACK_PATH, SIGNATURE_MARKS, Redactor

MIN_SLEEP = timedelta(seconds=25)
"""
How long a task is suspended at least.

By then, the scheduler knows that the task has left its worker: Airflow 3.3 takes a task that is
queued before that for one that was lost. A process that goes on after its end is killed after
``[core] task_success_overtime``, 20 seconds.
"""

_WITHHELD = "(withheld: the URL that the run was given)"
_WORD = re.compile(r'[^"\s]+')
"""What a URL is in a text: without a blank, also in JSON within it."""

MARGIN = timedelta(minutes=15)
"""
How much longer than ``completion_timeout`` the URL of a mailbox can be used.

Sending the start takes time.
"""

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
    """
    Return the id that the task instance had when it gave out the token.

    A retry may have changed it.
    """
    return UUID(bytes=base64.urlsafe_b64decode(token)[:16])


def digest_of(token: str) -> str:
    """Return what is kept of a token: its SHA-256, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Started(NamedTuple):
    """The claim of a run, at its first step."""

    run_id: str | None = None
    run_link: str | None = None


class Running(NamedTuple):
    """
    A run's report that it is still running; the first one claims the start, as ``started`` does.

    ``progress`` is a number from 0 to 1.
    """

    message: str | None = None
    progress: float | None = None
    run_id: str | None = None
    run_link: str | None = None


class Ended(NamedTuple):
    """A run's report that it has ended; ``result`` is any JSON value."""

    status: Literal["success", "failed"]
    result: Any = None
    message: str | None = None
    run_id: str | None = None


Report: TypeAlias = Started | Running | Ended
"""What a flow can send."""

_Kind = TypeVar("_Kind", bound=Report)

_REPORTS: dict[str, type[Report]] = {
    "started": Started,
    "running": Running,
    "success": Ended,
    "failed": Ended,
}
_FIELDS = tuple(
    dict.fromkeys(["status", *(name for kind in _REPORTS.values() for name in kind._fields)])
)
"""All fields, in the order of the documentation."""


def parse(body: bytes) -> Report:
    """
    Parse the body of a callback.

    :raises ValueError: if it is not what a flow may send, naming the field
    """
    try:
        fields = json.loads(body)
    except RecursionError:
        raise ValueError("The body is not JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"The body is not JSON: {error}.") from None

    if not isinstance(fields, dict):
        raise ValueError("The body is no object; expected one with a status.")

    status = _status(fields.get("status"))
    # The error shows neither its name nor any value: people read why a call was refused.
    has_unknown_field = bool(fields.keys() - {*_FIELDS})
    if has_unknown_field:
        raise ValueError(
            f"A field is not supported; expected {', '.join(_FIELDS)}. "
            "Put what else the flow returns into result."
        )

    kind = _REPORTS[status]
    # A field of another status is left out.
    values = {name: _value(name, fields.get(name)) for name in kind._fields if name != "status"}
    if kind is Ended:
        values["status"] = status

    return kind(**values)


def _status(status: object) -> str:
    """
    Return the status in lower case.

    :raises ValueError: if it is none
    """
    known = status.strip().lower() if isinstance(status, str) else ""
    if known in _REPORTS:
        return known
    raise ValueError(
        "status is missing or unknown; expected 'started', 'running', 'success' or 'failed'."
    )


def without_token(report: Report, token: str) -> Report:
    """Return a report with a note in place of the token: a flow may send back its inputs."""
    return _without(report, (token, f"{CALLBACK_PATH}?token="))


def without_mailbox(report: Ended, token: str) -> Ended:
    """
    Return a report with a note in place of the URL of its mailbox: it may return its inputs.

    :param token: the hash of the token, which is the name of the object
    """
    # Of a URL, its query alone may be there.
    return _without(report, (token, *SIGNATURE_MARKS))


def _without(report: _Kind, marks: tuple[str, ...]) -> _Kind:
    """
    Return a report with a note in place of each URL with one of these marks.

    Of what has one in another form, such as base64, or in an object, nothing is kept.

    :param marks: the token, and others beside which there is a secret
    """
    redactor = _redactor_of(marks)
    if not redactor.reveals(json.dumps(report)):
        return report

    def without(text: str) -> str:
        return _WORD.sub(
            lambda word: _WITHHELD if any(mark in word[0] for mark in marks) else word[0], text
        )

    values = [_with_texts(value, without) for value in report]
    make: Any = type(report)
    kept: _Kind = make(
        *(_WITHHELD if redactor.reveals(json.dumps(value)) else value for value in values)
    )
    return kept


@functools.lru_cache(maxsize=1)  # the runs of a batch have the same token
def _redactor_of(marks: tuple[str, ...]) -> Redactor:
    token, *others = marks
    redactor = Redactor([], key=token)
    for mark in others:
        redactor.add_marker(mark)

    return redactor


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with its texts and names changed."""
    match value:
        case str():
            return change(value)
        case list():
            return [_with_texts(item, change) for item in value]
        case dict():
            return {change(name): _with_texts(item, change) for name, item in value.items()}

    return value


def _value(name: str, value: Any) -> Any:
    """
    Return the value of a field, None if it is empty.

    :raises ValueError: if a result cannot be stored, or a run_id is none
    """
    match name:
        case "result":
            _check_storable(name, value)
            return value
        case "run_id":
            return _run_id(value)
        case "progress":
            return _progress(value)

    return _shown(value)


def _run_id(value: object) -> str | None:
    """
    Return the id of a run: as a number, it may have any number of digits.

    :raises ValueError: if it is none
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("run_id is of another type; expected text or a whole number.")
    if isinstance(value, str):
        _check_storable("run_id", value)

    text = str(value)
    if len(text) > MAX_RUN_ID:
        raise ValueError(f"run_id has {len(text)} characters; expected at most {MAX_RUN_ID}.")

    return text.strip() or None


def _progress(value: object) -> float | None:
    """
    Return a number from 0 to 1, None for any other value.

    More than 1 is taken for a percentage.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    number = min(max(value, 0), 100)
    return float(number / 100 if number > 1 else number)


def _shown(value: object) -> str | None:
    """Return what is only shown to people as text, None if it is empty or cannot be stored."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return storable_text(text) if text.strip() else None


def _check_storable(field: str, value: object) -> None:
    """
    Reject a value that Airflow could not store: it would fail the task later.

    :raises ValueError: naming the field
    """
    fault = why_not_storable(value)
    if fault:
        raise ValueError(f"{field} contains {fault}.")
