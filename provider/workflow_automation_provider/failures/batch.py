"""The words of a batch that was not started completely."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.failures.request import shortened, where_to_look

_SAME_BATCH = (
    "Pass the same batch in every try, such as a file that is written once; items may be added at its end.\n"
    "Clearing the task starts all items again."
)


class BatchInterruptedError(WorkflowAutomationError):
    """An unexpected error ended the batch; a retry continues it."""

    _code = Code.BATCH_INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """
    The items of a batch that ended with an error.

    :param counts: how many items there are, and how many have which result, as in the task's result
    :param unidentified: how many of the unknown items have a run without a known id
    :param table: the first failed items with reasons
    :param place: the entries of the task state store with the results; empty if there are none
    :param is_stopped: whether the batch ended early
    :param is_logged: whether the log names the runs
    :param output_path: the file with the results, if it was written
    """

    counts: Mapping[str, Any]
    unidentified: int
    table: str
    place: str
    is_stopped: bool = False
    is_logged: bool = False
    output_path: str | None = None


def batch_error(error: WorkflowAutomationError, batch: BatchState) -> WorkflowAutomationError:
    """Complete an error with what this and earlier tries did, and where the results are."""
    counts = batch.counts
    if counts["total"]:
        if counts["total"] > counts["remaining"] or batch.is_stopped:
            error.consequence = counts_text(counts)
    elif counts["remaining"]:  # below 0: the batch could not be read, but earlier tries are known
        error.consequence += f"\nItems of earlier tries: {_results(counts)}."
    if not isinstance(error, OutcomeUnknownError):
        error.accepted = Accepted.MAYBE if counts["unknown"] else Accepted.NO
        if counts["started"] or batch.unidentified:
            error.accepted = Accepted.YES
    look = where_to_look(Operation.TRIGGER_BY_KEY) if counts["unknown"] else ""
    error.next_step = "\n".join(filter(None, (batch.table, error.next_step, look, where_runs_are(batch))))
    return error


def counts_text(counts: Mapping[str, Any]) -> str:
    """Say how many items are in which state."""
    return f"Of {counts['total']} items: {_results(counts)}, {counts['remaining']} not started."


def _results(counts: Mapping[str, Any]) -> str:
    return f"{counts['started']} started, {counts['rejected']} rejected, {counts['unknown']} unknown"


def where_runs_are(batch: BatchState) -> str:
    """Say where the runs are, if there are any."""
    if batch.output_path:
        return f"The result of each item is in {batch.output_path}."
    if not batch.counts["started"] + batch.counts["unknown"]:
        return ""
    if not batch.place:
        return "The log names the runs."
    return f"The runs are in the task's state store ({batch.place}){' and in the log' * batch.is_logged}."


def items_error(*, unknown: int, unidentified: int, rejected: int) -> WorkflowAutomationError | None:
    """Return the error for the worst results of items, None if there are none."""
    if unknown > 1:
        return OutcomeUnknownError(f"It is unknown whether runs of {unknown} items were started.")
    if unknown:
        return OutcomeUnknownError("It is unknown whether the run of 1 item was started.")
    if unidentified > 1:
        return ResponseUnusableError(f"Runs of {unidentified} items were started, but their ids are unknown.")
    if unidentified:
        return ResponseUnusableError("The run of 1 item was started, but its id is unknown.")
    if rejected:
        return RejectedError(f"The service rejected {rejected} item{'s' * (rejected > 1)}.")
    return None


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
    return NotSentError("The task was ended.")


def too_many_unknown(number: int, why: str) -> OutcomeUnknownError:
    """Return the error for a service that gives no usable responses."""
    return OutcomeUnknownError(
        f"{number} requests in a row were sent without a usable response. The last one: {why}"
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
        text = redact(f": {error}")
    message = shortened(f"The batch was interrupted by {type(error).__name__}{text}")
    interruption = kind(message, code=Code.BATCH_INTERRUPTED)
    interruption.__cause__ = error
    return interruption
