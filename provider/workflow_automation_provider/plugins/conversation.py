"""
What the entries of a task tell people about its runs, without a database and without HTML.

The task and the endpoint read the entries by the same
:mod:`~workflow_automation_provider.execution.starts.ledger`. Anybody who may edit a task can write
an entry: one that cannot be read makes its start *unknown*.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow.utils.state import State as TaskState
from airflow.utils.state import TaskInstanceState

from workflow_automation_provider.execution.batch.batch_record import BATCH
from workflow_automation_provider.execution.starts.entries import (
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
)
from workflow_automation_provider.execution.starts.ledger import Facts, facts_of

_RESPONSES = {
    "run": "Response: a run was started",
    "nothing": "Response: nothing was started",
    "unidentified": "Response: a run was started, but not which",
}


def is_suspended(row: Any) -> bool:
    """Return whether a task waits without a worker: for a call of its run, or for its mailbox."""
    return row.state in (TaskInstanceState.AWAITING_INPUT, TaskInstanceState.DEFERRED)


class State(enum.Enum):
    """What is known of a run, in the order in which people should look."""

    DOUBT = "in doubt"
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    IDLE = "not started"
    STARTING = "starting"
    STARTED = "started"
    CLAIMED = "claimed"
    WAITING = "waiting"
    ENDED = "ended"


class Step(NamedTuple):
    """
    A step of the conversation, as the page shows it.

    :param report: what the run has reported, in short, None for any other step
    """

    at: datetime
    title: str
    text: Any = None
    report: Any = None


class Adoptable(NamedTuple):
    """
    The runs that a task can continue with, as :func:`~.ledger.why_not` decides for each.

    :param is_possible: whether there can be one
    :param only: their ids, empty if it may be any
    :param never: ids of runs that it cannot continue with
    """

    is_possible: bool = False
    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()

    def takes(self, run_id: str) -> bool:
        """Return whether the task can continue with a run."""
        is_named = not self.only or run_id in self.only
        return self.is_possible and is_named and run_id not in self.never


NOT_ADOPTABLE = Adoptable()


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
    :param is_unidentified: whether a run was started, and it is not known which
    :param asks: whether its run can ask Airflow, and so be told to stop
    :param adoptable: the runs that the task can continue with
    :param given: the run that a person has given the task, and which it has not yet continued with
    :param has_given_entry: whether there is an entry of a person, also one that names no run
    :param end: how the run ended, as it reported; empty if it has not
    :param at_label: what happened at ``at``
    :param callback_url: where the run calls Airflow, without its token
    :param mailbox: where the run writes its end, in place of a call
    :param until: when the wait ends, None if the task does not wait
    :param silent_since: since when the run is late, or has reported nothing for half the time that
        it may; None if it is not
    :param output_path: the file with the results of a batch
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
    is_unidentified: bool = False
    asks: bool = False
    adoptable: Adoptable = NOT_ADOPTABLE
    given: str | None = None
    has_given_entry: bool = False
    end: str = ""
    callback_url: Any = None
    mailbox: Any = None
    at_label: str = "Sent"
    progress: float | None = None
    until: datetime | None = None
    silent_since: datetime | None = None
    output_path: Any = None
    steps: list[Step] = field(default_factory=list)

    @property
    def is_batch(self) -> bool:
        """Whether it is a batch."""
        return not self.try_number

    @property
    def has_ended(self) -> bool:
        """Whether Airflow does nothing more with the task, until a person does."""
        return self.row.state is not None and self.row.state in TaskState.finished

    @property
    def last(self) -> Step | None:
        """The last step in which the run reported something."""
        reports = [step for step in self.steps if step.report is not None]
        return reports[-1] if reports else None

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
        row = self.row
        texts = [self.flow, self.run_id, self.name]
        texts += [row.dag_id, row.run_id, row.task_id, row.rendered_map_index]
        if self.last:
            texts.append(self.last.report)
        found = "\n".join(str(text) for text in texts if text)
        return words.casefold() in found.casefold()


def conversations(row: Any, entries: Mapping[str, Any]) -> list[Conversation]:
    """
    Return a task's starts, in order, and its batch.

    A start whose entry is too large or not ours is *unknown*.

    :param row: columns of the task instance
    :param entries: the values of its entries, None where one cannot be read
    """
    # A task that is queued has not begun.
    at = row.start_date or row.date
    starts = starts_of(entries)
    last = _last_by_name(starts, row.try_number)
    facts: dict[str, list[Facts | None]] = {}
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
        known = None
        with contextlib.suppress(Exception):
            known = _fill_start(run, entries, key)

        facts.setdefault(run.name, []).append(known)
        runs.append(run)

    for run in runs:
        if run.is_last:
            with contextlib.suppress(Exception):
                run.has_given_entry = adopted_key(run.name) in entries
                run.given = _given(entries, run.name)
                run.adoptable = adoptable(facts[run.name])

    if BATCH in entries:
        run = Conversation(row=row, at=at)
        with contextlib.suppress(Exception):
            _fill_batch(run, entries[BATCH])

        runs.append(run)

    return runs


def starts_of(keys: Iterable[str]) -> list[re.Match[str]]:
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


def _given(entries: Mapping[str, Any], name: str) -> str | None:
    """Return the id of the run that a person has given a start, None if there is none."""
    entry = entries.get(adopted_key(name))
    run_id = entry.get("run_id") if isinstance(entry, Mapping) else entry
    if isinstance(run_id, bool) or not isinstance(run_id, str | int):
        return None
    return str(run_id).strip() or None


def adoptable(starts: Sequence[Facts | None]) -> Adoptable:
    """
    Return which runs a task can continue with.

    :param starts: what is known of all its starts, in order, None of one that cannot be read
    """
    *others, last = starts
    if last is None or None in others:
        return Adoptable()
    if last.start.token is None:
        return Adoptable(is_possible=True)

    reports = last.reports
    if reports.stopped or len(reports.run_ids) > 1:
        return Adoptable()

    never = frozenset(reports.refused)
    only = frozenset(reports.run_ids or last.known_ids)
    if only:
        return Adoptable(only=only, never=never, is_possible=not only <= never)

    # Any run may be that of the last start, if no other start has one that is unknown.
    known = [other for other in others if other]
    if not last.may_have_unknown_run or any(other.may_have_unknown_run for other in known):
        return Adoptable()

    return Adoptable(is_possible=True, never=never.union(*(other.known_ids for other in known)))


# Entries ----------------------------------------------------------------------------------------


def _fill_batch(run: Conversation, entry: Mapping[str, Any]) -> None:
    """Fill in what the last entry of a batch tells."""
    run.at_label = "Recorded"
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
    text = ", ".join(parts)

    is_of_deleted = try_number is not None and try_number > row.try_number
    run.is_current = entry["max_tries"] == row.max_tries and not is_of_deleted
    run.flow = entry.get("flow_id")
    run.conn_id = entry.get("conn_id")
    run.output_path = entry.get("output_path")
    if counts["total"]:
        run.progress = _part(1 - counts["remaining"] / counts["total"])

    run.steps = [Step(_utc(entry["at"]), "Last count", text, text)]
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


def _fill_start(run: Conversation, entries: Mapping[str, Any], key: re.Match[str]) -> Facts | None:
    """Fill in what the entries of a start say; return it, None if a person has damaged it."""
    found = _entries_of(entries, key)
    facts = found.facts
    start, reports = facts.start, facts.reports

    run.at = start.at.astimezone(UTC)
    if start.run:
        run.at_label = "Given"
    run.is_current = run.is_current and start.max_tries == run.row.max_tries
    state = _state(run, found)

    response = facts.outcome and facts.outcome.run
    known = start.run or response or {}
    run.flow = start.flow_id or known.get("flow_id")
    run.conn_id = start.conn_id
    run.asks = start.asks
    run.is_unidentified = facts.outcome is not None and facts.outcome.kind == "unidentified"
    run.run_id = reports.run_id or known.get("run_id")
    run.run_link = (reports.claim and reports.claim.run_link) or known.get("run_link")
    # Only to be sure that none shows a token.
    run.callback_url = start.callback_url.partition("?")[0]
    run.mailbox = start.mailbox.partition("?")[0]
    if reports.end:
        run.end = reports.end.status
    else:
        run.progress = found.message.progress

    run.steps = sorted(_steps(found, state), key=lambda step: step.at)
    if state is State.WAITING:
        _fill_wait(run, found)

    run.state = state
    return facts


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


def _fill_wait(run: Conversation, found: _Entries) -> None:
    """Fill in until when the task waits, and since when its run is silent."""
    facts, start = found.facts, found.facts.start
    last = facts.last_report_at(found.message).astimezone(UTC)

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


def _state(run: Conversation, found: _Entries) -> State:
    facts, row = found.facts, run.row
    start, outcome, reports = facts.start, facts.outcome, facts.reports
    if reports.stopped:
        return State.STOPPED

    is_revoked = found.revoked_at is not None
    names_run = outcome is not None and outcome.kind == "run" and not is_revoked
    has_begun = reports.claim is not None or reports.end is not None
    # An end that came after the task had failed in doubt is kept, but the task does not have it.
    is_late = False
    if reports.end and not reports.claim and run.is_current and run.has_ended and row.end_date:
        is_late = reports.end.at > row.end_date

    if start.run or names_run or (has_begun and not is_late):
        if reports.end:
            return State.ENDED
        if run.is_current and is_suspended(row):
            return State.WAITING
        return State.CLAIMED if reports.claim else State.STARTED

    is_of_this_try = run.is_current and start.try_number == row.try_number
    if not outcome and is_of_this_try and row.state == TaskInstanceState.RUNNING:
        return State.STARTING

    is_idle = facts.started_nothing and not start.earlier
    return State.IDLE if is_idle else State.DOUBT


def _steps(found: _Entries, state: State) -> Iterator[Step]:
    """Yield the steps: what the task did, and what the run reported and was told."""
    for step in _all_steps(found, state):
        yield step._replace(at=step.at.astimezone(UTC))


def _all_steps(found: _Entries, state: State) -> Iterator[Step]:
    facts, message = found.facts, found.message
    start, outcome, reports = facts.start, facts.outcome, facts.reports
    claim, end = reports.claim, reports.end

    if start.run:
        yield Step(start.at, "A person gave the task this run", start.run)
    elif outcome or state is State.STARTING:
        yield Step(start.at, "Sent")
    else:
        yield Step(start.at, "Sent. No response was recorded")

    if outcome:
        yield Step(outcome.at, _RESPONSES[outcome.kind], outcome.reason or outcome.run)

    if claim:
        yield Step(claim.at, "Claimed by the run", claim.run_id, "claimed")

    if message.at:
        report = None
        if not end:
            report = message.message
        yield Step(message.at, "Last message", message.message, report)

    if message.refused_at:
        yield Step(message.refused_at, "A call was refused", message.refusal)
    if end:
        report = f"ended: {end.status}. {end.message or ''}".rstrip(" .")
        yield Step(end.at, f"Ended: {end.status}", end.message, report)
    if end and end.result is not None:
        yield Step(end.at, "Result", end.result)

    if reports.stopped:
        yield Step(reports.stopped, "Stopped: the run is no longer wanted")
    if reports.refused:
        known = claim or end or start
        yield Step(known.at, "Other runs were stopped", ", ".join(reports.refused))
    if found.revoked_at:
        yield Step(found.revoked_at, "Revoked: no run may claim this start")
