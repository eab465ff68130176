"""Per-item results of a batch, in batch order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict

from workflow_automation_provider.execution.batch.errors import BatchState
from workflow_automation_provider.execution.ledger import State

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch_state import BatchItem, BatchRecord
    from workflow_automation_provider.execution.ledger import Ledger

# What people read in a log or a notification: the rest is in the output file.
_MAX_ROWS, _MAX_WIDTH = 20, 160


class BatchCounts(TypedDict):
    """How many items of a batch there are, and how many have which result so far."""

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


class ItemResults:
    """
    The result of each item.

    :param ledger: has the state of each item
    """

    total: int = 0
    """How many items there are."""
    is_read: bool = False
    """Whether all is known that earlier tries recorded."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._results: dict[int, bytes] = {}  # as JSON, which takes a fifth of the memory of dicts

    def read(self, record: BatchRecord) -> bool:
        """Read what earlier tries recorded, also into the ledger; return whether that is anything."""
        is_any = False
        for entry in record.read(self.ledger):
            is_any = True
            number = entry.attempt.try_number
            why = f"Try {number} ended before its outcome was known, at {entry.at} or later."
            for index, _ in entry.opened:
                self.put({"index": index, "status": "unknown", "why": why})
            self.put(*entry.results)
        self.is_read = True
        return is_any

    def put(self, *items: BatchItem) -> None:
        """Keep the results of items, in place of earlier ones."""
        for item in items:
            self._results[item["index"]] = json.dumps(item).encode()

    def why(self, index: int) -> str:
        """Return why no run of an item is known."""
        return self._get(index).get("why", "") if index in self._results else ""

    def run_ids(self) -> Iterator[str]:
        """Yield the ids of the runs that were started."""
        for index in self._results:
            if run_id := self._get(index).get("run_id"):
                yield run_id

    def numbers(self) -> Counter[State]:
        """Return how many items are in each state; those that only this try opened are *idle* until settled."""
        numbers = self.ledger.counts()
        numbers[State.UNKNOWN] += numbers.pop(State.OPEN, 0) - self.ledger.newly_open
        return numbers

    @property
    def counts(self) -> BatchCounts:
        """The counts so far."""
        numbers = self.numbers()
        started, rejected = numbers[State.STARTED], numbers[State.REJECTED]
        unknown = numbers[State.UNKNOWN] + numbers[State.UNIDENTIFIED]
        return {
            "total": self.total,
            "started": started,
            "rejected": rejected,
            "unknown": unknown,
            "remaining": self.total - started - rejected - unknown,
        }

    def in_order(self, why_not: str = "") -> Iterator[BatchItem]:
        """
        Yield the results of all items, in the order of the batch.

        :param why_not: why the items without a result were not started
        """
        for index in range(max(self.total, self.ledger.count)):
            if index in self._results:
                yield self._get(index)
            else:
                yield {"index": index, "status": "not started", "why": why_not}

    def table(self) -> str:
        """Return a table of the first failed items with reasons, those that were not started left out."""
        items = map(self._get, sorted(self._results))
        failed = [item for item in items if item["status"] not in ("started", "not started")]
        rows = []
        for item in failed[:_MAX_ROWS]:
            row = f"batch[{item['index']}]  {item['status']}: {' '.join(item.get('why', '').split())}"
            rows.append(row if len(row) <= _MAX_WIDTH else f"{row[: _MAX_WIDTH - 1]}…")
        if len(failed) > _MAX_ROWS:
            rows.append(f"… and {len(failed) - _MAX_ROWS} more.")
        return "\n".join(rows)

    def state(self, record: BatchRecord, **more: Any) -> BatchState:
        """Return what an error says of the items."""
        return BatchState(
            counts=self.counts,
            unidentified=self.numbers()[State.UNIDENTIFIED],
            table=self.table(),
            place=record.place,
            is_unread=record.is_later_try and not self.is_read,
            **more,
        )

    def _get(self, index: int) -> BatchItem:
        item: BatchItem = json.loads(self._results[index])
        return item
