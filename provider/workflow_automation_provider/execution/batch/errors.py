"""The words of a batch that was not started completely."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    Accepted,
    BatchInterruptedError,
    Code,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

_SAME_BATCH = (
    "Pass the same batch in every try, such as a file that is written once; items may be added at its end."
)


FIRST_ENTRY = "workflow_automation_batch_0"
"""The name of the first entry of a batch in the task state store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """
    The items of a batch that ended with an error.

    :param counts: how many items there are, and how many have which result, as in the task's result
    :param unidentified: how many of the unknown items have a run without a known id
    :param table: the first failed items with reasons
    :param place: the entries of the task state store with the results; empty if there are none
    :param is_unread: whether earlier tries may have recorded more, which could not be read
    :param is_stopped: whether the batch ended early
    :param is_logged: whether the log names the runs
    :param output_path: the file with the results, if it was written
    """

    counts: Mapping[str, Any]
    unidentified: int
    table: str
    place: str
    is_unread: bool = False
    is_stopped: bool = False
    is_logged: bool = False
    output_path: str | None = None


def batch_error(error: WorkflowAutomationError, batch: BatchState) -> WorkflowAutomationError:
    """Return an error with what this and earlier tries did, and where the results are."""
    counts, consequence, accepted = batch.counts, error.consequence, error.accepted
    if counts["total"]:
        if counts["total"] > counts["remaining"] or batch.is_stopped:
            consequence = counts_text(counts)
    elif counts["remaining"]:  # below 0: the batch could not be read, but earlier tries are known
        consequence = f"{consequence}\nItems of earlier tries: {_results(counts)}."
    if batch.is_unread:
        consequence += "\nEarlier tries may have started runs: what they recorded could not be read."
    if not isinstance(error, OutcomeUnknownError):
        accepted = Accepted.MAYBE if counts["unknown"] or batch.is_unread else Accepted.NO
        if counts["started"] or batch.unidentified:
            accepted = Accepted.YES
    look = "Look in the workflow's list of runs." if counts["unknown"] or batch.is_unread else ""
    lines = (batch.table, error.next_step, look, where_runs_are(batch))
    next_step = "\n".join(filter(None, lines))
    return error.with_facts(accepted=accepted, consequence=consequence, next_step=next_step)


def counts_text(counts: Mapping[str, Any]) -> str:
    """Say how many items are in which state."""
    return f"Of {counts['total']} items: {_results(counts)}, {counts['remaining']} not started."


def _results(counts: Mapping[str, Any]) -> str:
    return f"{counts['started']} started, {counts['rejected']} rejected, {counts['unknown']} unknown"


def where_runs_are(batch: BatchState) -> str:
    """Say where the runs are, if there are any."""
    if batch.output_path:
        return f"The result of each item is in {without_credentials(batch.output_path)}."
    if batch.is_unread:
        return f"The runs of earlier tries are in the task's state store ({FIRST_ENTRY} and the next ones)."
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
        return UnidentifiedError(f"Runs of {unidentified} items were started, but their ids are unknown.")
    if unidentified:
        return UnidentifiedError("The run of 1 item was started, but its id is unknown.")
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
    error: BaseException, redact: Callable[[str], str], *, is_continued: bool
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
    happened = kind(f"The batch was interrupted by {type(error).__name__}{text}")
    interruption = kind(happened.reason, code=Code.BATCH_INTERRUPTED)
    interruption.__cause__ = error
    return interruption
