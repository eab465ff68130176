"""The results of a batch's items, over all tries of the task."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, cast, get_args

from workflow_automation_provider.execution.record.entries import StartStatus, run_result

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Run

ItemStatus = Literal[StartStatus, "rejected", "unknown", "success", "failed", "overdue"]
"""The status of an item's result; the last three only if the batch waits."""

_ENDS: tuple[Literal["success", "failed", "overdue"], ...] = ("success", "failed", "overdue")

_WITH_RESULT = set(get_args(ItemStatus)) - {"not started"}

_BULK = ("key", "result", "message")

# How much is kept of a response without run_id, in characters: it may have up to 1 MiB.
_MAX_RESPONSE = 2000


class BatchItem(TypedDict, total=False):
    """The result of one item of a batch."""

    index: int
    """Its position in the batch, from 0."""
    key: str
    """The value of the input that the ``key`` of the batch names."""
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
    result: Any
    """What the flow returned, only if the batch waits."""
    message: str
    """What the flow said at its end, only if the batch waits."""
    why: str
    """Why no run is known, or why the run failed."""


class BatchCounts(TypedDict):
    """How many items of a batch there are, and how many have which result so far."""

    total: int
    """All items."""
    started: int
    """Items whose run was started; if the batch waits, those of them that have no other status."""
    rejected: int
    """Items that the service rejected."""
    unknown: int
    """Items whose run may have been started."""
    unidentified: int
    """Items whose run was started, but its ID is unknown."""
    not_started: int
    """Items that were not started; while the task sends, all without a result."""
    success: NotRequired[int]
    """Items whose run succeeded, only if the batch waits."""
    failed: NotRequired[int]
    """Items whose run failed, only if the batch waits."""
    overdue: NotRequired[int]
    """Items whose run has not ended in time, only if the batch waits."""


class BatchSummary(BatchCounts):
    """The result of a batch whose items are in a file: the counts, and the file."""

    path: str
    """Path or URL of the file."""


class Results:
    """The results of the items, by index, with the keys of the items that have one."""

    def __init__(self) -> None:
        self.total = 0
        """How many items there are, as counted or recorded; 0 until that is known."""
        self.are_settled = False
        """Whether they are the ends of runs, not only their starts."""
        self.keys: dict[int, str] = {}
        """By index; empty if the batch has none."""
        # JSON, which takes a fifth of the memory of dicts; empty for an item without a result.
        self._results: list[bytes] = []
        self._by_status: Counter[ItemStatus] = Counter()

    def put(self, item: BatchItem) -> None:
        """Keep the result of an item, in place of an earlier one."""
        index = item["index"]
        self._by_status[self.status(index)] -= 1
        self._by_status[item["status"]] += 1
        gap = index + 1 - len(self._results)
        self._results.extend(itertools.repeat(b"", gap))
        self._results[index] = json.dumps(item).encode()

    def get(self, index: int) -> BatchItem | None:
        """Return the result of an item, None without one."""
        if index >= len(self._results) or not self._results[index]:
            return None
        return cast("BatchItem", json.loads(self._results[index]))

    def status(self, index: int) -> ItemStatus:
        """Return the status of an item."""
        item = self.get(index)
        return item["status"] if item else "not started"

    def number_of(self, status: ItemStatus) -> int:
        """Return how many items have a status other than ``not started``."""
        return self._by_status[status]

    @property
    def counts(self) -> BatchCounts:
        """The counts so far."""
        number = self._by_status
        counts: BatchCounts = {
            "total": self.total,
            "started": number["started"],
            "rejected": number["rejected"],
            "unknown": number["unknown"],
            "unidentified": number["unidentified"],
            "not_started": self.total - sum(number[status] for status in _WITH_RESULT),
        }
        if self.are_settled:
            for status in _ENDS:
                counts[status] = number[status]

        return counts

    def with_run(self) -> Iterator[int]:
        """Yield the indexes of the items that have started a run, or may have."""
        for index in range(len(self._results)):
            if self.status(index) in ("started", "unknown", "unidentified"):
                yield index

    def in_order(self, why_not: str = "") -> Iterator[BatchItem]:
        """
        Yield the results of all items, in the order of the batch.

        :param why_not: why an item without a result was not started
        """
        for index in range(self.total):
            item = self.get(index)
            if item is None:
                item = {"index": index, "status": "not started", "why": why_not}
            if index in self.keys:
                item["key"] = self.keys[index]

            yield item

    def name_of(self, index: int) -> str:
        """Return what an item is called in the log and in the table of an error."""
        if index in self.keys:
            return f"batch[{index}] ({self.keys[index]})"
        return f"batch[{index}]"

    def without_run(self, index: int, status: ItemStatus, why: str) -> BatchItem:
        """
        Return the result of an item for which this try started no run that is known.

        One that is unknown since an earlier try stays so, unless this try knows of a run.
        """
        earlier = self.get(index)
        starts_no_run = status in ("rejected", "not started")
        if earlier and earlier["status"] == "unknown" and starts_no_run:
            return earlier

        return {"index": index, "status": status, "why": why}


def without_bulk(item: BatchItem) -> BatchItem:
    """Return what is kept of an item that is written to the output: a result may have 64 KiB."""
    kept = {name: value for name, value in item.items() if name not in _BULK}
    return cast("BatchItem", kept)


def started(index: int, run: Run) -> BatchItem:
    """Return the result of an item whose run was started, without a very long response."""
    response = None
    if run.run_id is None and run.response is not None:
        response = _kept(run.response)

    fields = cast("BatchItem", run_result(run.run_id, run.run_link, response=response))
    return {"index": index, "status": "started", **fields}


def _kept(response: object) -> object:
    """Return what is kept of a response: of a very long one, its beginning as text."""
    text = json.dumps(response)
    return response if len(text) <= _MAX_RESPONSE else f"{text[:_MAX_RESPONSE]}…"
