"""The items of a batch that are in flight: only this module keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.results import BatchItem
    from workflow_automation_provider.execution.batch.source import Item


@dataclass(eq=False)
class Job:
    """An item in flight: from the write that opens it to the one that records its result."""

    item: Item
    may_be_sent: bool = False
    """Whether a thread is sending its request, so that a run may have been started."""
    result: BatchItem | None = None
    """The result over all tries, None until it is known."""

    @property
    def index(self) -> int:
        """The position of the item in the batch."""
        return self.item.index


class InFlight:
    """
    The items in flight.

    Only the main thread adds and removes them; the threads that send set their results.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, items: Iterable[Item]) -> list[Job]:
        """Add items that a write is about to open."""
        jobs = [Job(item) for item in items]
        for job in jobs:
            self._jobs[job.index] = job
        return jobs

    def remove(self, results: Iterable[BatchItem]) -> None:
        """Remove the items whose results were recorded."""
        for item in results:
            del self._jobs[item["index"]]

    def indexes(self) -> list[int]:
        """Return the positions of the items in the batch."""
        return list(self._jobs)

    def without_result(self) -> list[Job]:
        """Return the items that have no result yet."""
        return [job for job in self._jobs.values() if not job.result]

    def results(self) -> list[BatchItem]:
        """Return the results that are not recorded yet."""
        return [job.result for job in self._jobs.values() if job.result]

    def has_requests_under_way(self) -> bool:
        """Return whether an item without a result may have been sent."""
        return any(job.may_be_sent for job in self.without_result())
