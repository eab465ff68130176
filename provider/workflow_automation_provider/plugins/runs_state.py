"""
What the page **Flow runs** says of a task's entries: no I/O, and nothing of Airflow.

An entry counts if it has the task instance's ``max_tries``, which a Clear changes. The entries are those of
:mod:`~workflow_automation_provider.execution.start_record`, ``wait_state``, ``batch_record`` and ``callback``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from workflow_automation_provider.execution.callback import (
    START_KEY,
    WAIT_KEY,
    claim_key,
    end_key,
    receipt_key,
    word_key,
)
from workflow_automation_provider.plugins.runs_metadata import PREFIX, Entry, FlowTask

_PARKED = "awaiting_input"

ENDED = ("success", "failed", "removed", "skipped", "upstream_failed")
"""States of a task that has ended."""


class RunState(enum.Enum):
    """The state of a run, as far as the task knows; in the order in which people should look."""

    DOUBT = "in doubt"
    UNIDENTIFIED = "started, but which run?"
    STOPPED = "told to stop"
    STARTING = "starting"
    STARTED = "started"
    CLAIMED = "claimed"
    WAITING = "waiting"
    SENDING = "sending a batch"
    UPLOADING = "uploading"
    ENDED = "ended"
    UNKNOWN = "unknown"


URGENT = (RunState.DOUBT, RunState.UNIDENTIFIED)
"""States in which a person should look."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """
    What a task and one of its runs have said to each other.

    :param name: of the start, empty for the one that the task is for
    :param start: the entry of the start, empty if there is none or it cannot be read
    :param claim: the run's claim, likewise
    :param word: its last word, likewise
    :param end: its answer, or a receipt of it, likewise
    :param counts: of a batch
    """

    task: FlowTask
    name: str
    state: RunState
    start: Mapping[str, Any] = field(default_factory=dict)
    claim: Mapping[str, Any] = field(default_factory=dict)
    word: Mapping[str, Any] = field(default_factory=dict)
    wait: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_urgent(self) -> bool:
        """Whether a person should look."""
        return self.state in URGENT

    @property
    def run(self) -> Mapping[str, Any]:
        """The run: what the service returned, and what the run said itself, which counts more."""
        result = self.start.get("result") if self.start.get("state") == "started" else None
        said = {name: self.claim[name] for name in ("run_id", "run_link") if self.claim.get(name)}
        return {**_object(result), **said}

    @property
    def conn_id(self) -> str:
        """The connection, empty if it is not known."""
        return _text(self.start.get("conn_id")) or _text(
            self.task.rendered.get("workflow_automation_conn_id")
        )

    @property
    def flow_id(self) -> str:
        """The flow, empty if it is not known."""
        rendered = _text(self.task.rendered.get("flow_id"))
        return _text(self.start.get("flow_id")) or _text(self.run.get("flow_id")) or rendered

    @property
    def at(self) -> datetime | None:
        """When the request was sent, or what is nearest to it."""
        return time(self.start.get("sent")) or time(self.start.get("at")) or self.task.started

    @property
    def since(self) -> datetime | None:
        """Since when the task waits."""
        return time(self.wait.get("since"))

    @property
    def has_no_url(self) -> bool:
        """Whether it is known that the run that is waited for cannot say how it ended."""
        return self.since is not None and self.wait.get("digest", "") is None

    @property
    def until(self) -> datetime | None:
        """When nobody is waited for any longer."""
        if self.task.state != _PARKED:
            return None
        timeout = self.task.parked.get("timeout")
        if isinstance(timeout, int | float) and self.since:
            try:
                return self.since + timedelta(seconds=timeout)
            except (OverflowError, ValueError):
                return None
        return None

    @property
    def last_word(self) -> tuple[str, datetime | None]:
        """What the flow said last, and when."""
        return _text(self.word.get("message")), time(self.word.get("at"))

    @property
    def progress(self) -> float | None:
        """How far the run says it is, from 0 to 1."""
        progress = self.word.get("progress")
        if not isinstance(progress, int | float) or isinstance(progress, bool):
            return None
        return float(progress) if 0 <= progress <= 1 else None


def conversations(task: FlowTask) -> list[Conversation]:
    """Return what the entries of a task tell, one for each of its starts."""
    known = [_of_start(task, key) for key in _starts(task)]
    if not any(conversation.name == "" for conversation in known):
        known.extend(_without_start(task))
    return known


def _starts(task: FlowTask) -> Iterator[str]:
    for key, entry in task.entries.items():
        if (key == START_KEY or key.startswith(f"{START_KEY}/")) and _counts(task, entry):
            yield key


def _counts(task: FlowTask, entry: Entry) -> bool:
    return entry.value is None or entry.value.get("max_tries", task.max_tries) == task.max_tries


def _of_start(task: FlowTask, key: str) -> Conversation:
    name, start = key[len(START_KEY) + 1 :], task.entries[key].value
    if name:  # none of them waits, and one task has one claim
        return Conversation(task, name, _state(task, start, {}, {}, {}), start or {})
    wait = _value(task, WAIT_KEY)
    digests = _digests(task, start or {}, wait)
    claim = _claim(task, digests)
    word = _latest(task, [word_key(digest) for digest in digests])
    end = _end(task, digests, wait)
    state = _state(task, start, claim, wait, end)
    return Conversation(task, "", state, start or {}, claim, word, wait, end)


def _without_start(task: FlowTask) -> Iterator[Conversation]:
    """Yield what there is where nothing is known of a single start."""
    batch = [entry for key, entry in task.entries.items() if key.startswith(f"{PREFIX}batch_")]
    if batch:
        value = next((entry.value for entry in reversed(batch) if entry.value), {})
        if value.get("max_tries", task.max_tries) == task.max_tries:
            counts = value.get("counts")
            numbers = {name: n for name, n in _object(counts).items() if type(n) is int}
            yield Conversation(task, "", RunState.SENDING, counts=numbers)
    elif task.state == _PARKED and WAIT_KEY in task.entries:
        yield Conversation(task, "", _state(task, None, {}, {}, {}), wait=_value(task, WAIT_KEY))
    elif any(key.startswith(f"{PREFIX}upload") for key in task.entries):
        yield Conversation(task, "", RunState.UPLOADING)


def _state(
    task: FlowTask,
    start: Mapping[str, Any] | None,
    claim: Mapping[str, Any],
    wait: Mapping[str, Any],
    end: Mapping[str, Any],
) -> RunState:
    known = (start or {}).get("state")
    if end:
        return RunState.ENDED
    if claim.get("stopped"):
        return RunState.STOPPED
    if claim and known != "started":
        return RunState.CLAIMED
    if (wait.get("since") and task.state not in ENDED) or task.state == _PARKED:
        return RunState.WAITING
    match known:
        case "starting" if task.state == "running" and (start or {}).get("try_number") == task.try_number:
            return RunState.STARTING
        case "starting":
            return RunState.DOUBT
        case "unidentified":
            return RunState.UNIDENTIFIED
        case "started":
            return RunState.CLAIMED if claim else RunState.STARTED
    return RunState.UNKNOWN


def _digests(task: FlowTask, *values: Mapping[str, Any]) -> list[str]:
    """Return the hashes of the tokens that count: by the keys, which are always known, and by their values."""
    keys = (key.split("/") for key in task.entries if key.startswith(f"{PREFIX}token/"))
    by_key = {parts[1]: None for parts in keys if parts[2:3] == [str(task.max_tries)]}
    digests = (value.get(name) for value in values for name in ("token", "digest"))
    return [*by_key, *(digest for digest in digests if isinstance(digest, str) and digest not in by_key)]


def _claim(task: FlowTask, digests: list[str]) -> Mapping[str, Any]:
    """Return the claim of the run; after a Clear, that of the run which the task kept."""
    claim = _value(task, claim_key(task.max_tries))
    # That of an earlier run stays if it was told to stop.
    if claim and ("stopped" not in claim or claim.get("digest") in digests):
        return claim
    earlier = [key for key in task.entries if key.startswith(f"{PREFIX}claim/")]
    values = (task.entries[key].value or {} for key in earlier)
    return next((value for value in values if value.get("digest") in digests), {})


def _end(task: FlowTask, digests: list[str], wait: Mapping[str, Any]) -> Mapping[str, Any]:
    if answer := _object(wait.get("answer")):
        return answer
    ends = [key for key in map(end_key, digests) if key in task.entries]
    receipt = _latest(task, [receipt_key(digest) for digest in digests])
    if ends:
        return {**receipt, **_latest(task, ends)} or {"at": task.entries[ends[0]].at.isoformat()}
    return receipt


def _value(task: FlowTask, key: str) -> Mapping[str, Any]:
    entry = task.entries.get(key)
    return entry.value or {} if entry and _counts(task, entry) else {}


def _latest(task: FlowTask, keys: list[str]) -> Mapping[str, Any]:
    entries = [task.entries[key] for key in keys if key in task.entries]
    entries = [entry for entry in entries if entry.value and _counts(task, entry)]
    return max(entries, key=lambda entry: entry.at).value or {} if entries else {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def time(value: object) -> datetime | None:
    """Return a time of an entry, None if there is none that can be read."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC) if at else None
    except (ValueError, OverflowError):
        return None
