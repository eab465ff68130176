"""What earlier tries recorded of a batch, and whether it is still the same batch."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.batch_state import DIGEST_BYTES

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.report import Outcomes
    from workflow_automation_provider.execution.batch.source import Item
    from workflow_automation_provider.execution.batch_state import BatchRecord

__all__ = ["EarlierTries"]

_SAME_BATCH = (
    "Pass the same batch in every try, such as a file that is written once; items may be added at its end.\n"
    "A Clear starts all items again."
)


class EarlierTries:
    """
    The items that earlier tries opened; in memory are eight bytes per item.

    :param record: what the task instance knows about the batch
    :param outcomes: gets what is known of the items
    """

    def __init__(self, record: BatchRecord, outcomes: Outcomes) -> None:
        self.are_known = False
        self._outcomes = outcomes
        # The number of the try that opened the item last, 0 if none did.
        self._tries = array("H")
        self._digests = bytearray()
        for entry in record.read():
            self.are_known = True
            for index, digest in entry.opened:
                self._open(index, digest, entry.try_number)
                if index not in entry.results:
                    why = (
                        f"Try {entry.try_number} ended before its outcome was known, at {entry.at} or later."
                    )
                    outcomes.put({"index": index, "status": "unknown", "why": why})
            for item in entry.results.values():
                outcomes.put(item)

    def check(self, item: Item) -> None:
        """
        Check that an item is the one that an earlier try sent, if one did.

        :raises InvalidRequestError: if it is another one
        """
        index = item.index
        if self._was_sent(index) and self._digest(index) != item.digest:
            raise InvalidRequestError(
                f"{item.place} has other inputs than in try {self._tries[index]}, which sent it, or the flow_id changed.",
                consequence="Nothing was sent in this try.",
                next_step=_SAME_BATCH,
            )

    def check_length(self, length: int) -> None:
        """
        Check that all items that were sent are still in the batch.

        :raises InvalidRequestError: if it has become shorter
        """
        for index in range(length, len(self._tries)):
            if self._was_sent(index):
                raise InvalidRequestError(
                    f"batch has {length} items, and batch[{index}], which try {self._tries[index]} sent, is missing.",
                    consequence="Nothing was sent in this try.",
                    next_step=_SAME_BATCH,
                )

    def _open(self, index: int, digest: bytes, try_number: int) -> None:
        missing = index + 1 - len(self._tries)
        if missing > 0:
            self._tries.extend([0] * missing)
            self._digests.extend(bytes(missing * DIGEST_BYTES))
        self._tries[index] = try_number
        self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] = digest

    def _digest(self, index: int) -> bytes:
        return bytes(self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES])

    def _was_sent(self, index: int) -> bool:
        return (
            index < len(self._tries)
            and self._tries[index] > 0
            and self._outcomes.status(index) != "not started"
        )
