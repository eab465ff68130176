"""
What a task instance knows of its batch: its entries in the state store.

An item is sent only after the write that *opens* it is durable, and is read back: a process that
Airflow has given up lives on, and finds nothing. One write costs 9 to 190 ms, so items share it: it
records the results since the last write, and opens the next items.

**The entries**, each a :class:`BatchEntry`, are numbered across the tries. Each write has its own
number, so one that Airflow repeats, however late, undoes nothing. The last write of a try that was
killed may be carried out only after the next try has read: that opens nothing with the first number
that it finds free.

Results of more than :data:`MAX_PART_BYTES` bytes are written in several entries, before the next
items are opened. So an entry stays well below the 64 KiB that Airflow warns of
(``[state_store] max_value_storage_bytes``).

**A later try** takes an open item without a result as *unknown*. It sends the items that are in no
entry or *not started*. With ``start_again``, it also sends the *unknown* ones, which stay unknown
if that starts no run. All others it only reports.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.batch.item_results import (
    BatchCounts,
    BatchItem,
    Results,
)
from workflow_automation_provider.execution.record.entries import Time, entry_of, read_entry
from workflow_automation_provider.execution.record.state_store import TaskRecord

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.execution.batch.source import BatchSource, Item

_log = logging.getLogger(__name__)

BATCH = "workflow_automation_batch"
"""Prefix of the keys of a batch's entries."""


class BatchEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What one write records of a batch.

    ``batch_{number}``, in six digits, from 000000. The task writes it, once, before it sends the
    items that the entry opens, or when it knows more.

    :param try_number: the try that wrote it
    :param max_tries: the task instance's: a Clear changes it, so an entry with another one no
        longer counts
    :param at: when, by the worker's clock
    :param opened: the items that it opens, by index: the hash of each, by which a later try notices
        that the batch has changed
    :param keys: what people recognize those items by, by index; empty if the batch has no ``key``
    :param results: the results of items that this or an earlier entry opened, by index
    :param counts: how many items of the whole batch had which result by then
    :param in_flight: how many were sent, or about to be, without a result
    :param conn_id: the connection by which the runs are started
    :param flow_id: the flow, None if only the API key identifies it
    :param output_path: the file with the results, None if there is none
    :param folder: to which the runs write their ends, empty if the batch does not wait. In each
        entry, so that no try can miss it and choose another
    :param until: how long the batch waits, None if it does not
    :param ended: how many runs had ended when the batch was suspended, None before that. The last
        entry has none: its counts are of the ends, once the output file has them
    """

    try_number: int
    max_tries: int
    at: Time
    opened: dict[str, str]
    results: dict[str, BatchItem]
    counts: BatchCounts
    in_flight: int
    keys: dict[str, str] = {}
    conn_id: str | None = None
    flow_id: str | None = None
    output_path: str | None = None
    folder: str = ""
    until: Time | None = None
    ended: int | None = None


MAX_PART_BYTES = 16 * 1024
"""How much an entry has of results, and of keys: Airflow warns of one with 64 KiB."""

_TARGET = ("conn_id", "flow_id", "output_path")


class BatchRecord(TaskRecord):
    """
    The entries of one batch, in order, and the results in them.

    :param start_again: whether to send an item that is unknown, and accept a second run
    """

    first_key = f"{BATCH}_{0:06}"
    """The key of the first entry."""
    was_cleared = False
    """Whether there are entries from before a Clear."""
    has_opened = False
    """Whether an earlier try has opened items, since the last Clear."""
    folder = ""
    """URL of the folder to which runs write their ends, empty if the batch does not wait."""
    until: datetime
    """How long the batch waits for them."""
    target: Mapping[str, str | None] = {}
    """The ``conn_id``, ``flow_id`` and ``output_path``, for the page **Flow runs**."""

    def __init__(self, context: Context, *, start_again: bool = False) -> None:
        super().__init__(context)
        self.start_again = start_again
        self.results = Results()
        self.number_of_entries = 0
        """How many there are, also from before a Clear."""
        self._ended: int | None = None
        self._is_read = False
        # Those that this try has opened, and that have no result yet, also not of an earlier try.
        self._in_flight: set[int] = set()
        # By index; empty for an item that is not known yet.
        self._digests: list[bytes] = []

    # Entries --------------------------------------------------------------------------------------

    @property
    def is_unread(self) -> bool:
        """Whether earlier tries may have recorded something that could not be read."""
        return self.may_have_entries and not self._is_read

    def read(self) -> None:
        """
        Read what earlier tries wrote since the last Clear, before anything is written.

        A read may find nothing where there is something: the end is where two passes find it, with
        a probe between.
        """
        self._read_on()
        if self.may_have_entries:
            number = None
            while number != self.number_of_entries:
                number = self.number_of_entries
                self.probe()
                self._read_on()

        self._is_read = True

    def _read_on(self) -> None:
        key = _key(self.number_of_entries)
        while value := self.get(key):
            entry = read_entry(BatchEntry, key, value)
            # Also past a Clear, so that no entry is ever rewritten.
            self.number_of_entries += 1
            if entry.max_tries == self._ti.max_tries:
                self._take(entry)
            else:
                self.was_cleared = True

            key = _key(self.number_of_entries)

    def _take(self, entry: BatchEntry) -> None:
        """Keep what an entry of an earlier try contains."""
        self.has_opened = True
        self.target = {name: getattr(entry, name) for name in _TARGET}
        self._ended = entry.ended
        self.results.total = entry.counts["total"]
        if entry.until:
            self.folder, self.until = entry.folder, entry.until

        at = entry.at.isoformat(timespec="seconds")
        why = f"Try {entry.try_number} ended before its outcome was known, at {at} or later."
        for index, digest in entry.opened.items():
            self.results.put({"index": int(index), "status": "unknown", "why": why})
            self._keep_digest(int(index), bytes.fromhex(digest))

        for index, key in entry.keys.items():
            self.results.keys[int(index)] = key

        for index, result in entry.results.items():
            self.results.put({"index": int(index), **result})

    def write(self, opened: Sequence[Item], results: Sequence[BatchItem]) -> None:
        """
        Record results, and open items; both are durable once this returns.

        :param opened: the items that may be sent from then on
        :param results: results of items that were opened earlier
        :raises Exception: if it could not be written, also because the task instance now belongs to
            another process: then nothing is opened, and the results are to be written again
        """
        for item in results:
            self.results.put(item)
            self._in_flight.discard(item["index"])

        *full, last = self._parts(results)
        for part in full:
            self._write_entry((), part)

        if opened or last:
            self._write_entry(opened, last)

    def write_first(self) -> None:
        """Write an entry that opens nothing: a write of an earlier try may still replace it."""
        if self.may_have_entries:
            self._write_entry((), {})

    def write_ended(self, number: int) -> None:
        """Record how many runs have ended, for the page **Flow runs**."""
        if number != self._ended:
            self._ended = number
            self._write_for_page()

    def write_ends(self) -> None:
        """Record that the ends are in the output file, for the page **Flow runs**."""
        self._ended = None
        self._write_for_page()

    def _write_for_page(self) -> None:
        """Record what decides nothing: a batch does not fail for it."""
        try:
            self._write_entry((), {})
        except Exception:
            _log.warning("How many runs have ended could not be recorded.", exc_info=True)

    def _parts(self, results: Sequence[BatchItem]) -> list[dict[str, BatchItem]]:
        """Return results by index, in parts that each fit into an entry; at least one part."""
        parts: list[dict[str, BatchItem]] = [{}]
        size = 0
        for item in results:
            fields: BatchItem = {**item}
            index = fields.pop("index")
            length = len(json.dumps(fields))
            if parts[-1] and size + length > MAX_PART_BYTES:
                parts.append({})
                size = 0

            parts[-1][str(index)] = fields
            size += length

        return parts

    def _write_entry(self, opened: Sequence[Item], results: dict[str, BatchItem]) -> None:
        # An item that is sent again is in flight as well, but the counts have it as unknown.
        indexes = {item.index for item in opened}
        self._in_flight |= {n for n in indexes if self.results.status(n) == "not started"}

        entry = BatchEntry(
            try_number=self._ti.try_number,
            max_tries=self._ti.max_tries,
            at=datetime.now(UTC).replace(microsecond=0),
            opened={str(item.index): item.digest.hex() for item in opened},
            results=results,
            counts=self.results.counts,
            in_flight=len(self._in_flight),
            keys={str(item.index): item.key for item in opened if item.key is not None},
            folder=self.folder,
            until=self.until if self.folder else None,
            ended=self._ended,
            **self.target,
        )
        key, fields = _key(self.number_of_entries), entry_of(entry)
        self.set(key, fields)
        # Only now, because reading ends where a number is missing. After an interruption, the whole
        # write is repeated under the same number.
        self.number_of_entries += 1

        if opened and self.get_written(key) != fields:
            raise RuntimeError("Airflow no longer runs this try, or has lost its record.")

    # Items ----------------------------------------------------------------------------------------

    def check(self, items: Iterable[Item]) -> int:
        """
        Check all items against what earlier tries sent; return how many are to be sent.

        :raises InvalidRequestError: if an earlier try sent one with other inputs, to another flow,
            or sent more
        """
        number = 0
        number_to_send = 0
        for item in items:
            number += 1
            was_sent = self.results.status(item.index) != "not started"
            if was_sent and not self.has(item):
                raise _changed_since_sent(
                    f"{item.label} has other inputs than an earlier try sent, or the flow_id "
                    "changed."
                )

            self._keep_digest(item.index, item.digest)
            if item.key is not None:
                self.results.keys[item.index] = item.key
            if self.must_send(item.index):
                number_to_send += 1

        if number < len(self._digests):
            raise _changed_since_sent(f"batch has {number} items, and an earlier try sent more.")

        self.results.total = number
        return number_to_send

    def has(self, item: Item) -> bool:
        """Return whether it is the item that was checked, or that an earlier try sent."""
        return item.index < len(self._digests) and self._digests[item.index] == item.digest

    @property
    def has_sent_all(self) -> bool:
        """Whether earlier tries have left nothing to send, so that the batch is not needed."""
        return self.has_opened and not any(map(self.must_send, range(self.results.total)))

    def must_send(self, index: int) -> bool:
        """
        Return whether this try has to send an item, judging by what earlier tries recorded.

        Not by what lies in the folder of a batch that waits: an end would only confirm what the
        entries say, for an item is opened before it is sent; and where there is no end, its run may
        be at work. Where a Clear has deleted the entries, the folder is forgotten with them: the
        runs of before write to it, and nobody reads what they write.
        """
        status = self.results.status(index)
        if status == "unknown":
            return self.start_again
        return status == "not started"

    def to_send(self, source: BatchSource) -> Iterator[Item]:
        """
        Yield the items that are to be sent, from a batch that was checked.

        :raises InvalidRequestError: if it has changed since then
        """
        number = 0
        for item in source:
            number += 1
            if not self.has(item):
                raise _changed_meanwhile(item.label)
            if self.must_send(item.index):
                yield item

        if number != self.results.total:
            raise _changed_meanwhile(source.label_of(number))

    def _keep_digest(self, index: int, digest: bytes) -> None:
        gap = index + 1 - len(self._digests)
        self._digests.extend(itertools.repeat(b"", gap))
        self._digests[index] = digest


def _key(number: int) -> str:
    return f"{BATCH}_{number:06}"  # so that an index of the database has them in order, too


def _changed_since_sent(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        what,
        next_step=(
            "Pass the same batch in every try, such as a file that is written once.\n"
            "Items may be added at its end."
        ),
    )


def _changed_meanwhile(label: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{label} changed while the batch was read.",
        next_step="Let the batch be complete before this task begins.",
    )
