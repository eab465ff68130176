"""What became of the items of a batch: kept outside of memory, and told in the order of the batch."""

from __future__ import annotations

import json
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self, TypedDict, cast, get_args

from workflow_automation_provider.execution.batch_state import BatchItem, ItemStatus

__all__ = ["BatchCounts", "BatchSummary", "Outcomes"]

# What people read in a log or a notification: the rest is in the output file.
_TABLE_ROWS, _TABLE_WIDTH = 20, 160

_STATUSES: tuple[ItemStatus, ...] = get_args(ItemStatus)


class BatchCounts(TypedDict):
    """How many items of a batch there are, and what became of them so far."""

    total: int
    """All items."""
    started: int
    """Items whose run was started."""
    rejected: int
    """Items that the service rejected."""
    unknown: int
    """Items whose run may have been started, or was started but cannot be identified."""
    remaining: int
    """Items that were not started."""


class BatchSummary(BatchCounts):
    """The result of a batch whose items are in a file: the keys of :class:`BatchCounts`, and the file."""

    path: str
    """Path or URL of the file."""


class Outcomes:
    """What became of each item, in a temporary file; in memory are nine bytes per item."""

    total: int = 0
    """How many items there are."""

    def __init__(self) -> None:
        self._file = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115 - closed by __exit__
        self._end = 0
        # Where the item's line begins, plus 1; 0 if there is none.
        self._at = array("Q")
        self._status = bytearray()
        self._counts: Counter[ItemStatus] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, item: BatchItem) -> None:
        """Keep what became of an item, in place of what was known of it before."""
        index, line = item["index"], json.dumps(item).encode() + b"\n"
        if index >= len(self._at):
            more = index + 1 - len(self._at)
            self._at.extend([0] * more)
            self._status.extend(bytes(more))
        if known := self.status(index):
            self._counts[known] -= 1
        self._counts[item["status"]] += 1
        self._file.seek(self._end)
        self._file.write(line)
        self._at[index] = self._end + 1
        self._status[index] = _STATUSES.index(item["status"]) + 1
        self._end += len(line)

    def status(self, index: int) -> ItemStatus | None:
        """Return what became of an item, None if nothing is known."""
        code = self._status[index] if index < len(self._status) else 0
        return _STATUSES[code - 1] if code else None

    def why(self, index: int) -> str:
        """Return why an item has no run, or none that is known."""
        return self._get(index).get("why", "")

    def run_ids(self) -> Iterator[str]:
        """Yield the ids of the runs that were started."""
        for index in range(len(self._at)):
            if self.status(index) == "started" and (run_id := self._get(index).get("run_id")):
                yield run_id

    def number(self, *statuses: ItemStatus) -> int:
        """Return how many items have one of these statuses."""
        return sum(self._counts[status] for status in statuses)

    @property
    def counts(self) -> BatchCounts:
        """The counts so far."""
        started, rejected = self.number("started"), self.number("rejected")
        unknown = self.number("unknown", "unidentified")
        return {
            "total": self.total,
            "started": started,
            "rejected": rejected,
            "unknown": unknown,
            "remaining": self.total - started - rejected - unknown,
        }

    def in_order(self, why_not: str = "") -> Iterator[BatchItem]:
        """
        Yield what became of all items, in the order of the batch.

        :param why_not: why nothing is known of the others: they were not started
        """
        for index in range(self.total):
            if self.status(index):
                yield self._get(index)
            else:
                yield {"index": index, "status": "not started", "why": why_not}

    def table(self) -> str:
        """Return the items that have no known run, but for those that were not started, and why: the first ones."""
        rows = []
        told = [
            index
            for index, code in enumerate(self._status)
            if code and _STATUSES[code - 1] not in ("started", "not started")
        ]
        for index in told[:_TABLE_ROWS]:
            item = self._get(index)
            row = f"batch[{index}]  {item['status']}: {' '.join(item.get('why', '').split())}"
            rows.append(row if len(row) <= _TABLE_WIDTH else f"{row[: _TABLE_WIDTH - 1]}…")
        if len(told) > _TABLE_ROWS:
            rows.append(f"… and {len(told) - _TABLE_ROWS} more.")
        return "\n".join(rows)

    def _get(self, index: int) -> BatchItem:
        self._file.seek(self._at[index] - 1)
        item: BatchItem = json.loads(self._file.readline())
        return item
