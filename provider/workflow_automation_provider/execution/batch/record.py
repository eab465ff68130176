"""
What a task instance knows of its batch: its entries in the state store, and each item's result.

An item is sent only after the write that *opens* it is durable. One write costs 9 to 190 ms, so
items share it: it records the results since the last write, and opens the next items.

**The entries** are numbered across the tries. Each write has its own, so one that Airflow repeats,
however late, undoes nothing. Each entry contains, besides what tells a retry from a Clear:

- ``opened``: the items that it opened, by index, each with a hash, by which a later try notices
  that the batch has changed
- ``results``: the results of items that this or an earlier entry opened, by index
- ``counts``: how many items of the whole batch had which result by then, how many were
  ``in_flight``, ``conn_id``, ``flow_id`` and ``output_path``: for the page **Flow runs**

Results of more than :data:`_MAX_ENTRY_BYTES` bytes are written in several entries, before the next
items are opened. So an entry stays well below the 64 KiB that Airflow warns of
(``[state_store] max_value_storage_bytes``).

**A later try** takes an open item without a result as *unknown*. It sends what has no entry or is
*not started*, with ``start_again`` also *unknown* ones, which stay so if that starts nothing. It
reports the rest.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    Code,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.store import TaskRecord

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from workflow_automation_provider.client.protocol import Run
    from workflow_automation_provider.execution.batch.source import BatchSource, Item

BATCH = "workflow_automation_batch"
"""Prefix of the keys of a batch's entries."""

_MAX_ENTRY_BYTES = 16 * 1024

# Rejections that the next item would meet as well: they are about the key, the flow or the URL,
# not the inputs.
_ENDS_BATCH = frozenset({401, 402, 404, 405, 407, 410})

# What people read in a log or a notification: the rest is in the output file.
_MAX_ROWS = 20
_MAX_WIDTH = 160

# How much is kept of a response without run_id, in characters: it may have up to 1 MiB.
_MAX_RESPONSE = 2000

# How many runs a line of the log names.
_MAX_RUNS_IN_A_LINE = 200

ItemStatus = Literal["started", "unidentified", "rejected", "unknown", "not started"]
"""The status of an item's result."""


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
    """The result of a batch whose items are in a file: the counts, and the file."""

    path: str
    """Path or URL of the file."""


class BatchRecord(TaskRecord):
    """
    The entries of one batch, in order, and the results of its items.

    :param start_again: whether to send an item that is unknown, and accept a second run
    """

    total = 0
    """How many items there are, 0 until that is known."""
    was_cleared = False
    """Whether there are entries from before a Clear."""
    output_path: str | None = None
    """The file with the results, once it was written."""
    target: Mapping[str, str | None] = {}
    """The ``conn_id`` and ``flow_id``, for the page **Flow runs**."""

    def __init__(self, context: Context, *, start_again: bool = False) -> None:
        super().__init__(context)
        self.start_again = start_again
        self._written = 0  # entries
        self._is_read = False
        # By index. The results are JSON, which takes a fifth of the memory of dicts; empty without
        # one.
        self._results: list[bytes] = []
        self._digests: list[bytes] = []
        # By index, too; empty if the batch has none.
        self._keys: dict[int, str] = {}
        self._by_status: Counter[ItemStatus] = Counter()

    # Entries --------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read what earlier tries wrote since the last Clear, before anything is written."""
        while fields := self.find(self._key(self._written)):
            self._written += 1  # also past a Clear, so that no entry is ever rewritten
            if fields["max_tries"] != self._ti.max_tries:
                self.was_cleared = True
                continue
            why = (
                f"Try {fields['try_number']} ended before its outcome was known, "
                f"at {fields['at']} or later."
            )
            for index, digest in fields["opened"].items():
                self.put({"index": int(index), "status": "unknown", "why": why})
                self._digests[int(index)] = bytes.fromhex(digest)
            for index, item in fields["results"].items():
                result = {name: value for name, value in item.items() if name != "key"}
                self.put(cast("BatchItem", {"index": int(index), **result}))
                if "key" in item:
                    # Until the batch has been read, and if it cannot be.
                    self._keys[int(index)] = item["key"]
        self._is_read = True

    def write(
        self,
        opened: Sequence[Item],
        results: Sequence[BatchItem],
        *,
        in_flight: Sequence[int] = (),
    ) -> None:
        """
        Record results, and open items; both are durable once this returns.

        :param opened: the items that may be sent from then on
        :param results: results of items that were opened earlier
        :param in_flight: the indexes of the items that were opened earlier and have no result yet
        :raises Exception: if it could not be written, also because the task instance now belongs to
            another process: then nothing is opened, and the results are to be written again
        """
        for item in results:
            self.put(item)

        part: dict[str, Any] = {}
        size = 0
        for item in results:
            fields = {**self._with_key(item)}
            del fields["index"]
            length = len(json.dumps(fields))
            if part and size + length > _MAX_ENTRY_BYTES:
                self._write_entry((), part, in_flight)
                part = {}
                size = 0
            part[str(item["index"])] = fields
            size += length
        if opened or part:
            self._write_entry(opened, part, in_flight)

    def _write_entry(
        self, opened: Sequence[Item], results: dict[str, Any], in_flight: Sequence[int]
    ) -> None:
        # One that is sent again is counted as unknown.
        indexes = [*in_flight, *(item.index for item in opened)]
        uncounted = [index for index in indexes if self._status(index) == "not started"]
        fields = {
            "try_number": self._ti.try_number,
            "max_tries": self._ti.max_tries,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "opened": {str(item.index): item.digest.hex() for item in opened},
            "results": results,
            "counts": self.counts,
            "in_flight": len(uncounted),
            **self.target,
        }
        self.set(self._key(self._written), fields)
        # Only once it is durable: reading ends at a gap. A write that was interrupted is repeated
        # as a whole.
        self._written += 1

    def _key(self, number: int) -> str:
        return f"{BATCH}_{number:06}"  # so that an index of the database has them in order, too

    # Items ----------------------------------------------------------------------------------------

    def check(self, items: Iterable[Item]) -> int:
        """
        Check all items against what earlier tries sent; return how many are to be sent.

        :raises InvalidRequestError: if an earlier try sent one with other inputs, to another flow,
            or sent more
        """
        missing = 0
        number = 0
        for item in items:
            number += 1
            if self._status(item.index) != "not started" and not self.has(item):
                raise _changed(
                    f"{item.place} has other inputs than an earlier try sent, "
                    "or the flow_id changed."
                )
            self._reach(item.index)
            self._digests[item.index] = item.digest
            if item.key is not None:
                self._keys[item.index] = item.key
            if self.is_missing(item):
                missing += 1

        for index in range(number, len(self._results)):
            if self._status(index) != "not started":
                raise _changed(
                    f"batch has {number} items, and batch[{index}], which an earlier try sent, "
                    "is missing."
                )
        self.total = number
        return missing

    def has(self, item: Item) -> bool:
        """Return whether it is the item that was checked, or that an earlier try sent."""
        return item.index < len(self._digests) and self._digests[item.index] == item.digest

    def is_missing(self, item: Item) -> bool:
        """Return whether an item is to be sent, if this try has not sent it."""
        status = self._status(item.index)
        return status == "not started" or (status == "unknown" and self.start_again)

    def to_send(self, source: BatchSource) -> Iterator[Item]:
        """
        Yield the items that are to be sent, from a batch that was checked.

        :raises InvalidRequestError: if it has changed since then
        """
        number = 0
        for item in source:
            number += 1
            if not self.has(item):
                raise _changed_meanwhile(item.place)
            if self.is_missing(item):
                yield item
        if number != self.total:
            raise _changed_meanwhile(source.place_of(number))

    def without_run(self, index: int, status: str, why: str) -> BatchItem:
        """Return an item's result over all tries: no run now does not settle an earlier doubt."""
        earlier = self._result(index)
        if (
            not earlier
            or earlier["status"] != "unknown"
            or status not in ("rejected", "not started")
        ):
            return {"index": index, "status": cast("ItemStatus", status), "why": why}
        if status == "rejected":
            earlier["why"] = OutcomeUnknownError(f"{earlier['why']} Later rejected: {why}").reason
        return earlier

    def put(self, item: BatchItem) -> None:
        """Keep the result of an item, in place of an earlier one."""
        index = item["index"]
        self._reach(index)
        self._by_status[self._status(index)] -= 1
        self._by_status[item["status"]] += 1
        self._results[index] = json.dumps(item).encode()

    def _reach(self, index: int) -> None:
        """Make room for an item."""
        more = [b""] * (index + 1 - len(self._results))
        self._results += more
        self._digests += more

    def _result(self, index: int) -> BatchItem | None:
        found = self._results[index] if index < len(self._results) else b""
        item: BatchItem | None = json.loads(found) if found else None
        return item

    def _status(self, index: int) -> ItemStatus:
        item = self._result(index)
        return item["status"] if item else "not started"

    @property
    def counts(self) -> BatchCounts:
        """The counts so far."""
        by = self._by_status
        started, rejected, unknown = (
            by["started"],
            by["rejected"],
            by["unknown"] + by["unidentified"],
        )
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

        :param why_not: why an item without a result was not started
        """
        for index in range(self.total or len(self._results)):
            item = self._result(index) or {"index": index, "status": "not started", "why": why_not}
            yield self._with_key(item)

    def name_of(self, index: int) -> str:
        """Return what an item is called in the log and in the table of an error."""
        if index in self._keys:
            return f"batch[{index}] ({self._keys[index]})"
        return f"batch[{index}]"

    def _with_key(self, item: BatchItem) -> BatchItem:
        """Return a result with the key of its item."""
        if item["index"] not in self._keys:
            return item
        others = {name: value for name, value in item.items() if name != "index"}
        key = self._keys[item["index"]]
        return cast("BatchItem", {"index": item["index"], "key": key, **others})

    # What is said of them -------------------------------------------------------------------------

    def told(self, error: WorkflowAutomationError) -> WorkflowAutomationError:
        """Return an error with what this and earlier tries did, and where the results are."""
        counts, consequence, accepted = self.counts, error.consequence, error.accepted
        known = self.total - counts["remaining"]
        if self.total and (known or not consequence):
            consequence = counts_text(counts)
        elif known:  # this try could not read the batch
            consequence = f"{consequence}\nItems of earlier tries: {_results_text(counts)}."
        if self._is_unread:
            consequence += (
                "\nEarlier tries may have started runs: what they recorded could not be read."
            )
        is_in_doubt = bool(counts["unknown"] or self._is_unread)
        if not isinstance(error, OutcomeUnknownError):
            accepted = Accepted.MAYBE if is_in_doubt else Accepted.NO
            if counts["started"] or self._by_status["unidentified"]:
                accepted = Accepted.YES
        look = "Look in the workflow's list of runs." * is_in_doubt
        next_step = "\n".join(filter(None, (self._table(), error.next_step, look, self.where())))
        return error.with_facts(accepted=accepted, consequence=consequence, next_step=next_step)

    def where(self) -> str:
        """Say where the runs are, if there are any."""
        if self.output_path:
            return f"The result of each item is in {without_credentials(self.output_path)}."
        if self._is_unread:
            return (
                "The runs of earlier tries are in the task's state store "
                f"({self._key(0)} and the next ones)."
            )
        if not self.counts["started"] + self.counts["unknown"]:
            return ""
        if not self.outlives_try:
            return "The log names the runs."
        place = " to ".join(map(self._key, sorted({0, self._written - 1})))
        return f"The runs are in the task's state store ({place}), or else in the log."

    def worst(self, *, fails_if_rejected: bool) -> WorkflowAutomationError | None:
        """Return the error for the worst results of items, None if there are none."""
        if unknown := self._by_status["unknown"]:
            what = "the run of 1 item was" if unknown == 1 else f"runs of {unknown} items were"
            return OutcomeUnknownError(f"It is unknown whether {what} started.")
        if number := self._by_status["unidentified"]:
            what = "The run of 1 item was started, but its id is unknown."
            several = f"Runs of {number} items were started, but their ids are unknown."
            return UnidentifiedError(what if number == 1 else several)
        if fails_if_rejected and (rejected := self._by_status["rejected"]):
            return RejectedError(f"The service rejected {rejected} item{'s' * (rejected > 1)}.")
        return None

    def log_runs(self, log: Logger, items: Iterable[BatchItem]) -> None:
        """Name runs in the log, where no entry does."""
        named = (
            f"{self.name_of(item['index'])}: {_run_of(item)}"
            for item in items
            if item["status"] != "not started"
        )
        while line := ", ".join(itertools.islice(named, _MAX_RUNS_IN_A_LINE)):
            log.info("Runs: %s", one_line(line))

    @property
    def _is_unread(self) -> bool:
        """Whether earlier tries may have recorded more, which could not be read."""
        return self.may_have_entries and not self._is_read

    def _table(self) -> str:
        """Return a table of the first failed items with reasons, without those not started."""
        failed = [
            item for item in self.in_order() if item["status"] not in ("started", "not started")
        ]
        rows = []
        for item in failed[:_MAX_ROWS]:
            why = " ".join(item.get("why", "").split())
            row = f"{self.name_of(item['index'])}  {item['status']}: {why}"
            if len(row) > _MAX_WIDTH:
                row = f"{row[: _MAX_WIDTH - 1]}…"
            rows.append(row)
        if len(failed) > _MAX_ROWS:
            rows.append(f"… and {len(failed) - _MAX_ROWS} more.")
        return "\n".join(rows)


def started(index: int, run: Run, log: Logger, name: str) -> BatchItem:
    """
    Return the result of an item whose run was started; a very long response is only logged.

    :param name: what the log calls the item
    """
    item: BatchItem = {"index": index, "status": "started"}
    if run.run_id is not None:
        item["run_id"] = run.run_id
    if run.run_link is not None:
        item["run_link"] = run.run_link
    if run.run_id is None and run.response is not None:
        text = json.dumps(run.response)
        item["response"] = run.response
        if len(text) > _MAX_RESPONSE:
            item["response"] = f"(not kept: it has {len(text)} characters, see the log)"
            log.info("The response for %s: %s", name, one_line(text))
    return item


def _run_of(item: BatchItem) -> str:
    """Return what the log says of an item: its run, or else its status."""
    if "response" in item:
        return json.dumps(item["response"])
    return item.get("run_id", item["status"])


def status_of(error: WorkflowAutomationError) -> ItemStatus:
    """Return the status of an item whose start ended in an error."""
    if isinstance(error, RejectedError):
        return (
            "not started"
            if error.status in _ENDS_BATCH or error.code is Code.REDIRECTED
            else "rejected"
        )
    if isinstance(error, UnidentifiedError):
        return "unidentified"
    return "not started" if isinstance(error, BusyError | NotSentError) else "unknown"


def _changed(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        what,
        consequence="Nothing was sent in this try.",
        next_step=(
            "Pass the same batch in every try, such as a file that is written once.\n"
            "Items may be added at its end."
        ),
    )


def _changed_meanwhile(place: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{place} changed while the batch was read.",
        next_step="Let the batch be complete before this task begins.",
    )


def counts_text(counts: BatchCounts) -> str:
    """Say how many items are in which state."""
    return (
        f"Of {counts['total']} items: {_results_text(counts)}, {counts['remaining']} not started."
    )


def _results_text(counts: BatchCounts) -> str:
    return (
        f"{counts['started']} started, {counts['rejected']} rejected, {counts['unknown']} unknown"
    )
