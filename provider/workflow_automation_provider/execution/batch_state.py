"""
The entries of a batch in the task state store, which persist across the tries of its task instance.

:mod:`~workflow_automation_provider.execution.ledger` has the states of an item, and what a later try does. An item is
sent only while it is *open*, and is *open* only once the write that says so is durable. One write costs 14 to 190 ms,
so items share it: it records the results since the last write, and opens the next items.

**The entries** are numbered across the tries. Each write has one of its own, which no other write changes: so a repeat of it by
Airflow, however late, undoes nothing. Each contains, besides what tells a retry from a Clear:

- ``opened``: the items that it opened, as ranges of indexes, both ends included, in order
- ``digests``: a hash of each of these items, by which a later try notices that the batch has changed
- ``results``: the results of items that this or an earlier entry opened, by index
- ``counts``: how many items of the whole batch had which result by then, for the page **Flow runs**

Results of more than :data:`_MAX_ENTRY_BYTES` bytes are written in several entries, before the next items are opened. So an entry
stays well below the 64 KiB that Airflow warns of (``[state_store] max_value_storage_bytes``).

What a later entry says of an item replaces what an earlier one says.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from workflow_automation_provider.execution.ledger import DIGEST_BYTES, Entry, Ledger, State
from workflow_automation_provider.execution.store import TaskRecord, attempt_of

if TYPE_CHECKING:
    from airflow.sdk import Context

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


class BatchRecord(TaskRecord):
    """The entries of one batch, in order."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._written = 0  # entries
        self.counts: Callable[[], Mapping[str, object]] = dict
        """Returns the counts of the batch so far."""

    def read(self, ledger: Ledger) -> Iterator[BatchEntry]:
        """
        Read what was written since the last Clear into a ledger, and yield it.

        To be read to the end before anything is written.
        """
        self._written = 0
        while fields := self._read(self._key(self._written)):
            entry = _entry(fields)
            if not ledger.read(entry):
                return
            self._written += 1
            yield entry

    @property
    def place(self) -> str:
        """The names of the entries; empty if there are none."""
        if not self._written or not self.outlives_try:
            return ""
        return " to ".join(self._key(number) for number in sorted({0, self._written - 1}))

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
        indexes = [index for index, _ in opened]
        fields = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "opened": _ranges(indexes),
            "digests": base64.b64encode(b"".join(digest for _, digest in opened)).decode(),
            "results": {
                str(item["index"]): {k: v for k, v in item.items() if k != "index"} for item in results
            },
            "counts": {**self.counts()},
        }
        self._set(self._key(self._written), fields)
        # Only once it is durable: reading ends at a gap. Who was interrupted before writes all of it again.
        self._written += 1

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


def _ranges(indexes: Sequence[int]) -> list[list[int]]:
    """Return ranges of indexes, both ends included, in the same order."""
    ranges: list[list[int]] = []
    for index in indexes:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges


def _with_digests(ranges: Sequence[Sequence[int]], digests: bytes) -> list[tuple[int, bytes]]:
    indexes = [index for first, last in ranges for index in range(first, last + 1)]
    return [
        (index, digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES])
        for number, index in enumerate(indexes)
    ]
