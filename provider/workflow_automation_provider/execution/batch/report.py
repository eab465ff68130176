"""The words of a batch: the error that it ends with, and the lines of the log."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.ledger import State
from workflow_automation_provider.failures import Code, where_to_look

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.batch.results import BatchCounts, ItemResults
    from workflow_automation_provider.execution.batch_state import BatchItem, BatchRecord

__all__ = [
    "PROGRESS_XCOM",
    "BatchInterruptedError",
    "Progress",
    "changed_meanwhile",
    "changed_since",
    "consequence",
    "failure",
    "interrupted",
    "missing_since",
    "named_runs",
    "reason",
    "shortened",
    "summarize_into",
    "task_ended",
    "too_many_unknown",
    "where_runs_are",
]

PROGRESS_XCOM = "progress"
"""Key of the XCom with the counts, while the task runs."""

# How much of a reason is kept, in characters.
_MAX_REASON = 500

# How many runs a line of the log names.
_MAX_RUNS_IN_A_LINE = 200

# Seconds between two lines of progress.
_PROGRESS_INTERVAL = 5.0

_SAME_BATCH = (
    "Pass the same batch in every try, such as a file that is written once; items may be added at its end.\n"
    "A Clear starts all items again."
)


class BatchInterruptedError(WorkflowAutomationError):
    """An unexpected error ended the batch; a retry continues it."""


class Progress:
    """
    Log progress and throughput periodically.

    :param ti: the task instance, which gets the counts as an XCom
    """

    def __init__(self, log: Logger, ti: Any) -> None:
        self._log = log
        self._ti = ti
        self._began = self._logged = time.monotonic()
        self._before: int | None = None

    def log(self, results: ItemResults, *, at_the_end: bool = False) -> None:
        """Log, unless it is too early for that."""
        now = time.monotonic()
        if self._before is None:
            self._before = _done(results.counts)  # by earlier tries
        if not at_the_end and now - self._logged < _PROGRESS_INTERVAL:
            return
        self._logged = now
        counts = results.counts
        rate = (_done(counts) - self._before) / max(now - self._began, 0.001)
        left = f", {counts['remaining'] / rate:.0f} s left" if rate and counts["remaining"] else ""
        self._log.info(
            "%s",
            f"{_done(counts)} of {counts['total']} items: {counts['started']} started, {counts['rejected']} rejected, "
            f"{counts['unknown']} unknown; {rate:.1f} per second{left}.",
        )
        try:
            self._ti.xcom_push(key=PROGRESS_XCOM, value=dict(counts))
        except Exception:
            self._log.warning("The progress could not be stored as an XCom.", exc_info=True)


def _done(counts: BatchCounts) -> int:
    return counts["total"] - counts["remaining"]


def named_runs(items: Iterable[BatchItem]) -> Iterator[str]:
    """Yield lines that name the runs."""
    named = (
        f"batch[{item['index']}]: {item.get('run_id', item['status'])}"
        for item in items
        if item["status"] != "not started"
    )
    while line := ", ".join(itertools.islice(named, _MAX_RUNS_IN_A_LINE)):
        yield line


def changed_since(place: str, number: int | None) -> InvalidRequestError:
    """Return the error for an item that a try of this number sent with other inputs."""
    return InvalidRequestError(
        f"{place} has other inputs than in try {number}, which sent it, or the flow_id changed.",
        consequence="Nothing was sent in this try.",
        next_step=_SAME_BATCH,
    )


def missing_since(index: int, length: int, number: int | None) -> InvalidRequestError:
    """Return the error for an item that a try of this number sent, and that the batch lacks."""
    return InvalidRequestError(
        f"batch has {length} items, and batch[{index}], which try {number} sent, is missing.",
        consequence="Nothing was sent in this try.",
        next_step=_SAME_BATCH,
    )


def changed_meanwhile(place: str) -> InvalidRequestError:
    """Return the error for an item that changed after it was checked."""
    return InvalidRequestError(
        f"{place} changed while the batch was read.",
        next_step="Let the batch be complete before this task begins.",
    )


def task_ended() -> NotSentError:
    """Return the error for a batch whose task Airflow ended."""
    return NotSentError("The task was ended.", code=Code.NOT_SENT)


def too_many_unknown(number: int, why: str) -> OutcomeUnknownError:
    """Return the error for a service that gives no usable responses."""
    return OutcomeUnknownError(
        f"{number} requests in a row were sent without a usable response. The last one: {why}",
        code=Code.START_UNKNOWN,
    )


def interrupted(
    error: Exception, redact: Callable[[str], str], *, is_continued: bool
) -> WorkflowAutomationError:
    """
    Return the error for a batch that an unexpected one ended, such as of Airflow's task state store.

    :param redact: removes what must not show
    :param is_continued: whether a retry continues the batch
    """
    kind = BatchInterruptedError if is_continued else WorkflowAutomationError
    text = ""
    with contextlib.suppress(Exception):  # some errors have no text, and some connections no client
        text = redact(f": {' '.join(str(error).split())}")
    message = shortened(f"The batch was interrupted by {type(error).__name__}{text}")
    interruption = kind(message, code=Code.BATCH_INTERRUPTED)
    interruption.__cause__ = error
    return interruption


def failure(
    results: ItemResults, stopped_by: WorkflowAutomationError | None, *, fails_if_rejected: bool
) -> WorkflowAutomationError | None:
    """Return the error to end with, None if the batch is complete."""
    error = stopped_by or _worst(results, fails_if_rejected=fails_if_rejected)
    if error:
        look = where_to_look(Operation.TRIGGER_BY_KEY) if results.counts["unknown"] else ""
        error.next_step = "\n".join(filter(None, (results.table(), error.next_step, look)))
    return error


def _worst(results: ItemResults, *, fails_if_rejected: bool) -> WorkflowAutomationError | None:
    numbers = results.numbers()
    if number := numbers[State.UNKNOWN]:
        return OutcomeUnknownError(
            f"It is unknown whether runs of {number} items were started."
            if number > 1
            else "It is unknown whether the run of 1 item was started.",
            code=Code.START_UNKNOWN,
        )
    if number := numbers[State.UNIDENTIFIED]:
        return ResponseUnusableError(
            f"Runs of {number} items were started, but their ids are unknown."
            if number > 1
            else "The run of 1 item was started, but its id is unknown.",
            code=Code.RUN_UNIDENTIFIED,
        )
    if (number := numbers[State.REJECTED]) and fails_if_rejected:
        return RejectedError(f"The service rejected {number} item{'s' * (number > 1)}.", code=Code.REJECTED)
    return None


def summarize_into(
    error: WorkflowAutomationError,
    results: ItemResults,
    record: BatchRecord,
    *,
    is_stopped: bool = False,
    is_logged: bool = False,
    output_path: str | None = None,
) -> None:
    """Add to an error what this and earlier tries did, and where that is to be found."""
    counts = results.counts
    if counts["total"]:
        if counts["total"] > counts["remaining"] or is_stopped:
            error.consequence = consequence(counts)
    elif counts["remaining"]:  # below 0: the batch could not be read, but earlier tries are known
        error.consequence += (
            f"\nIn earlier tries: {counts['started']} items started, {counts['rejected']} rejected, "
            f"{counts['unknown']} unknown."
        )
    if not isinstance(error, OutcomeUnknownError):
        if counts["started"] or results.numbers()[State.UNIDENTIFIED]:
            error.accepted = Accepted.YES
        else:
            error.accepted = Accepted.MAYBE if counts["unknown"] else Accepted.NO
    where = (
        f"What became of each item is in {output_path}."
        if output_path
        else where_runs_are(results, record, is_logged=is_logged)
    )
    error.next_step = "\n".join(filter(None, (error.next_step, where)))


def where_runs_are(results: ItemResults, record: BatchRecord, *, is_logged: bool) -> str:
    """Say where the runs are, if there are any."""
    if not results.counts["started"] + results.counts["unknown"]:
        return ""
    if not record.place:
        return "The log names the runs."
    return f"The runs are in the task's state store ({record.place}){' and in the log' if is_logged else ''}."


def consequence(counts: BatchCounts) -> str:
    """Say how many items are in which state."""
    return (
        f"Of {counts['total']} items: {counts['started']} started, {counts['rejected']} rejected, "
        f"{counts['unknown']} unknown, {counts['remaining']} not started."
    )


def reason(error: WorkflowAutomationError) -> str:
    """Return why no run of an item is known, in one line."""
    return shortened(" ".join(error.message.split()))


def shortened(text: str) -> str:
    """Return as much of a reason as is kept."""
    return text if len(text) <= _MAX_REASON else f"{text[: _MAX_REASON - 1]}…"
