"""
What a task instance knows of its batch: its entries in the task state store, the result of each item, and the words.

An item is sent only after the write that *opens* it is durable. One write costs 9 to 190 ms, so items share it: it records
the results since the last write, and opens the next items.

**The entries** are numbered across the tries. Each write has one of its own, which no other write changes: so a repeat of it by
Airflow, however late, undoes nothing. Each contains, besides what tells a retry from a Clear:

- ``opened``: the items that it opened, as ranges of indexes, both ends included, in order
- ``digests``: a hash of each of these items, by which a later try notices that the batch has changed
- ``results``: the results of items that this or an earlier entry opened, by index
- ``counts``: how many items of the whole batch had which result by then, ``conn_id`` and ``flow_id``: for the page
  **Flow runs**

Results of more than :data:`_MAX_ENTRY_BYTES` bytes are written in several entries, before the next items are opened. So an entry
stays well below the 64 KiB that Airflow warns of (``[state_store] max_value_storage_bytes``).

**What a later try does:** an item that is open, but has no result, is *unknown*. A later try sends what has no entry or was
*not started*, with ``start_again`` also what is *unknown*; if that starts nothing, it stays unknown. It reports the rest.
"""

from __future__ import annotations

import base64
import itertools
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch_source import DIGEST_BYTES
from workflow_automation_provider.execution.store import TaskRecord

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.batch_source import Item

_BATCH = "workflow_automation_batch"

_MAX_ENTRY_BYTES = 16 * 1024

# What people read in a log or a notification: the rest is in the output file.
_MAX_ROWS, _MAX_WIDTH = 20, 160

# How many runs a line of the log names.
_MAX_RUNS_IN_A_LINE = 200

ItemStatus = Literal["started", "unidentified", "rejected", "unknown", "not started"]
"""The status of an item's result."""

# The last one is that of an item without a result.
_STATUSES: tuple[ItemStatus, ...] = get_args(ItemStatus)
_NOT_STARTED = len(_STATUSES) - 1


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


class BatchRecord(TaskRecord):
    """
    The entries of one batch, in order, and the results of its items.

    :param start_again: whether to send an item that is unknown, and accept a second run
    :param target: ``conn_id`` and ``flow_id``, for the page **Flow runs**
    """

    total = 0
    """How many items there are, 0 until that is known."""
    was_cleared = False
    """Whether there are entries from before a Clear."""
    is_logged = False
    """Whether the log names runs that the entries do not."""

    def __init__(self, context: Context, *, start_again: bool = False, **target: str | None) -> None:
        super().__init__(context)
        self._start_again = start_again
        self._target = target
        self._written = 0  # entries
        self._is_read = False
        # By index. The results are JSON, which takes a fifth of the memory of dicts; empty without one.
        self._results: list[bytes] = []
        self._statuses = bytearray()
        self._digests: list[bytes] = []
        self._tries = array("H")  # which opened it

    # Entries ------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read what earlier tries wrote, of which counts what came since the last Clear, before anything is written."""
        while fields := self._store.read(self._key(self._written)):
            self._written += 1  # also past a Clear, so that no entry is ever rewritten
            if self._counts(fields):
                self._add_entry(fields)
            else:
                self.was_cleared = True
        self._is_read = True

    def _add_entry(self, fields: dict[str, Any]) -> None:
        number, digests = fields["try_number"], base64.b64decode(fields["digests"])
        why = f"Try {number} ended before its outcome was known, at {fields['at']} or later."
        opened = (index for first, last in fields["opened"] for index in range(first, last + 1))
        for position, index in enumerate(opened):
            self.put({"index": index, "status": "unknown", "why": why})
            self._tries[index] = number
            self._digests[index] = digests[position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES]
        for index, item in fields["results"].items():
            self.put(cast("BatchItem", {"index": int(index), **item}))

    def write(self, opened: Sequence[Item], results: Sequence[BatchItem]) -> None:
        """
        Record results, and open items; both are durable once this returns.

        :param opened: the items that may be sent from then on
        :param results: of items that were opened earlier
        :raises Exception: if it could not be written, also because the task instance now belongs to another
            process: then nothing is opened, and the results are to be written again
        """
        part: list[BatchItem] = []
        size = 0
        for item in results:
            length = len(json.dumps(item))
            if part and size + length > _MAX_ENTRY_BYTES:
                self._write_entry((), part)
                part, size = [], 0
            part.append(item)
            size += length
        if opened or part:
            self._write_entry(opened, part)

    def _write_entry(self, opened: Sequence[Item], results: Sequence[BatchItem]) -> None:
        fields = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "opened": _ranges([item.index for item in opened]),
            "digests": base64.b64encode(b"".join(item.digest for item in opened)).decode(),
            "results": {
                str(item["index"]): {k: v for k, v in item.items() if k != "index"} for item in results
            },
            "counts": self.counts,
            **self._target,
        }
        self._set(self._key(self._written), fields)
        # Only once it is durable: reading ends at a gap. Who was interrupted before writes all of it again.
        self._written += 1

    def _key(self, number: int) -> str:
        return f"{_BATCH}_{number}"

    # Items --------------------------------------------------------------------------------------------------

    def check(self, items: Iterable[Item]) -> int:
        """
        Check all items against what earlier tries sent; return how many are to be sent.

        :raises InvalidRequestError: if an earlier try sent one with other inputs, to another flow, or sent more
        """
        missing = number = 0
        for number, item in enumerate(items, start=1):  # noqa: B007 - used after the loop
            if self._status(item.index) != "not started" and not self.has(item):
                tried = self._tries[item.index]
                what = f"{item.place} has other inputs than in try {tried}, which sent it, or the flow_id changed."
                raise _changed(what)
            self._reach(item.index)
            self._digests[item.index] = item.digest
            missing += self.is_missing(item)
        for index in range(number, len(self._statuses)):
            if self._status(index) != "not started":
                sent = f"batch[{index}], which try {self._tries[index]} sent,"
                raise _changed(f"batch has {number} items, and {sent} is missing.")
        self.total = number
        return missing

    def has(self, item: Item) -> bool:
        """Return whether it is the item that was checked, or that an earlier try sent."""
        return item.index < len(self._digests) and self._digests[item.index] == item.digest

    def is_missing(self, item: Item) -> bool:
        """Return whether an item is to be sent, of which nothing is known by this try."""
        status = self._status(item.index)
        return status == "not started" or (status == "unknown" and self._start_again)

    def of_all_tries(self, item: BatchItem) -> BatchItem:
        """Return an item's result in all tries: of a start in doubt, one that starts nothing says nothing."""
        index = item["index"]
        if self._status(index) != "unknown" or item["status"] not in ("rejected", "not started"):
            return item
        why = self._get(index)["why"]
        if item["status"] == "rejected":
            why = OutcomeUnknownError(f"{why} Later rejected: {item['why']}").reason
        return {"index": index, "status": "unknown", "why": why}

    def put(self, item: BatchItem) -> None:
        """Keep the result of an item, in place of an earlier one."""
        index = item["index"]
        self._reach(index)
        self._results[index] = json.dumps(item).encode()
        self._statuses[index] = _STATUSES.index(item["status"])

    def _reach(self, index: int) -> None:
        """Have room for an item."""
        while len(self._tries) <= index:
            self._results.append(b"")
            self._statuses.append(_NOT_STARTED)
            self._digests.append(b"")
            self._tries.append(0)

    def run_ids(self) -> Iterator[str]:
        """Yield the ids of the runs that were started."""
        for item in self.in_order():
            if run_id := item.get("run_id"):
                yield run_id

    def number_of(self, status: ItemStatus) -> int:
        """Return how many items have a status; those that only this try opened have none."""
        return self._statuses.count(_STATUSES.index(status))

    @property
    def counts(self) -> BatchCounts:
        """The counts so far."""
        started, rejected = self.number_of("started"), self.number_of("rejected")
        unknown = self.number_of("unknown") + self.number_of("unidentified")
        return {
            "total": self.total,
            "started": started,
            "rejected": rejected,
            "unknown": unknown,
            "remaining": self.total - started - rejected - unknown,
        }

    def in_order(self, why_not: str = "") -> Iterator[BatchItem]:
        """Yield the results of all items, in the order of the batch; those without one were not started, and why not."""
        for index, found in enumerate(itertools.islice(self._results, self.total or None)):
            item: BatchItem = {"index": index, "status": "not started", "why": why_not}
            yield json.loads(found) if found else item

    def _status(self, index: int) -> ItemStatus:
        return _STATUSES[self._statuses[index] if index < len(self._statuses) else _NOT_STARTED]

    def _get(self, index: int) -> BatchItem:
        item: BatchItem = json.loads(self._results[index])
        return item

    # Words --------------------------------------------------------------------------------------------------

    def told(
        self, error: WorkflowAutomationError, *, is_stopped: bool = False, output_path: str | None = None
    ) -> WorkflowAutomationError:
        """
        Return an error with what this and earlier tries did, and where the results are.

        :param is_stopped: whether the batch ended early
        :param output_path: the file with the results, if it was written
        """
        counts, consequence, accepted = self.counts, error.consequence, error.accepted
        if self.total:
            if self.total > counts["remaining"] or is_stopped:
                consequence = counts_text(counts)
        elif counts["remaining"]:  # below 0: the batch could not be read, but earlier tries are known
            consequence = f"{consequence}\nItems of earlier tries: {_results_text(counts)}."
        if self._is_unread:
            consequence += "\nEarlier tries may have started runs: what they recorded could not be read."
        if not isinstance(error, OutcomeUnknownError):
            accepted = Accepted.MAYBE if counts["unknown"] or self._is_unread else Accepted.NO
            if counts["started"] or self.number_of("unidentified"):
                accepted = Accepted.YES
        look = "Look in the workflow's list of runs." * bool(counts["unknown"] or self._is_unread)
        lines = (self._table(), error.next_step, look, self.where(output_path))
        return error.with_facts(
            accepted=accepted, consequence=consequence, next_step="\n".join(filter(None, lines))
        )

    def where(self, output_path: str | None = None) -> str:
        """Say where the runs are, if there are any."""
        if output_path:
            return f"The result of each item is in {without_credentials(output_path)}."
        if self._is_unread:
            return (
                f"The runs of earlier tries are in the task's state store ({self._key(0)} and the next ones)."
            )
        if not self.number_of("started") + self.counts["unknown"]:
            return ""
        if not self._written or not self.outlives_try:
            return "The log names the runs."
        place = " to ".join(map(self._key, sorted({0, self._written - 1})))
        return f"The runs are in the task's state store ({place}){' and in the log' * self.is_logged}."

    def worst(self, *, fails_if_rejected: bool) -> WorkflowAutomationError | None:
        """Return the error for the worst results of items, None if there are none."""
        if unknown := self.number_of("unknown"):
            what = "the run of 1 item was" if unknown == 1 else f"runs of {unknown} items were"
            return OutcomeUnknownError(f"It is unknown whether {what} started.")
        if number := self.number_of("unidentified"):
            what = "The run of 1 item was started, but its id is unknown."
            several = f"Runs of {number} items were started, but their ids are unknown."
            return UnidentifiedError(what if number == 1 else several)
        if fails_if_rejected and (rejected := self.number_of("rejected")):
            return RejectedError(f"The service rejected {rejected} item{'s' * (rejected > 1)}.")
        return None

    def log_runs(self, log: Logger, items: Iterable[BatchItem]) -> None:
        """Name runs in the log, where no entry does."""
        named = (
            f"batch[{item['index']}]: {_name(item)}" for item in items if item["status"] != "not started"
        )
        while line := ", ".join(itertools.islice(named, _MAX_RUNS_IN_A_LINE)):
            log.info("Runs: %s", one_line(line))
        self.is_logged = True

    @property
    def _is_unread(self) -> bool:
        """Whether earlier tries may have recorded more, which could not be read."""
        return self.is_later_try and not self._is_read

    def _table(self) -> str:
        """Return a table of the first failed items with reasons, those that were not started left out."""
        failed = [item for item in self.in_order() if item["status"] not in ("started", "not started")]
        rows = []
        for item in failed[:_MAX_ROWS]:
            row = f"batch[{item['index']}]  {item['status']}: {' '.join(item.get('why', '').split())}"
            rows.append(row if len(row) <= _MAX_WIDTH else f"{row[: _MAX_WIDTH - 1]}…")
        if len(failed) > _MAX_ROWS:
            rows.append(f"… and {len(failed) - _MAX_ROWS} more.")
        return "\n".join(rows)


def _changed(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        what,
        consequence="Nothing was sent in this try.",
        next_step="Pass the same batch in every try, such as a file that is written once; items may be added at its end.",
    )


def counts_text(counts: BatchCounts) -> str:
    """Say how many items are in which state."""
    return f"Of {counts['total']} items: {_results_text(counts)}, {counts['remaining']} not started."


def _results_text(counts: BatchCounts) -> str:
    return f"{counts['started']} started, {counts['rejected']} rejected, {counts['unknown']} unknown"


def _name(item: BatchItem) -> str:
    return json.dumps(item["response"]) if "response" in item else item.get("run_id", item["status"])


def _ranges(indexes: Sequence[int]) -> list[list[int]]:
    """Return ranges of indexes, both ends included, in the same order."""
    ranges: list[list[int]] = []
    for index in indexes:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges
