"""Per-item results of a batch, spooled to a temporary database and reported in batch order."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

from workflow_automation_provider.execution.ledger import State
from workflow_automation_provider.failures.batch import BatchState

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
    The result of each item; in memory are only the ledger, and up to 2 MB of the database.

    :param ledger: has the state of each item
    """

    total: int = 0
    """How many items there are."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        # Without a name, SQLite keeps it in its cache, and what does not fit in a file that it deletes by itself.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE results (item INTEGER PRIMARY KEY, status TEXT, result TEXT)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

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
        return is_any

    def put(self, *items: BatchItem) -> None:
        """Keep the results of items, in place of earlier ones."""
        rows = ((item["index"], item["status"], json.dumps(item)) for item in items)
        self._database.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)

    def why(self, index: int) -> str:
        """Return why no run of an item is known."""
        for item in self._select("WHERE item = ?", index):
            return item.get("why", "")
        return ""

    def run_ids(self) -> Iterator[str]:
        """Yield the ids of the runs that were started."""
        for item in self._select("WHERE status = 'started'"):
            if run_id := item.get("run_id"):
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
        following = 0
        for item in self._select("ORDER BY item"):
            yield from _not_started(range(following, item["index"]), why_not)
            yield item
            following = item["index"] + 1
        yield from _not_started(range(following, self.total), why_not)

    def table(self) -> str:
        """Return a table of the first failed items with reasons, those that were not started left out."""
        failed = "WHERE status NOT IN ('started', 'not started')"
        ((number,),) = self._database.execute(f"SELECT COUNT(*) FROM results {failed}")  # noqa: S608
        rows = []
        for item in self._select(f"{failed} ORDER BY item LIMIT {_MAX_ROWS}"):
            row = f"batch[{item['index']}]  {item['status']}: {' '.join(item.get('why', '').split())}"
            rows.append(row if len(row) <= _MAX_WIDTH else f"{row[: _MAX_WIDTH - 1]}…")
        if number > _MAX_ROWS:
            rows.append(f"… and {number - _MAX_ROWS} more.")
        return "\n".join(rows)

    def state(self, record: BatchRecord, **more: Any) -> BatchState:
        """Return what an error says of the items."""
        return BatchState(
            counts=self.counts,
            unidentified=self.numbers()[State.UNIDENTIFIED],
            table=self.table(),
            place=record.place,
            **more,
        )

    def _select(self, condition: str, *values: object) -> Iterator[BatchItem]:
        for (result,) in self._database.execute(f"SELECT result FROM results {condition}", values):  # noqa: S608
            item: BatchItem = json.loads(result)
            yield item


def _not_started(indexes: Iterable[int], why: str) -> Iterator[BatchItem]:
    for index in indexes:
        yield {"index": index, "status": "not started", "why": why}
