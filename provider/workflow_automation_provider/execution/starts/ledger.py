"""
What may be sent, decided by the starts of one task instance. Read this first.

There is no I/O here, as in h11. :mod:`~.record` reads the entries of the task state store,
:func:`decide` says what to do, and :mod:`~.starter` does it. The endpoint in Airflow's API server
reads the same entries.

=======================  ===================  ====================================================
Entry                    Written by           Says
=======================  ===================  ====================================================
``start/{try}/{n}``      the task, once,      what is asked for, the hash of the token that the
                         before it sends      run is given, ``max_tries``, how long the task
                                              waits; or the run that a person entered. n counts
                                              the executions within one try
``outcome/{try}/{n}``    the same execution,  what the response said: a *run*, *nothing* was
                         once                 started, or a run is *unidentified*. In doubt, there
                                              is none
``revoked/{hash}``       the task, once       no run may claim this start while the task decides,
                                              nor later, unless a person enters that run
``run/{hash}``           the endpoint         the run's claim and its end, when it was told to
                                              stop, and which runs were refused
``message/{hash}``       the endpoint         the last message of a run that works, and the last
                                              call that was refused for its form: nothing is
                                              decided by it
=======================  ===================  ====================================================

An entry has one writer and never loses what it says, so a write that Airflow repeats later does no
harm. Only what a person has entered is deleted. All keys begin with ``workflow_automation_``; that
of a start within a task (``trigger_flow_once``) ends with its name.

**Decide**, the first row that fits the last start:

====================================================  ============================================
The last start                                        Then
====================================================  ============================================
A person has entered a run that it does not name      that run, if :func:`why_not` has no reason
There is none, or it has another ``max_tries``        send: the task was cleared
A start by name that asked for something else         an error
Its run was told to stop, and no person entered it    send
Its run failed, and is to be started again            send
It names a run that a person entered                  that run; an error if it was told to stop
Its run claimed, or ended                             that run
Its outcome is a run, and its token is not revoked    that run
It gave out no token: *nothing*                       send
It gave out no token: *unidentified*, or in doubt     an error; in doubt with ``"start_again"``:
                                                      send
Its token is not revoked                              revoke it
Revoked: *nothing*                                    send
Revoked: *unidentified*                               an error
Revoked: in doubt                                     ``"fail"``: an error; otherwise send
====================================================  ============================================

**Revoke** the token of a start: write ``revoked``; write the start again, unchanged, which waits
for the endpoint's locks; read ``run``. From then on no run can claim it. So until a Clear, a second
start is sent only if no run of the first can go on, or the user accepts a second run.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from workflow_automation_provider.client.checks import one_line

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor

PREFIX = "workflow_automation_"
"""Prefix of all keys."""
START, OUTCOME = f"{PREFIX}start/", f"{PREFIX}outcome/"
START_KEY = re.compile(rf"{START}(\d{{1,6}})/(\d{{1,6}})(?:/(.*))?", re.ASCII | re.DOTALL)
"""
The key of a start.

Its try, its number within the try, and its name; None for the operator's own.
"""
ADOPTED = f"{PREFIX}run"
"""Key of the run that a person enters; that of a start by name has its name after a slash."""


def place_of(key: re.Match[str]) -> tuple[int, int]:
    """Return the try and the number of a start, from the match of its key."""
    return int(key[1]), int(key[2])


def revoked_key(token: str) -> str:
    """Return the key of the entry that closes a start, from the hash of its token."""
    return f"{PREFIX}revoked/{token}"


def run_key(token: str) -> str:
    """Return the key of the entry with what a run said, from the hash of its token."""
    return f"{PREFIX}run/{token}"


def message_key(token: str) -> str:
    """Return the key of the entry with a run's last message, from the hash of its token."""
    return f"{PREFIX}message/{token}"


class RunResult(TypedDict, total=False):
    """
    The run that a task started, as the task's result.

    What the service returned, as far as known.
    """

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
    run = {"run_id": run_id, "run_link": run_link, "flow_id": flow_id, "response": response}
    return {name: value for name, value in run.items() if value is not None}  # type: ignore[return-value]  # a dict of those keys


def entry_of(what: Start | Outcome | RunReports | Claim | End) -> dict[str, Any]:
    """
    Return the entry to store, as JSON values.

    Without defaults, and without what its key says.
    """
    defaults = {**what._field_defaults, "try_number": what[0], "number": what[1]}
    return {
        name: _json(value) for name, value in what._asdict().items() if value != defaults.get(name)
    }


def _json(value: Any) -> Any:
    match value:
        case Claim() | End():
            return entry_of(value)
        case tuple():
            return list(value)
        case datetime():
            return value.isoformat()
    return value


def _read(kind: type, entry: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the known fields of an entry from its JSON values.

    A newer version may have written more.
    """
    names = [
        name for name, value in entry.items() if name in kind.__annotations__ and value is not None
    ]
    return {name: _READ.get(name, lambda value: value)(entry[name]) for name in names}


class Start(NamedTuple):
    """
    What an execution of the task was about to send, or the run that a person entered for it.

    :param try_number: the execution's try
    :param number: the execution's number within its try, from 0
    :param at: when, by the worker's clock
    :param max_tries: the task instance's, which a Clear changes
    :param request: hash of what is asked for, None if that is not known before the start
    :param token: hash of the run's token, None if it was given none
    :param completion_timeout: seconds that the task waits for the end of the run, None if it does
        not wait
    :param heartbeat_timeout: seconds that the run may say nothing, None for as long as its end may
        take
    :param callback_url: where the run calls Airflow, without the token
    :param run: the run that a person entered, None if the request is sent
    :param issuer: try and number of the start that gave out the token, None if it is this one
    :param earlier: what earlier starts may have left, in words; empty if nothing
    """

    try_number: int
    number: int
    at: datetime
    max_tries: int
    request: str | None = None
    token: str | None = None
    completion_timeout: float | None = None
    heartbeat_timeout: float | None = None
    callback_url: str = ""
    run: RunResult | None = None
    issuer: tuple[int, int] | None = None
    conn_id: str | None = None
    flow_id: str | None = None
    earlier: str = ""

    @classmethod
    def of(cls, place: tuple[int, int], entry: Mapping[str, Any]) -> Start | None:
        """Return the start of an entry, None if a person has damaged the entry."""
        try_number, number = place
        try:
            start = cls(try_number=try_number, number=number, **_read(cls, entry))
        except (AttributeError, TypeError, ValueError):
            return None
        return start if start.run is None or "run_id" in start.run else None

    @property
    def place(self) -> tuple[int, int]:
        """Its try and number."""
        return self.try_number, self.number

    @property
    def waits(self) -> bool:
        """Whether the task waits for the end of the run."""
        return self.completion_timeout is not None


class Outcome(NamedTuple):
    """
    What the response to a start said.

    :param kind: a *run* that the response names; *nothing* was started; or a run that is
        *unidentified*
    :param run: the run, if it is named; triggered by key, it may have no ``run_id``
    :param reason: why the run is *unidentified*
    """

    kind: Literal["run", "nothing", "unidentified"]
    at: datetime
    run: RunResult | None = None
    reason: str = ""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Outcome:
        """
        Return the outcome that an entry says.

        :raises Exception: if a person has damaged it
        """
        return cls(**_read(cls, entry))


class Claim(NamedTuple):
    """The run's first step, which was told to go on."""

    at: datetime
    run_id: str | None = None
    run_link: str | None = None


class End(NamedTuple):
    """How a run ended, as it said."""

    at: datetime
    status: Literal["success", "failed"]
    run_id: str | None = None
    result: Any = None
    message: str | None = None


class RunReports(NamedTuple):
    """
    What the run with one token has said and was told.

    :param stopped: when it was first told to stop
    :param refused: ids of the runs that were told to stop because another one has the task
    """

    claim: Claim | None = None
    end: End | None = None
    stopped: datetime | None = None
    refused: Sequence[str] = ()

    @classmethod
    def of(cls, entry: Mapping[str, Any] | None) -> RunReports:
        """
        Return what an entry says; :data:`NO_REPORTS` if there is none.

        :raises Exception: if a person has damaged it
        """
        return cls(**_read(cls, entry)) if entry else NO_REPORTS

    @property
    def has_begun(self) -> bool:
        """Whether the run has claimed or ended, and was not told to stop: it is the task's run."""
        return (self.claim is not None or self.end is not None) and self.stopped is None

    @property
    def run_ids(self) -> set[str]:
        """The ids that the run has said."""
        return {said.run_id for said in (self.claim, self.end) if said and said.run_id}

    @property
    def run_id(self) -> str | None:
        """The id that the run said when it claimed, or else when it ended."""
        return (self.claim and self.claim.run_id) or (self.end and self.end.run_id) or None


NO_REPORTS = RunReports()
"""What a run has said before it speaks."""


class LastMessage(NamedTuple):
    """
    The last message of a run that works: it decides nothing but whether the run is silent.

    :param at: when the run last said that it was running, None if it never did
    :param refused_at: when a call was last refused for its form, None if none was
    :param refusal: why
    """

    at: datetime | None = None
    message: str = ""
    progress: float | None = None
    refused_at: datetime | None = None
    refusal: str = ""

    @classmethod
    def of(cls, entry: Mapping[str, Any] | None) -> LastMessage:
        """Return what an entry says; a time without a time zone is taken for UTC."""
        if not entry:
            return cls()
        known = {name: value for name, value in entry.items() if name in cls._fields}
        for name in ("at", "refused_at"):
            if known.get(name):
                at = datetime.fromisoformat(known[name])
                known[name] = at if at.tzinfo else at.replace(tzinfo=UTC)
        return cls(**known)


def _time(text: str) -> datetime:
    if (at := datetime.fromisoformat(text)).tzinfo is None:
        raise ValueError  # it has no time zone
    return at


_READ: dict[str, Callable[[Any], Any]] = {
    "at": _time,
    "stopped": _time,
    "max_tries": int,
    "completion_timeout": float,
    "heartbeat_timeout": float,
    "run": lambda run: {**run},
    "issuer": lambda place: tuple(map(int, place)),
    "refused": tuple,
    "claim": lambda entry: Claim(**_read(Claim, entry)),
    "end": lambda entry: End(**_read(End, entry)),
}


class Facts(NamedTuple):
    """
    What is known of one start.

    :param is_revoked: whether its token is revoked
    :param is_closed: whether this execution has closed it
    """

    start: Start
    outcome: Outcome | None = None
    reports: RunReports = NO_REPORTS
    is_revoked: bool = False
    is_closed: bool = False

    def counts(self, max_tries: int) -> bool:
        """Return whether it was recorded since the last Clear, by the task's ``max_tries``."""
        return self.start.max_tries == max_tries

    @property
    def known(self) -> set[str]:
        """The ids of its run, from all that is known."""
        runs = (self.start.run, self.outcome and self.outcome.run)
        return self.reports.run_ids | {run["run_id"] for run in runs if run and "run_id" in run}

    @property
    def is_unknown(self) -> bool:
        """Whether it may have a run of unknown id, even one that was told to stop."""
        nothing = self.outcome is not None and self.outcome.kind == "nothing"
        return not (self.known or nothing)

    @property
    def started_nothing(self) -> bool:
        """Whether no run of this start goes on: nothing was started, or it was told to stop."""
        is_denied = self.outcome is not None and self.outcome.kind == "nothing"
        return self.reports.stopped is not None or (is_denied and not self.reports.has_begun)

    def run(self, redactor: Redactor | None) -> RunResult:
        """
        Return the run of this start, as far as it is known.

        :param redactor: knows the secrets of the connection, None if it cannot be used: what the
            run itself has said is left out then, or where it reveals one
        """
        known = self.start.run or (self.outcome and self.outcome.run) or {}
        run: RunResult = {**known}
        if self.start.flow_id:
            run.setdefault("flow_id", self.start.flow_id)

        run_id = self.reports.run_id
        if run_id not in (None, run.get("run_id")):
            # The response named another run: nothing of that is kept.
            run = run_result(None, flow_id=run.get("flow_id"))

        claim = self.reports.claim
        run_link = claim.run_link if claim else None
        if run_id and redactor and not redactor.has_key(run_id):
            run["run_id"] = run_id
        if run_link and redactor and not redactor.has_secret(run_link):
            run["run_link"] = run_link
        return run

    def text(self, redactor: Redactor | None) -> str:
        """
        Return what this and earlier starts may have left, in words.

        Except a run that was told to stop.

        :param redactor: as in :meth:`run`
        """
        start = self.start
        if self.started_nothing:
            return start.earlier
        at = start.at.isoformat(timespec="seconds")
        return f"{start.earlier} try {start.try_number} ({at}) {self._what(redactor)}.".strip()

    def _what(self, redactor: Redactor | None) -> str:
        """Return what this start did, as a part of a sentence."""
        kind = self.outcome.kind if self.outcome else None
        if kind != "run" and not self.reports.has_begun:
            if kind == "unidentified":
                return "started a run whose run_id is unknown"
            return (
                "triggered the flow, and ended before the outcome was known. A run may have been "
                "started"
            )

        run = self.run(redactor)
        words = (
            f"started run {run['run_id']}" if "run_id" in run else "started a run without a run_id"
        )
        if "run_link" in run:
            words = f"{words}, {run['run_link']}"
        if self.reports.end:
            words = f"{words}, which has ended ({self.reports.end.status})"
        return one_line(words)


class StartOptions(NamedTuple):
    """
    What the task asks for.

    :param max_tries: the task instance's, now
    :param request: as in :class:`Start`
    :param is_named: whether it is a start by name, whose request must not change
    :param on_unknown_start: what to do in doubt
    :param replaces_failed: whether to start another run after one that failed
    """

    max_tries: int
    request: str | None = None
    is_named: bool = False
    on_unknown_start: Literal["fail", "claim", "start_again"] = "fail"
    replaces_failed: bool = False


class Decision(enum.Enum):
    """What to do next."""

    SEND = "send"
    RETURN = "return the run of the last start"
    ADOPT = "continue with the run that a person entered"
    REVOKE = "revoke the token of the last start, and decide again"
    CHANGED = "report that another request was sent under this name"
    DOUBT = "report that a run may have been started"
    UNIDENTIFIED = "report that a run was started whose id is unknown"


def decide(facts: Facts | None, options: StartOptions, adopted: str | None = None) -> Decision:
    """
    Decide what to do, by the table above.

    :param facts: what is known of the last start, None if there is none
    :param adopted: the run that a person has entered
    """
    last = facts if facts and facts.counts(options.max_tries) else None
    if adopted and not (last and last.start.run and last.start.run["run_id"] == adopted):
        return Decision.ADOPT
    if last is None:
        return Decision.SEND
    start, outcome, reports = last.start, last.outcome, last.reports
    if options.is_named and not start.run and start.request != options.request:
        return Decision.CHANGED
    if reports.stopped and not start.run:
        return Decision.SEND
    if options.replaces_failed and reports.end and reports.end.status == "failed":
        return Decision.SEND
    kind = outcome and outcome.kind
    if start.run or reports.has_begun or (kind == "run" and not last.is_revoked):
        return Decision.RETURN
    if start.token and not last.is_closed:
        return Decision.REVOKE
    if kind == "unidentified":
        return Decision.UNIDENTIFIED
    if kind == "nothing" and (start.token or not start.earlier):
        return Decision.SEND
    if options.on_unknown_start == "start_again" or (
        start.token and options.on_unknown_start == "claim"
    ):
        return Decision.SEND
    return Decision.DOUBT


def is_certain(
    decision: Decision,
    facts: Facts | None,
    *,
    is_adopted: bool = False,
    is_first: bool = False,
    is_own: bool = False,
) -> bool:
    """
    Return whether no entry that is there, but was not seen, could change a decision.

    :param facts: what is seen of the last start, None if none is seen
    :param is_adopted: whether a run is seen that a person has entered
    :param is_first: whether the task instance was never executed before
    :param is_own: whether it is the start of a try that Airflow continues, which looks again anyway
    """
    if facts is None:
        return is_first
    if decision is not Decision.RETURN or is_adopted:
        return False
    if facts.outcome is None and facts.start.run is None:
        return False  # it may be there, and names the run

    end = facts.reports.end
    has_failed = end is not None and end.status == "failed"
    # Nothing follows a start whose run has begun, and not failed, or which had a response and gave
    # out no token.
    goes_on = facts.reports.has_begun and not has_failed
    return is_own or goes_on or facts.start.token is None


def why_not(run_id: str, last: Facts | None, others: Sequence[Facts]) -> str | None:
    """
    Return why a task cannot continue with the run that a person entered, None if it can.

    :param last: what is known of the last start, None if there is none
    :param others: what is known of all starts before it
    """
    if last is None or last.start.token is None:
        return None
    if last.reports.stopped:
        return "the run of the last start was told to stop"
    if run_id in last.reports.refused:
        return "it was told to stop"
    if last.reports.run_ids - {run_id}:
        return "another run has the task"
    if run_id in last.known:
        return None
    if not last.is_unknown:
        return "it is not that of the last start"
    if any(other.is_unknown or run_id in other.known for other in others):
        return "it may be that of an earlier start, which can no longer go on"
    return None
