"""
The entries of a start in Airflow's task state store: their keys, and what they say.

=======================  ===================  ====================================================
Entry                    Written by           Says
=======================  ===================  ====================================================
``start/{try}/{n}``      the task, once,      :class:`Start`: what is asked for, the hash of the
                         before it sends      token that the run is given, ``max_tries``, how long
                                              the task waits; or the run that it adopts. n counts
                                              the executions within one try
``outcome/{try}/{n}``    the same execution,  :class:`Outcome`: what the response said. In doubt,
                         once                 there is none
``revoked/{hash}``       the task, once       :class:`Revoked`: no run may claim this start while
                                              the task decides, nor later, unless it is adopted
``report/{hash}``        the endpoint, or     :class:`RunReports`: the run's claim and its end,
                         the task for its     when it was told to stop, and which runs were refused
                         mailbox
``message/{hash}``       the endpoint         :class:`LastMessage`: what a run at work reported
                                              last, and the last call that was refused for its
                                              form. It decides nothing
=======================  ===================  ====================================================

All keys begin with ``workflow_automation_``; that of a start within a task (``trigger_flow_once``)
ends with its name. A person writes one more, ``run`` or ``run/{name}``: the run that the task is to
adopt. Only that one is ever deleted.

An entry has one writer and never loses what it says, so a write that Airflow repeats later does no
harm. Where a start has a mailbox, its run gets the URL of an object and nobody gets the token, so
the endpoint never writes its ``report/{hash}``: the task does, and copies the end from the object.
That object is written once, and so each copy of it says the same.

A newer version may have written more fields: they are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, cast

import msgspec

from workflow_automation_provider.exceptions import Accepted, Code, InvalidRequestError

# Keys --------------------------------------------------------------------------------------------

PREFIX = "workflow_automation_"
"""Prefix of all keys."""
START, OUTCOME = f"{PREFIX}start/", f"{PREFIX}outcome/"
START_KEY = re.compile(rf"{START}(\d{{1,6}})/(\d{{1,6}})(?:/(.*))?", re.ASCII | re.DOTALL)
"""
The key of a start: its try, its number within the try, and its name.

The name is None for the operator's own start.
"""
REPORT = f"{PREFIX}report/"
"""Prefix of the keys of what runs have reported, which end with a token's hash."""
ADOPTED = f"{PREFIX}run"
"""Key of the run that a person gives the operator's own start; that of a name is below it."""


def place_of(key: re.Match[str]) -> Place:
    """Return the try and the number of a start, from the match of its key."""
    return int(key[1]), int(key[2])


def start_key(place: Place, name: str | None = None) -> str:
    """Return the key of a start, by its try and number."""
    return _named(f"{START}{place[0]}/{place[1]}", name)


def outcome_key(place: Place, name: str | None = None) -> str:
    """Return the key of the outcome of a start, by the start's try and number."""
    return _named(f"{OUTCOME}{place[0]}/{place[1]}", name)


def adopted_key(name: str | None = None) -> str:
    """Return the key of the run that a person gives a start."""
    return _named(ADOPTED, name)


def revoked_key(token_hash: str) -> str:
    """Return the key of the entry that revokes a token, from its hash."""
    return f"{PREFIX}revoked/{token_hash}"


def report_key(token_hash: str) -> str:
    """Return the key of the entry with what a run has reported, from the hash of its token."""
    return f"{REPORT}{token_hash}"


def message_key(token_hash: str) -> str:
    """Return the key of the entry with a run's last message, from the hash of its token."""
    return f"{PREFIX}message/{token_hash}"


def _named(key: str, name: str | None) -> str:
    if name:
        return f"{key}/{name}"
    return key


# What they say -----------------------------------------------------------------------------------


class RunResult(TypedDict, total=False):
    """The result of a task that started a run: the run, as far as it is known."""

    run_id: str
    """Its identifier, exactly as the service wrote it."""
    run_link: str
    """URL of the run in the application."""
    flow_id: str
    """The flow; missing if only the API key identifies it."""
    response: Any
    """The service's whole JSON response, only if it has no ``run_id``."""
    result: Any
    """What the flow returned, only if the task waited for its end."""


def run_result(
    run_id: str | None,
    run_link: str | None = None,
    flow_id: str | None = None,
    response: object = None,
) -> RunResult:
    """Return a run with the fields that are known."""
    fields = {"run_id": run_id, "run_link": run_link, "flow_id": flow_id, "response": response}
    known = {name: value for name, value in fields.items() if value is not None}
    return cast("RunResult", known)


Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its time zone."""

Place: TypeAlias = tuple[int, int]
"""The try of a start, and its number within the try."""

StartStatus: TypeAlias = Literal["started", "unidentified", "not started"]
"""
What the response to a start said.

*unidentified* is a run that it does not name, and *not started* says that there is no run.
"""


class Start(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What an execution of the task was about to send, or the run that it adopts.

    ``start/{try}/{number}``, of a start by name with ``/{name}`` at its end. The task writes it,
    once, before it sends; and once more, unchanged, to wait for the endpoint.

    :param try_number: the execution's try, in the key alone
    :param number: the execution's number within its try, from 0, in the key alone
    :param at: when, by the worker's clock
    :param max_tries: the task instance's: a Clear changes it, so a start with another one no longer
        counts
    :param request: hash of what is asked for, None if that is not known before the start
    :param token_hash: hash of the run's token, None if it was given none
    :param completion_timeout: seconds that the task waits for the end of the run, None if it does
        not wait
    :param heartbeat_timeout: seconds that the run may report nothing, None for as long as its end
        may take
    :param callback_url: where the run calls Airflow, without the token; empty with a mailbox
    :param mailbox: the object that the run writes at its end in place of a call, empty if it calls
    :param run: the run that the task adopts, None if the request is sent
    :param conn_id: the connection by which the run is started
    :param origin: scheme, host and port of the service that it is started at, empty if unknown
    :param flow_id: the flow, None if only the API key identifies it
    :param issuer: the start that gave out the token, None if it is this one
    :param earlier: the earlier starts that may have a run which the task does not have
    """

    try_number: int
    number: int
    at: Time
    max_tries: int
    request: str | None = None
    token_hash: str | None = None
    completion_timeout: float | None = None
    heartbeat_timeout: float | None = None
    callback_url: str = ""
    mailbox: str = ""
    run: RunResult | None = None
    issuer: Place | None = None
    conn_id: str | None = None
    origin: str = ""
    flow_id: str | None = None
    earlier: tuple[Place, ...] = ()

    def __post_init__(self) -> None:
        if self.run is not None and "run_id" not in self.run:
            raise ValueError("a run that is adopted has a run_id")
        # Versions before 1.0.0 stored the hash under another name: the state of its run is unknown.
        if (self.callback_url or self.mailbox) and self.token_hash is None:
            raise ValueError("a start whose run has a URL has the hash of its token")

    @property
    def place(self) -> Place:
        """Its try and number."""
        return self.try_number, self.number

    @property
    def can_call(self) -> bool:
        """Whether its run can ask Airflow, and so be told to stop."""
        return self.token_hash is not None and not self.mailbox

    @property
    def wait_for_completion(self) -> bool:
        """Whether the task waits for the end of the run."""
        return self.completion_timeout is not None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What the response to a start said: without it, the start is in doubt.

    ``outcome/{try}/{number}``, as of the start. The task writes it, once.

    :param status: *started*, *not started*, or *unidentified*: a run that is not named
    :param at: when, by the worker's clock
    :param run: the run, if it is named; triggered by key, it may have no ``run_id``
    :param reason: why the run is *unidentified*
    """

    status: StartStatus
    at: Time
    run: RunResult | None = None
    reason: str = ""


class Revoked(msgspec.Struct, frozen=True):
    """
    That the token of a start was revoked: no run may claim it, unless a person gives it the task.

    ``revoked/{hash}``. The task writes it, once.

    :param at: when, by the worker's clock
    """

    at: Time


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    The run's first step, which was told to go on; within :class:`RunReports`.

    :param at: when, by the API server's clock
    :param run_id: as the run named it, None if it did not
    :param run_link: the same
    """

    at: Time
    run_id: str | None = None
    run_link: str | None = None


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    How a run ended, as it reported; within :class:`RunReports`.

    :param at: when, by the API server's or the object store's clock
    :param status: as it reported
    :param run_id: as the run named it, None if it did not
    :param result: what the flow returned, None if nothing
    :param message: for people, None if there was none
    """

    at: Time
    status: Literal["success", "failed"]
    run_id: str | None = None
    result: Any = None
    message: str | None = None


class RunReports(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What the run with one token has reported, and what it was told.

    ``report/{hash}``. The endpoint writes it, under locks, at each call that says something new; of
    a start with a mailbox, the task does, once. Without it, the run has said nothing.

    :param claim: its first step, None if it has not claimed
    :param end: how it ended, None if it has not reported that
    :param stopped: when it was first told to stop, None if it was not
    :param refused: ids of the runs that were told to stop because another one has the task
    """

    claim: Claim | None = None
    end: End | None = None
    stopped: Time | None = None
    refused: tuple[str, ...] = ()

    @property
    def has_begun(self) -> bool:
        """Whether the run has claimed or ended, and was not told to stop: it is the task's run."""
        return (self.claim is not None or self.end is not None) and self.stopped is None

    @property
    def run_ids(self) -> set[str]:
        """The ids that the run has reported."""
        return {report.run_id for report in (self.claim, self.end) if report and report.run_id}

    @property
    def run_id(self) -> str | None:
        """The id that the run had when it claimed, or else when it ended."""
        return (self.claim and self.claim.run_id) or (self.end and self.end.run_id) or None


NO_REPORTS = RunReports()
"""What a run has reported before it calls."""


class LastMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    The last message of a run that works: it decides nothing but whether the run is silent.

    ``message/{hash}``. The endpoint writes it, in place of the one before.

    :param at: when the run last reported that it was running, None if it never did
    :param message: for people, empty if there was none
    :param progress: a number from 0 to 1, None if it was not said
    :param refused_at: when a call was last refused for its form, None if none was
    :param refusal: why, empty if none was
    """

    at: Time | None = None
    message: str = ""
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    refused_at: Time | None = None
    refusal: str = ""


# Read and write ----------------------------------------------------------------------------------

Entry: TypeAlias = Start | Outcome | Revoked | RunReports | LastMessage
"""What has an entry of its own, of a start."""

_Kind = TypeVar("_Kind", bound=msgspec.Struct)

_IN_KEY = ("try_number", "number")

# A text with half of a surrogate pair, in place of a name or a time, is not a ValidationError.
_DAMAGE = (msgspec.ValidationError, UnicodeEncodeError)


def entry_of(what: msgspec.Struct) -> dict[str, Any]:
    """Return the entry to store, as JSON values: without defaults, and without what its key has."""
    fields = msgspec.to_builtins(what, enc_hook=_plain)
    if isinstance(what, Start):
        for name in _IN_KEY:
            del fields[name]

    entry: dict[str, Any] = json.loads(json.dumps(fields))
    return entry


def _plain(value: str | datetime) -> str:
    """Return a text or a time of a derived class as plain text, such as a flow_id of NumPy's."""
    if isinstance(value, str):
        return str.__str__(value)
    return value.isoformat()


def read_start(place: Place, value: object, *, name: str | None = None) -> Start:
    """
    Return what the entry of a start says.

    :param place: the try and the number of the start, from its key
    :param value: the entry, as JSON values
    :param name: the name of the start, from its key
    :raises InvalidRequestError: if it cannot be read
    """
    try_number, number = place
    fields = value
    if isinstance(value, Mapping):
        fields = {**value, "try_number": try_number, "number": number}

    try:
        return msgspec.convert(fields, Start)
    except _DAMAGE:
        raise _damaged(start_key(place, name)) from None


def read_entry(kind: type[_Kind], key: str, value: object) -> _Kind:
    """
    Return what an entry says.

    :param value: the entry, as JSON values
    :raises InvalidRequestError: if it cannot be read
    """
    try:
        return msgspec.convert(value, kind)
    except _DAMAGE:
        raise _damaged(key) from None


def read_reports(token_hash: str, value: object) -> RunReports:
    """
    Return what a run has reported.

    :param token_hash: the hash of its token
    :param value: the entry, as JSON values, None if there is none
    :raises InvalidRequestError: if it cannot be read
    """
    if value is None:
        return NO_REPORTS
    return read_entry(RunReports, report_key(token_hash), value)


def read_message(value: object) -> LastMessage:
    """
    Return the last message of a run; it decides nothing, so one that cannot be read is empty.

    :param value: the entry, as JSON values, None if there is none
    """
    try:
        return msgspec.convert(value, LastMessage)
    except _DAMAGE:
        return LastMessage()


def read_adopted(key: str, value: object) -> RunResult:
    """
    Return the run that a person gives a task: the ``run_id`` alone, or a run as an object.

    :param value: the entry, as JSON values
    :raises InvalidRequestError: if the entry names no run
    """
    fields = value if isinstance(value, Mapping) else {"run_id": value}
    unknown = fields.keys() - {"run_id", "run_link", "flow_id"}
    if unknown:
        raise _not_a_run(key, f"has {min(map(str, unknown))!r:.60}")

    run_id = fields.get("run_id")
    is_id = isinstance(run_id, str | int) and not isinstance(run_id, bool)
    if not is_id or not str(run_id).strip():
        raise _not_a_run(key, f"has the run_id {run_id!r:.60}")

    return run_result(
        str(run_id).strip(), _text(fields.get("run_link")), _text(fields.get("flow_id"))
    )


def _text(value: object) -> str | None:
    """Return a text without blanks around it, None if it is no text or empty."""
    if not isinstance(value, str):
        return None
    return value.strip() or None


def _not_a_run(key: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The entry {key} in the task's state store {what}: expected a run_id as "
        'text, or an object such as {"run_id": "1001", "run_link": "https://…"}.',
        next_step="Correct the entry, or delete it.",
    )


def _damaged(key: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The entry {key} in the task's state store cannot be read: it was written by a newer "
        "version of this provider or by one before 1.0.0, or changed by hand.",
        code=Code.START_UNKNOWN,
        accepted=Accepted.MAYBE,
        next_step=(
            "Let the version that wrote it end the task.\n"
            "What was changed by hand can be corrected under Storage, or deleted."
        ),
    )
