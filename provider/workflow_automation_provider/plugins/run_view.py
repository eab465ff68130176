"""
What the entries of a task tell people about its runs, without a database and without HTML.

The task and the endpoint read the entries by the same
:mod:`~workflow_automation_provider.execution.record.start_decision`. Anybody who may edit a task
can write an entry: one that cannot be read makes its start *unreadable*.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from workflow_automation_provider.execution.batch.batch_record import BATCH
from workflow_automation_provider.execution.batch.summary import counts_text
from workflow_automation_provider.execution.record.entries import (
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
from workflow_automation_provider.execution.record.start_decision import KnownStart, known_start
from workflow_automation_provider.plugins.task_starts import (
    KnownBatch,
    RunStatus,
    TaskNow,
    TaskStart,
    state_of,
)

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.item_results import BatchCounts

_RESPONSES = {
    "started": "Response: a run was started",
    "not started": "Response: nothing was started",
    "unidentified": "Response: a run was started, but not which",
}

_NOTHING_KNOWN = KnownBatch()


class Step(NamedTuple):
    """
    A step of the conversation, as the page shows it.

    :param report: what the run has reported, in short, None for any other step
    """

    at: datetime
    title: str
    text: Any = None
    report: Any = None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """
    A start of a task and its run, or a batch. Texts from entries may be of any type.

    :param row: columns of the task instance
    :param task: the same, as :mod:`~.task_starts` reads them
    :param at: when it was sent
    :param state: what is known of its run
    :param is_current: whether it still says something of the task
    :param steps: what is known, in the order in which it happened
    :param progress: a part of 1
    :param start: the start, None of a batch
    :param until: when the wait for the run or the batch ends, None if the task does not wait
    :param silent_since: since when the run is late, or has reported nothing for half the time that
        it may; None if it is not
    :param entry: the last entry of a batch
    :param batch: what is known of a batch, as :mod:`~.task_starts` reads it
    """

    row: Any
    task: TaskNow
    at: datetime
    state: RunStatus = RunStatus.UNREADABLE
    is_current: bool = True
    steps: Sequence[Step] = ()
    progress: float | None = None
    start: TaskStart | None = None
    until: datetime | None = None
    silent_since: datetime | None = None
    entry: Mapping[str, Any] | None = None
    batch: KnownBatch = _NOTHING_KNOWN

    @property
    def flow(self) -> Any:
        """The flow, None if only the API key identifies it."""
        return self.start.run.get("flow_id") if self.start else (self.entry or {}).get("flow_id")

    @cached_property
    def last(self) -> Step | None:
        """The last step in which the run reported something."""
        reports = [step for step in self.steps if step.report is not None]
        return reports[-1] if reports else None

    @property
    def is_uncertain(self) -> bool:
        """Whether a person has to look for its run."""
        return self.state in (RunStatus.DOUBT, RunStatus.UNREADABLE)

    @property
    def pressure(self) -> tuple[int, datetime]:
        """
        How pressing it is, the least first.

        A task that failed in doubt comes before any other doubt, then the run that is silent for
        longest, then the oldest.
        """
        if self.state is RunStatus.DOUBT and self.task.has_ended:
            return 0, self.at
        if self.state is RunStatus.DOUBT:
            return 1, self.at
        if self.silent_since:
            return 2, self.silent_since

        return 3, self.at

    def matches(self, words: str) -> bool:
        """Return whether one of its texts has these words."""
        row = self.row
        texts = [self.flow, row.dag_id, row.run_id, row.task_id, row.rendered_map_index]
        if self.start:
            texts += [self.start.run_id, self.start.name]
        if self.last:
            texts.append(self.last.report)
        found = "\n".join(str(text) for text in texts if text)
        return words.casefold() in found.casefold()


# Starts -------------------------------------------------------------------------------------------


def run_views(row: Any, task: TaskNow, entries: Mapping[str, Any]) -> list[RunView]:
    """
    Return a task's starts, in order, and its batch.

    A start whose entry is not ours is *unreadable*.

    :param row: columns of the task instance
    :param entries: the values of its entries, None where one cannot be read
    """
    found = [*_starts(row, task, entries)]
    if BATCH in entries:
        found.append(_batch(row, task, entries[BATCH]))
    return found


def _starts(row: Any, task: TaskNow, entries: Mapping[str, Any]) -> Iterator[RunView]:
    keys = _starts_of(entries)
    last = _last_by_name(keys, task.try_number)
    before: dict[str | None, list[KnownStart | None]] = {}
    for key in keys:
        known = _known(entries, key)
        is_last = last[key[3]] is key
        others = before.setdefault(key[3], [])
        start = TaskStart(
            try_number=int(key[1]),
            known=known,
            name=key[3] or "",
            others=tuple(others) if is_last else (),
            is_last=is_last,
            given=entries.get(adopted_key(key[3])) if is_last else None,
        )
        others.append(known)
        try:
            yield _start(row, task, start, entries)
        except (ArithmeticError, ValueError):  # a time that no calendar has
            yield _start(row, task, replace(start, known=None), entries)


def _start(row: Any, task: TaskNow, start: TaskStart, entries: Mapping[str, Any]) -> RunView:
    state = state_of(task, start)
    # A task that is queued has not begun.
    at = row.start_date or row.date
    steps: Sequence[Step] = ()
    until = silent_since = None
    message = LastMessage()
    if start.known:
        token = start.known.start.token_hash or ""
        message = read_message(entries.get(message_key(token)))
        at = start.known.start.at.astimezone(UTC)
        found_steps = _steps(start.known, message, _revoked_at(entries, token), state)
        in_utc = [step._replace(at=step.at.astimezone(UTC)) for step in found_steps]
        steps = sorted(in_utc, key=lambda step: step.at)
    if start.known and state is RunStatus.WAITING:
        until = start.known.until.astimezone(UTC)
        silent_since = _silent_since(start.known, message)

    return RunView(
        row=row,
        task=task,
        at=at,
        state=state,
        is_current=start.counts(task),
        steps=steps,
        progress=None if start.end else message.progress,
        start=start,
        until=until,
        silent_since=silent_since,
    )


def _silent_since(known: KnownStart, message: LastMessage) -> datetime | None:
    """Return since when a run that is waited for is silent, None if it is not."""
    start = known.start
    may_be_silent = start.heartbeat_timeout
    if may_be_silent is None:
        may_be_silent = start.completion_timeout or 0

    silent = known.last_report_at(message) + timedelta(seconds=may_be_silent / 2)
    silent = min(silent, known.until).astimezone(UTC)
    return silent if silent <= datetime.now(UTC) else None


def _starts_of(keys: Iterable[str]) -> list[re.Match[str]]:
    """Return the matches of the keys of starts, in order."""
    matches = (START_KEY.fullmatch(key) for key in keys)
    return sorted((match for match in matches if match), key=lambda key: (place_of(key), key[0]))


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


def _known(entries: Mapping[str, Any], key: re.Match[str]) -> KnownStart | None:
    """Return what is known of a start, None if a person has damaged an entry."""
    with contextlib.suppress(Exception):
        start = read_start(place_of(key), entries[key[0]], name=key[3])
        known = known_start(start, entries.get, name=key[3])
        revoked_at = _revoked_at(entries, start.token_hash or "")
        return known._replace(is_revoked=revoked_at is not None)

    return None


def _revoked_at(entries: Mapping[str, Any], token: str) -> datetime | None:
    """
    Return when a token was revoked, None if it was not.

    :param token: its hash, empty if there is none
    :raises InvalidRequestError: if a person has damaged the entry
    """
    key = revoked_key(token)
    if entries.get(key) is None:
        return None
    return read_entry(Revoked, key, entries[key]).at


def _steps(
    known: KnownStart, message: LastMessage, revoked_at: datetime | None, state: RunStatus
) -> Iterator[Step]:
    """Yield the steps: what the task did, and what the run reported and was told."""
    start, outcome, reports = known.start, known.outcome, known.reports
    claim, end = reports.claim, reports.end

    if start.run:
        yield Step(start.at, "A person gave the task this run", start.run)
    elif outcome or state is RunStatus.STARTING:
        yield Step(start.at, "Sent")
    else:
        yield Step(start.at, "Sent. No response was recorded")

    if outcome:
        yield Step(outcome.at, _RESPONSES[outcome.status], outcome.reason or outcome.run)

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
        then = claim or end or start
        yield Step(then.at, "Other runs were stopped", ", ".join(reports.refused))
    if revoked_at:
        yield Step(revoked_at, "Revoked: no run may claim this start")


# A batch ------------------------------------------------------------------------------------------


def _batch(row: Any, task: TaskNow, entry: Any) -> RunView:
    """Return what the last entry of a batch tells: of one that cannot be read, nothing."""
    at = row.start_date or row.date
    with contextlib.suppress(Exception):
        return _read_batch(row, task, at, entry)
    return RunView(row=row, task=task, at=at)


def _read_batch(row: Any, task: TaskNow, at: datetime, entry: Mapping[str, Any]) -> RunView:
    try_number = entry.get("try_number")
    counts = _count_items(task, entry)
    known = KnownBatch(folder=entry.get("folder", ""), has_ends="success" in counts)
    others = "not started" if task.has_ended else "to go"
    text = counts_text(counts, others)
    if "ended" in entry:
        text = f"{text} {entry['ended']} runs have ended."

    state = RunStatus.ENDED if task.has_ended else RunStatus.STARTING
    if "ended" in entry and not task.has_ended:
        state = RunStatus.WAITING
    elif counts["unknown"] or counts["unidentified"]:
        state = RunStatus.DOUBT

    progress = until = None
    if not task.has_ended:
        progress = _part_done(counts, entry)
    if known.folder and not task.has_ended:
        until = datetime.fromisoformat(entry["until"]).astimezone(UTC)

    is_of_deleted = try_number is not None and try_number > task.try_number
    recorded = datetime.fromisoformat(entry["at"]).astimezone(UTC)
    return RunView(
        row=row,
        task=task,
        at=at,
        state=state,
        is_current=entry["max_tries"] == task.max_tries and not is_of_deleted,
        steps=[Step(recorded, "Last count", text, text)],
        entry=entry,
        batch=known,
        progress=progress,
        until=until,
    )


def _count_items(task: TaskNow, entry: Mapping[str, Any]) -> BatchCounts:
    """Return how many items of a batch there are of each kind, as far as its last entry tells."""
    counts = cast("BatchCounts", {**entry["counts"]})
    is_of_this_try = task.state == "running" and task.try_number == entry.get("try_number")
    if not is_of_this_try:
        # One that was killed may have sent what was being sent.
        in_flight = entry.get("in_flight", 0)
        counts["unknown"] += in_flight
        counts["not_started"] -= in_flight

    return counts


def _part_done(counts: BatchCounts, entry: Mapping[str, Any]) -> float | None:
    """Return how far a batch is, as a part of the whole, None if it has no items."""
    total = counts["total"]
    done = total - counts["not_started"]
    if "ended" in entry:
        # An item whose run is not known is settled by its end.
        total = counts["started"] + counts["unknown"] + counts["unidentified"]
        done = entry["ended"]

    return done / total if total else None
