"""
The entries of a batch in the task state store, which persist across the tries of its task instance.

:mod:`~workflow_automation_provider.execution.ledger` has the states of an item, and what a later try does. An item is
sent only while it is *open*, and is *open* only once the write that says so is durable. One write costs 14 to 190 ms,
so items share it: it records the results since the last write, and opens the next items.

**The entries** are numbered across the tries. A write adds to the last entry of this try and rewrites it; once that
has reached :data:`_MAX_ENTRY_BYTES` bytes, the next write begins another. So an entry stays well below the 64 KiB that
Airflow warns of (``[state_store] max_value_storage_bytes``), no write grows with the batch, and 100,000 items take
300 to 500 entries. An entry whose write Airflow may repeat is not rewritten: a late repeat would undo what was written
since. Each contains, besides what tells a retry from a Clear:

- ``opened``: the items that it opened, as ranges of indexes, both ends included, in order
- ``digests``: a hash of each of these items, by which a later try notices that the batch has changed
- ``results``: the results of items that this or an earlier entry opened, by index
- ``counts``: how many items of the whole batch had which result by then, for the page **Flow runs**

Results that are too many for one entry are written in several, before the next items are opened.

What a later entry says of an item replaces what an earlier one says.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from workflow_automation_provider.execution.ledger import DIGEST_BYTES, Entry, Ledger, State
from workflow_automation_provider.execution.store import TaskRecord, attempt_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_BATCH = "workflow_automation_batch"

_MAX_ENTRY_BYTES = 16 * 1024

ItemStatus = Literal["started", "unidentified", "rejected", "unknown", "not started"]
"""The status of an item's result."""


class BatchItem(TypedDict, total=False):
    """The result of one item of a batch."""

    index: int
    """Its position in the batch, from 0."""
    status: ItemStatus
    """Only ``started`` has a run that is known."""
    run_id: str
    """Identifier of the run, exactly as the service wrote it."""
    run_link: str
    """URL of the run in the application."""
    flow_id: str
    """The flow; missing if only the API key identifies it."""
    response: Any
    """The service's whole JSON response, only if it has no ``run_id``."""
    why: str
    """Why no run is known."""


STATES: Mapping[ItemStatus, State] = {
    "started": State.STARTED,
    "unidentified": State.UNIDENTIFIED,
    "rejected": State.REJECTED,
    "unknown": State.UNKNOWN,
    "not started": State.IDLE,
}
"""The state of an item in the ledger, by the status of its result."""


@dataclass(frozen=True, slots=True)
class BatchEntry(Entry):
    """
    One entry of the task state store.

    :param at: when it was last written, as ISO 8601 text in UTC
    :param results: the results of items that this or an earlier entry opened
    """

    at: str = ""
    results: Sequence[BatchItem] = ()


@dataclass(slots=True)
class _Last:
    """
    The entry that is being written, as far as it is durable.

    :param size: in bytes, about
    :param may_be_repeated: whether Airflow may write it later as it is now
    """

    number: int
    ranges: list[list[int]] = field(default_factory=list)
    digests: bytes = b""
    results: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    may_be_repeated: bool = False


class BatchRecord(TaskRecord):
    """The entries of one batch, in order."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._last = _Last(0)
        self.counts: Callable[[], Mapping[str, object]] = dict
        """Returns the counts of the batch so far."""

    def read(self, ledger: Ledger) -> Iterator[BatchEntry]:
        """
        Read what was written since the last Clear into a ledger, and yield it.

        To be read to the end before anything is written.
        """
        self._last = _Last(0)
        while fields := self._get(self._key(self._last.number)):
            entry = _entry(fields)
            if not ledger.read(entry):
                return
            self._last = _Last(self._last.number + 1)
            yield entry

    @property
    def place(self) -> str:
        """The names of the entries; empty if there are none."""
        last = self._last.number - (not self._last.size)
        names = [self._key(number) for number in sorted({0, last}) if last >= 0]
        return " to ".join(names) if self.outlives_try else ""

    def write(self, opened: Sequence[tuple[int, bytes]], results: Sequence[BatchItem]) -> None:
        """
        Record results, and open items; both are durable once this returns.

        :param opened: the items and their digests, which may be sent from then on
        :param results: of items that were opened earlier
        :raises Exception: if it could not be written, also because the task instance now belongs to another
            process: then nothing is opened, and the results are to be written again
        """
        part: list[BatchItem] = []
        size = 0
        for item in results:
            length = _size_of(item)
            if part and size + length > _MAX_ENTRY_BYTES:
                self._add((), part)
                part, size = [], 0
            part.append(item)
            size += length
        self._add(opened, part)

    def _add(self, opened: Sequence[tuple[int, bytes]], results: Sequence[BatchItem]) -> None:
        if self._last.size >= _MAX_ENTRY_BYTES or (self._last.size and self._last.may_be_repeated):
            # In one step: two, with an interruption between them, could skip a number, and reading ends at a gap.
            self._last = _Last(self._last.number + 1)
        last = self._last
        ranges = _ranges(last.ranges, [index for index, _ in opened])
        digests = b"".join((last.digests, *(digest for _, digest in opened)))
        more = {str(item["index"]): {k: v for k, v in item.items() if k != "index"} for item in results}
        last.may_be_repeated = True  # unless it succeeds at once
        last.may_be_repeated = self._set(
            self._key(last.number),
            {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "opened": ranges,
                "digests": base64.b64encode(digests).decode(),
                "results": {**last.results, **more},
                "counts": {**self.counts()},
            },
        )
        last.ranges, last.digests = ranges, digests
        last.results.update(more)
        last.size += _size_of(more) + len(opened) * DIGEST_BYTES * 4 // 3

    def _key(self, number: int) -> str:
        return f"{_BATCH}_{number}"


def _entry(fields: dict[str, Any]) -> BatchEntry:
    results = [cast("BatchItem", {"index": int(index), **item}) for index, item in fields["results"].items()]
    return BatchEntry(
        attempt_of(fields),
        _with_digests(fields["opened"], base64.b64decode(fields["digests"])),
        [(item["index"], STATES[item["status"]]) for item in results],
        fields["at"],
        results,
    )


def _size_of(value: object) -> int:
    return len(json.dumps(value))


def _ranges(ranges: Sequence[Sequence[int]], indexes: Sequence[int]) -> list[list[int]]:
    """Return ranges, both ends included, with more indexes at their end, in the same order."""
    longer = [[*ends] for ends in ranges]
    for index in indexes:
        if longer and index == longer[-1][1] + 1:
            longer[-1][1] = index
        else:
            longer.append([index, index])
    return longer


def _with_digests(ranges: Sequence[Sequence[int]], digests: bytes) -> list[tuple[int, bytes]]:
    indexes = [index for first, last in ranges for index in range(first, last + 1)]
    return [
        (index, digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES])
        for number, index in enumerate(indexes)
    ]
