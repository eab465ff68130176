"""
What the entries of a task tell people about its runs, without a database and without HTML.

The task and the endpoint read the entries by the same
:mod:`~workflow_automation_provider.execution.starts.ledger`. Anybody who may edit a task can write
an entry: one that cannot be read makes its start *unknown*.
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow.utils.state import State as TaskState
from airflow.utils.state import TaskInstanceState

from workflow_automation_provider.execution.batch.record import BATCH
from workflow_automation_provider.execution.errors import how_to_continue
from workflow_automation_provider.execution.starts.entries import (
    ADOPTED,
    OUTCOME,
    PREFIX,
    START,
    START_KEY,
    LastMessage,
    Revoked,
    adopted_key,
    message_key,
    place_of,
    read_entry,
    read_message,
    read_start,
    revoked_key,
    run_key,
)
from workflow_automation_provider.execution.starts.ledger import Facts, facts_of

_RESPONSES = {
    "run": "Response: a run was started",
    "nothing": "Response: nothing was started",
    "unidentified": "Response: a run was started, but not which",
}
_LOOK = "Look in the workflow's list of runs."


class State(enum.Enum):
    """What is known of a run, in the order in which people should look."""

    DOUBT = "in doubt"
    UNKNOWN = "unknown"
    STOPPED = "told to stop"
    IDLE = "not started"
    STARTING = "starting"
    STARTED = "started"
    CLAIMED = "claimed"
    WAITING = "waiting"
    ENDED = "ended"


class Step(NamedTuple):
    """
    A step of the conversation, as the page shows it.

    :param said: what the run has said, in short, None for any other step
    """

    at: datetime
    title: str
    text: Any = None
    said: Any = None


@dataclass(slots=True, kw_only=True)
class Conversation:
    """
    A start of a task and its run, or a batch. Texts from entries may be of any type.

    :param row: columns of the task instance
    :param name: the name of a start within a task
    :param try_number: the start's try, 0 for a batch
    :param is_last: whether it is the last start of its name
    :param is_current: whether it also counts: since then, the task was neither cleared nor made
        again
    :param callback_url: where the run calls Airflow, without its token
    :param mailbox: the object to which the run writes its end in place of a call
    :param until: when the wait ends, None if the task does not wait
    :param silent_since: since when the run is late, or has said nothing for half the time that it
        may; None if it is not
    """

    row: Any
    at: datetime
    state: State = State.UNKNOWN
    name: str = ""
    try_number: int = 0
    is_last: bool = True
    is_current: bool = True
    flow: Any = None
    conn_id: Any = None
    run_id: Any = None
    run_link: Any = None
    callback_url: Any = None
    mailbox: Any = None
    progress: float | None = None
    until: datetime | None = None
    silent_since: datetime | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Whether Airflow does nothing more with the task, until a person does."""
        return self.row.state is not None and self.row.state in TaskState.finished

    @property
    def last(self) -> Step | None:
        """The last step in which the run said something."""
        said = [step for step in self.steps if step.said is not None]
        return said[-1] if said else None

    @property
    def is_uncertain(self) -> bool:
        """Whether a person has to look for its run."""
        return self.state in (State.DOUBT, State.UNKNOWN)

    @property
    def pressure(self) -> tuple[int, datetime]:
        """
        How pressing it is, the least first.

        A task that failed in doubt comes before any other doubt, then the run that is silent for
        longest, then the oldest.
        """
        if self.state is State.DOUBT and self.has_ended:
            return 0, self.at
        if self.state is State.DOUBT:
            return 1, self.at
        if self.silent_since:
            return 2, self.silent_since
        return 3, self.at

    def matches(self, words: str) -> bool:
        """Return whether one of its texts has these words."""
        row, last = self.row, self.last
        texts = [self.flow, self.run_id, self.name]
        texts += [row.dag_id, row.task_id, row.rendered_map_index]
        if last:
            texts.append(last.said)
        found = "\n".join(str(text) for text in texts if text)
        return words.casefold() in found.casefold()

    @property
    def advice(self) -> str:
        """What a person can do now."""
        if not self.is_current:
            return self._left_behind
        is_batch = not self.try_number
        if is_batch and self.has_ended:
            return self._after_batch
        if self.state is State.UNKNOWN:
            return (
                "An entry of this start cannot be read here: the task's log and its tab Storage "
                "have more."
            )
        if self.state is State.DOUBT and not self.has_ended:
            return f"{_LOOK} The task's log says what its next try does."
        if self.row.state == TaskInstanceState.FAILED and self.state is not State.STOPPED:
            if self.run_id:
                return f"If it is to go on, {how_to_continue(str(self.run_id), self.name)}"
            if self.state is State.DOUBT:
                how = how_to_continue(name=self.name)
                return f"{_LOOK}\nIf one was started, {how}\nIf none was started, clear the task."
        if self.has_ended:
            return "The task has ended: a Clear starts another run."
        if self.state is State.WAITING:
            return (
                "The task goes on once the run says its end. "
                "If the run cannot, mark the task as success or failed."
            )
        return "Nothing to do: the task goes on by itself."

    @property
    def _after_batch(self) -> str:
        again = (
            "A Clear starts all items again. "
            "Correct any rejected ones, and start those without a run in a new batch."
        )
        if self.state is State.DOUBT:
            return f"{_LOOK} {again}"
        return again

    @property
    def _left_behind(self) -> str:
        """What is known of a run that the task no longer has."""
        since = "This is from before the task was cleared or made again."
        if not self.try_number:
            return f"{since} It starts all items again."
        if self.state is State.IDLE:
            return f"{since} No run was started."
        if self.state is State.ENDED:
            return f"{since} The run has ended."
        if self.state is State.STOPPED:
            return f"{since} The run was told to stop."
        if self.state in (State.STARTED, State.CLAIMED):
            return f"{since} If the run asks Airflow, it is told to stop."
        return f"{since} A run may have been started: look in the workflow's list of runs."


def conversations(row: Any, entries: Mapping[str, Any]) -> list[Conversation]:
    """
    Return a task's starts, in order, and its batch.

    A start whose entry is too large or not ours is *unknown*.

    :param row: columns of the task instance
    :param entries: the values of its entries, None where one cannot be read
    """
    # A task that is queued has not begun.
    at = row.start_date or row.date
    starts = _starts_of(entries)
    last = _last_by_name(starts, row.try_number)
    runs = []

    for key in starts:
        run = Conversation(
            row=row,
            at=at,
            name=key[3] or "",
            try_number=int(key[1]),
            is_last=last[key[3]] is key,
        )
        run.is_current = run.is_last and run.try_number <= row.try_number
        with contextlib.suppress(Exception):
            _tell_start(run, entries, key)
        runs.append(run)

    if BATCH in entries:
        run = Conversation(row=row, at=at)
        with contextlib.suppress(Exception):
            _tell_batch(run, entries[BATCH])
        runs.append(run)

    return runs


def _starts_of(keys: Iterable[str]) -> list[re.Match[str]]:
    """Return the matches of the keys of starts, in order."""
    matches = (START_KEY.fullmatch(key) for key in keys)
    return sorted((match for match in matches if match), key=place_of)


def _last_by_name(starts: list[re.Match[str]], try_number: int) -> dict[str | None, re.Match[str]]:
    """
    Return the last start of each name.

    :param try_number: the task instance's: a start of a later try is that of one that was deleted,
        and is the last only if there is no other
    """
    last: dict[str | None, re.Match[str]] = {}
    for key in starts:
        is_of_deleted = int(key[1]) > try_number
        if not is_of_deleted or key[3] not in last:
            last[key[3]] = key
    return last


# Mistyped entries -------------------------------------------------------------------------------

_TOKEN = re.compile("[0-9a-f]{64}")
# Of the last two, the modules would import the client, which the API server does not need.
_WRITTEN = (START, OUTCOME, BATCH, f"{PREFIX}upload", f"{PREFIX}probe")
_NAMES = 200
"""How many names of starts a mistyped key is compared with."""
_SIMILAR = 0.85
"""How similar to :data:`ADOPTED` a key has to be that does not begin with our prefix."""


def mistyped(keys: Iterable[str]) -> dict[str, str]:
    """
    Return the keys of entries that nothing reads, each with the one that a person may have meant.

    :param keys: those of a task, also its own
    """
    keys = list(keys)
    names = {match[3] for match in _starts_of(keys)}
    possible = [adopted_key(name) for name in names] or [ADOPTED]

    found = {}
    for key in keys:
        is_for_any_start = not names and _is_entered(key)
        if not is_for_any_start and key not in possible and _is_meant_for_us(key):
            closest = difflib.get_close_matches(key, possible[:_NAMES], n=1, cutoff=0)
            found[key] = closest[0]
    return found


def _is_entered(key: str) -> bool:
    return key == ADOPTED or key.startswith(f"{ADOPTED}/")


def _is_meant_for_us(key: str) -> bool:
    """Return whether a key is like that which a person enters, and none of this package's."""
    if not key.startswith(PREFIX):
        written = key.partition("/")[0].strip().casefold()
        return difflib.SequenceMatcher(None, written, ADOPTED).ratio() >= _SIMILAR
    if key.startswith(_WRITTEN):
        return False
    token = key.rpartition("/")[2]
    is_of_token = key in (run_key(token), message_key(token), revoked_key(token))
    return not (is_of_token and _TOKEN.fullmatch(token))


# Entries ----------------------------------------------------------------------------------------


def _tell_batch(run: Conversation, entry: Mapping[str, Any]) -> None:
    """Fill in what the last entry of a batch tells."""
    counts = {**entry["counts"]}
    row, try_number = run.row, entry.get("try_number")
    is_being_sent = row.state == TaskInstanceState.RUNNING and row.try_number == try_number
    if not is_being_sent:
        # Of a try that was killed: it may have sent them.
        in_flight = entry.get("in_flight", 0)
        counts["unknown"] += in_flight
        counts["remaining"] -= in_flight

    others = [name for name in ("rejected", "unknown", "remaining") if counts[name]]
    parts = [f"{counts['started']} of {counts['total']} started"]
    parts += [f"{counts[name]} {name}" for name in others]
    said = ", ".join(parts)

    is_of_deleted = try_number is not None and try_number > row.try_number
    run.is_current = entry["max_tries"] == row.max_tries and not is_of_deleted
    run.flow, run.conn_id = entry.get("flow_id"), entry.get("conn_id")
    if counts["total"]:
        run.progress = _part(1 - counts["remaining"] / counts["total"])
    run.steps = [Step(_utc(entry["at"]), "Last count", said, said)]
    if counts["unknown"]:
        run.state = State.DOUBT
    elif run.has_ended:
        run.state = State.ENDED
    else:
        run.state = State.STARTING


class _Entries(NamedTuple):
    """
    The entries of one start.

    :param message: what decides nothing: the last message, and the last call that was refused
    :param revoked_at: when its token was revoked, None if it was not
    """

    facts: Facts
    message: LastMessage
    revoked_at: datetime | None


def _tell_start(run: Conversation, entries: Mapping[str, Any], key: re.Match[str]) -> None:
    """Fill in what the entries of a start tell."""
    found = _entries_of(entries, key)
    facts = found.facts
    start, reports = facts.start, facts.reports

    run.at = start.at.astimezone(UTC)
    run.is_current = run.is_current and start.max_tries == run.row.max_tries
    state = _state(run, facts)

    response = facts.outcome and facts.outcome.run
    known = start.run or response or {}
    run.flow = start.flow_id or known.get("flow_id")
    run.conn_id = start.conn_id
    run.run_id = reports.run_id or known.get("run_id")
    run.run_link = (reports.claim and reports.claim.run_link) or known.get("run_link")
    # Only to be sure that none shows a token.
    run.callback_url = start.callback_url.partition("?")[0]
    run.mailbox = start.mailbox.partition("?")[0]
    if not reports.end:
        run.progress = found.message.progress
    run.steps = sorted(_steps(found, state), key=lambda step: step.at)
    if state is State.WAITING:
        _tell_wait(run, found)
    run.state = state


def _entries_of(entries: Mapping[str, Any], key: re.Match[str]) -> _Entries:
    """
    Return what there is of a start.

    :raises InvalidRequestError: if a person has damaged an entry
    """
    start = read_start(place_of(key), entries[key[0]], name=key[3])
    facts = facts_of(start, entries.get, name=key[3])
    if start.token is None:
        return _Entries(facts, LastMessage(), None)

    message = read_message(entries.get(message_key(start.token)))
    revoked_at = None
    revoked = revoked_key(start.token)
    if entries.get(revoked) is not None:
        revoked_at = read_entry(Revoked, revoked, entries[revoked]).at
    return _Entries(facts, message, revoked_at)


def _tell_wait(run: Conversation, found: _Entries) -> None:
    """Fill in until when the task waits, and since when its run is silent."""
    facts, start, claim = found.facts, found.facts.start, found.facts.reports.claim
    reported = [facts.since]
    if claim:
        reported.append(claim.at)
    if found.message.at:
        reported.append(found.message.at)
    last = max(reported).astimezone(UTC)

    may_be_silent = None
    if start.completion_timeout is not None:
        may_be_silent = timedelta(seconds=start.completion_timeout)
        run.until = facts.until.astimezone(UTC)
    if start.heartbeat_timeout is not None:
        may_be_silent = timedelta(seconds=start.heartbeat_timeout)
    if may_be_silent is None:
        return

    silent = last + may_be_silent / 2
    if run.until:
        silent = min(silent, run.until)
    if silent <= datetime.now(UTC):
        run.silent_since = silent


def _utc(at: str) -> datetime:
    return datetime.fromisoformat(at).astimezone(UTC)


def _part(value: Any) -> float | None:
    """Return a number from 0 to 1, None for any other value."""
    if isinstance(value, int | float) and 0 <= value <= 1:
        return value
    return None


_WAITS = (TaskInstanceState.AWAITING_INPUT, TaskInstanceState.DEFERRED)


def _state(run: Conversation, facts: Facts) -> State:
    start, outcome, reports, row = facts.start, facts.outcome, facts.reports, run.row
    if reports.stopped:
        return State.STOPPED

    names_run = outcome is not None and outcome.kind == "run" and not facts.is_revoked
    has_begun = reports.claim is not None or reports.end is not None
    # An end that came after the task had failed in doubt is kept, but the task does not have it.
    is_late = False
    if reports.end and not reports.claim and run.is_current and run.has_ended and row.end_date:
        is_late = reports.end.at > row.end_date
    if start.run or names_run or (has_begun and not is_late):
        if reports.end:
            return State.ENDED
        if run.is_current and row.state in _WAITS:
            return State.WAITING
        return State.CLAIMED if reports.claim else State.STARTED

    is_of_this_try = run.is_current and start.try_number == row.try_number
    if not outcome and is_of_this_try and row.state == TaskInstanceState.RUNNING:
        return State.STARTING
    is_idle = facts.started_nothing and not facts.start.earlier
    return State.IDLE if is_idle else State.DOUBT


def _steps(found: _Entries, state: State) -> Iterator[Step]:
    """Yield the steps: what the task did, and what the run has said and was told."""
    for step in _all_steps(found, state):
        yield step._replace(at=step.at.astimezone(UTC))


def _all_steps(found: _Entries, state: State) -> Iterator[Step]:
    facts, message = found.facts, found.message
    start, outcome, reports = facts.start, facts.outcome, facts.reports
    claim, end = reports.claim, reports.end

    if start.run:
        yield Step(start.at, "A person entered the run", start.run)
    elif outcome or state is State.STARTING:
        yield Step(start.at, "Sent")
    else:
        yield Step(start.at, "Sent. No response was recorded")
    if outcome:
        yield Step(outcome.at, _RESPONSES[outcome.kind], outcome.reason or outcome.run)

    if claim:
        yield Step(claim.at, "Claimed by the run", claim.run_id, "claimed")
    if message.at:
        said = None
        if not end:
            said = message.message
        yield Step(message.at, "Last message", message.message, said)
    if message.refused_at:
        yield Step(message.refused_at, "A call was refused", message.refusal)
    if end:
        words = f"ended: {end.status}. {end.message or ''}".rstrip(" .")
        yield Step(end.at, f"Ended: {end.status}", end.message, words)
    if end and end.result is not None:
        yield Step(end.at, "Result", end.result)

    if reports.stopped:
        yield Step(reports.stopped, "Told to stop")
    if reports.refused:
        known = claim or end or start
        yield Step(known.at, "Other runs were told to stop", ", ".join(reports.refused))
    if found.revoked_at:
        yield Step(found.revoked_at, "Revoked: no run may claim it any more")
