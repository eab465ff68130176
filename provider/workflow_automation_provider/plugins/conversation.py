"""
What the entries of a task tell people about its runs, without a database and without HTML.

The task and the endpoint read the entries by the same :mod:`~workflow_automation_provider.execution.ledger`.
Anybody who may edit a task can write an entry: one that cannot be read makes its start *unknown*.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow.utils.state import State as TaskState
from airflow.utils.state import TaskInstanceState

from workflow_automation_provider.execution.batch_record import BATCH
from workflow_automation_provider.execution.errors import how_to_continue
from workflow_automation_provider.execution.ledger import (
    OUTCOME,
    START,
    START_KEY,
    Facts,
    Outcome,
    Spoken,
    Start,
    frozen_key,
    place_of,
    run_key,
    word_key,
)

_RESPONSES = {
    "run": "Response: a run was started",
    "nothing": "Response: nothing was started",
    "unidentified": "Response: a run was started, but not which",
}


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
    :param is_current: whether it is the last start of its name, and not from before a Clear
    :param until: when the wait ends, None if the task does not wait
    :param silent_since: since when the run is late, or has said nothing for half the time that it may; None if it is not
    """

    row: Any
    at: datetime
    state: State = State.UNKNOWN
    name: str = ""
    try_number: int = 0
    is_current: bool = True
    flow: Any = None
    conn_id: Any = None
    run_id: Any = None
    run_link: Any = None
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
        return next((step for step in reversed(self.steps) if step.said is not None), None)

    @property
    def pressure(self) -> tuple[int, datetime]:
        """How pressing it is: failed in doubt, otherwise in doubt, silent for longest, then oldest."""
        if self.state is State.DOUBT:
            return (0 if self.has_ended else 1), self.at
        return (2, self.silent_since) if self.silent_since else (3, self.at)

    def matches(self, words: str) -> bool:
        """Return whether one of its texts has these words."""
        ids = (self.row.dag_id, self.row.task_id, self.row.rendered_map_index)
        texts = filter(
            None, (self.flow, self.run_id, self.name, self.last and self.last.said, *ids)
        )
        return words.casefold() in "\n".join(map(str, texts)).casefold()

    @property
    def advice(self) -> str:
        """What a person can do now."""
        ended, failed = self.has_ended, self.row.state == TaskInstanceState.FAILED
        look = "Look in the workflow's list of runs. " * (self.state is State.DOUBT)
        if ended and not self.try_number:
            return f"{look}A Clear starts all items again. Correct any rejected ones, and start those without a run in a new batch."
        if self.state is State.UNKNOWN:
            return "An entry of this start cannot be read here: the task's log and its tab Storage have more."
        if look and not ended:
            return f"{look}The task's log says what its next try does."
        if look and failed and not self.run_id:
            return f"{look}If none was started, clear the task.\nIf one was started, {how_to_continue(name=self.name)}"
        if failed and self.run_id and self.state is not State.STOPPED:
            return f"If this run is to go on, {how_to_continue(str(self.run_id), self.name)}"
        if ended:
            return "The task has ended: a Clear starts another run."
        if self.state is State.WAITING:
            return "The task goes on once the run says its end. If the run cannot, mark the task as success or failed."
        return "Nothing to do: the task goes on by itself."


def conversations(row: Any, entries: Mapping[str, Any]) -> list[Conversation]:
    """
    Return a task's starts, in order, and its batch; one whose entry is too large or not ours is *unknown*.

    :param row: columns of the task instance
    :param entries: the values of its entries, None where one cannot be read
    """
    # A task that is queued has not begun.
    at = row.start_date or row.date
    starts = sorted(filter(None, map(START_KEY.fullmatch, entries)), key=place_of)
    last = {key[3]: key for key in starts}
    runs = []
    for key in starts:
        is_last = last[key[3]] is key
        run = Conversation(
            row=row, at=at, name=key[3] or "", try_number=int(key[1]), is_current=is_last
        )
        with contextlib.suppress(Exception):
            _tell_start(run, entries, key)
        runs.append(run)
    if BATCH in entries:
        runs.append(Conversation(row=row, at=at))
        with contextlib.suppress(Exception):
            _tell_batch(runs[-1], entries[BATCH])
    return runs


def _tell_batch(run: Conversation, entry: Mapping[str, Any]) -> None:
    """Fill in what the last entry of a batch tells."""
    counts = {**entry["counts"]}
    if (run.row.state, run.row.try_number) != (TaskInstanceState.RUNNING, entry.get("try_number")):
        # Of a try that was killed: it may have sent them.
        counts["unknown"] += (lost := entry.get("in_flight", 0))
        counts["remaining"] -= lost
    others = [
        f"{counts[name]} {name}" for name in ("rejected", "unknown", "remaining") if counts[name]
    ]
    said = ", ".join([f"{counts['started']} of {counts['total']} started", *others])
    run.is_current = entry["max_tries"] == run.row.max_tries
    run.flow, run.conn_id = entry.get("flow_id"), entry.get("conn_id")
    run.progress = _part(1 - counts["remaining"] / counts["total"]) if counts["total"] else None
    run.steps = [Step(_utc(entry["at"]), "Last count", said, said)]
    run.state = (
        State.DOUBT if counts["unknown"] else State.ENDED if run.has_ended else State.STARTING
    )


def _tell_start(run: Conversation, entries: Mapping[str, Any], key: re.Match[str]) -> None:
    """Fill in what the entries of a start tell."""
    start = Start.of(place_of(key), entries[key[0]])
    if start is None:
        return
    said, word, frozen = (
        {**entries.get(of(start.token), {})} if start.token else {}
        for of in (run_key, word_key, frozen_key)
    )
    outcome = {**entries.get(f"{OUTCOME}{key[0].removeprefix(START)}", {})}
    facts = Facts(
        start=start,
        outcome=Outcome.of(outcome) if outcome else None,
        spoken=Spoken.of(said),
        is_frozen=start.token is not None and frozen_key(start.token) in entries,
    )
    state, claim = _state(run, facts), facts.spoken.claim
    ids = {**((facts.outcome and facts.outcome.run) or {}), **(start.run or {})}
    run.at = start.at.astimezone(UTC)
    run.is_current &= start.max_tries == run.row.max_tries
    run.flow, run.conn_id = start.flow_id or ids.get("flow_id"), start.conn_id
    run.run_id = facts.spoken.run_id or ids.get("run_id")
    run.run_link = (claim and claim.run_link) or ids.get("run_link")
    run.progress = None if facts.spoken.end else _part(word.get("progress"))
    steps = (Step(at.astimezone(UTC), *said) for at, *said in _steps(facts, state, word, frozen))
    run.steps = sorted(steps, key=lambda step: step.at)
    if state is State.WAITING:
        waiting = run.row.next_kwargs["waiting"]
        since, run.until = (_utc(waiting[name]) for name in ("since", "until"))
        may_be_silent = (
            timedelta(seconds=waiting["silence"]) if waiting.get("silence") else run.until - since
        )
        silent = min(run.steps[-1].at + may_be_silent / 2, run.until)
        run.silent_since = silent if silent <= datetime.now(UTC) else None
    run.state = state


def _utc(at: str) -> datetime:
    return datetime.fromisoformat(at).astimezone(UTC)


def _part(value: Any) -> float | None:
    """Return a number from 0 to 1, None for any other value."""
    return value if isinstance(value, int | float) and 0 <= value <= 1 else None


def _state(run: Conversation, facts: Facts) -> State:
    start, outcome, spoken, row = facts.start, facts.outcome, facts.spoken, run.row
    # An end that came after the task had failed in doubt is kept, but the task does not have it.
    is_late = bool(spoken.end and run.has_ended and row.end_date and spoken.end.at > row.end_date)
    is_known = outcome is not None and outcome.kind == "run" and not facts.is_frozen
    if spoken.stopped:
        return State.STOPPED
    if start.run or is_known or spoken.claim or (spoken.end and not is_late):
        if spoken.end:
            return State.ENDED
        if row.state == TaskInstanceState.AWAITING_INPUT:
            return State.WAITING
        return State.CLAIMED if spoken.claim else State.STARTED
    if (
        not outcome
        and row.state == TaskInstanceState.RUNNING
        and start.try_number == row.try_number
    ):
        return State.STARTING
    is_idle = facts.started_nothing and not facts.start.earlier
    return State.IDLE if is_idle else State.DOUBT


def _steps(
    facts: Facts, state: State, word: dict[str, Any], frozen: dict[str, Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield the steps: what the task did, and what the run has said and was told."""
    start, outcome, spoken = facts.start, facts.outcome, facts.spoken
    claim, end = spoken.claim, spoken.end
    sent = "Sent" if outcome or state is State.STARTING else "Sent. No response was recorded"
    yield start.at, "A person entered the run" if start.run else sent, start.run
    if outcome:
        yield outcome.at, _RESPONSES[outcome.kind], outcome.reason or outcome.run
    if claim:
        yield claim.at, "Claimed by the run", claim.run_id, "claimed"
    if word:
        text = word.get("message", "")
        yield _utc(word["at"]), "Last word", text, None if end else text
    if end:
        words = f"ended: {end.status}. {end.message or ''}".rstrip(" .")
        texts = {"message": end.message, "result": end.result}
        yield (
            end.at,
            f"Ended: {end.status}",
            {k: v for k, v in texts.items() if v is not None},
            words,
        )
    if spoken.stopped:
        yield spoken.stopped, "Told to stop"
    if spoken.refused:
        yield (claim or end or start).at, "Other runs were told to stop", ", ".join(spoken.refused)
    if facts.is_frozen:
        yield _utc(frozen["at"]), "Closed: no run may claim it any more"
