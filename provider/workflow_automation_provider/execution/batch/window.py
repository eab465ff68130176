"""
Which items of a batch may be sent, and when the record of it is to be written. No I/O, no threads.

The window is the number of items that may be in flight: opened by a write, and without a recorded result.
After a kill, these are the ones of which the next try knows nothing.

.. code-block:: text

    not opened → [open: waiting → being sent → settled] → recorded
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch_state import BatchItem

# Seconds after which results are recorded even if few: what a kill would leave unknown.
_MAX_UNRECORDED = 1.0


class Window:
    """
    The open items of a batch.

    :param size: how many may be in flight
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: set[int] = set()
        self._settled: dict[int, BatchItem] = {}
        self._unrecorded_since: float | None = None
        self._settled_during_write = size // 4

    @property
    def open(self) -> int:
        """How many items are open: opened, and without a recorded result."""
        return len(self._open)

    @property
    def sent_or_waiting(self) -> int:
        """How many items are open and not settled."""
        return len(self._open) - len(self._settled)

    @property
    def room(self) -> int:
        """How many items the next write may open, since it also records all results so far."""
        return self._size - self.sent_or_waiting

    def settle(self, item: BatchItem, now: float) -> None:
        """
        Note the result of an open item.

        :raises ValueError: if it is not open, or is settled already
        """
        index = item["index"]
        if index not in self._open or index in self._settled:
            raise ValueError(f"Item {index} is not open.")
        self._settled[index] = item
        if self._unrecorded_since is None:
            self._unrecorded_since = now

    def is_due(self, waiting: int, now: float, *, more: bool) -> bool:
        """
        Return whether to write now: as seldom as possible, but before there is nothing left to send.

        :param waiting: how many open items are not being sent yet
        :param more: whether there are items to be opened
        """
        if self._unrecorded_since is not None and now - self._unrecorded_since >= _MAX_UNRECORDED:
            return True
        if not more:
            return bool(self._settled) and not self.sent_or_waiting
        if not self.room:
            return False
        # While the next write takes place, about as many items will be sent as during the last one.
        return len(self._settled) >= self._size / 2 or waiting <= self._settled_during_write

    def take_results(self) -> list[BatchItem]:
        """Return the results that the next write records."""
        return list(self._settled.values())

    def written(self, opened: list[int], recorded: list[BatchItem], settled_meanwhile: int) -> None:
        """
        Note that a write is durable.

        :param opened: the items that it opened
        :param recorded: the results that it recorded
        :param settled_meanwhile: how many items were settled while it took place
        """
        for item in recorded:
            self._open.discard(item["index"])
            self._settled.pop(item["index"], None)
        self._open.update(opened)
        self._unrecorded_since = None
        self._settled_during_write = settled_meanwhile
