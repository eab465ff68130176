"""What people read of a batch: how its error ends, the table in it, and the runs in the log."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    Accepted,
    OutcomeUnknownError,
    RejectedError,
    RunFailedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.wording import one_line

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.batch.batch_record import BatchRecord
    from workflow_automation_provider.execution.batch.item_results import (
        BatchCounts,
        BatchItem,
        Results,
    )
    from workflow_automation_provider.execution.batch.options import BatchOptions

# What people read in a log or a notification: the rest is in the output file.
_MAX_ROWS = 20
_MAX_WIDTH = 160

# How many runs a line of the log names.
_MAX_RUNS_IN_A_LINE = 200


def with_results(
    error: WorkflowAutomationError, record: BatchRecord, output_path: str = ""
) -> WorkflowAutomationError:
    """
    Return an error with what this and earlier tries did, and where the results are.

    :param output_path: the file with the results, empty if it was not written
    """
    counts = record.results.counts
    has_unnamed_runs = counts["unknown"] or counts["unidentified"] or record.is_unread
    look = ""
    if has_unnamed_runs:
        look = "Look in the workflow's list of runs."

    where = where_runs_are(record, output_path)
    has_ends = record.results.are_settled and output_path
    if record.folder and where and not has_ends:
        where += f"\nThe runs write their ends to {record.folder}, each by its index."

    lines = [_table(record.results), error.next_step, look, where]
    return error.with_facts(
        accepted=_accepted(error, record),
        consequence=_consequence(error, record),
        next_step="\n".join(line for line in lines if line),
    )


def _accepted(error: WorkflowAutomationError, record: BatchRecord) -> Accepted:
    """Return whether any try has started a run."""
    if isinstance(error, OutcomeUnknownError):
        return error.accepted
    results = record.results
    if results.number_of("started") or results.number_of("unidentified") or results.are_settled:
        return Accepted.YES
    if results.number_of("unknown") or record.is_unread:
        return Accepted.MAYBE
    return Accepted.NO


def _consequence(error: WorkflowAutomationError, record: BatchRecord) -> str:
    """Return an error's consequence, with the counts of all tries."""
    if record.is_unread:
        unread = "Earlier tries may have started runs: what they recorded could not be read."
        return f"{error.consequence}\n{unread}".lstrip()

    counts = record.results.counts
    has_results = counts["total"] != counts["not_started"]
    if has_results or (counts["total"] and not error.consequence):
        return counts_text(counts)

    return error.consequence


def where_runs_are(record: BatchRecord, output_path: str = "") -> str:
    """Return a line that says where the runs are, empty if there are none."""
    if output_path:
        return f"The result of each item is in {without_credentials(output_path)}."

    in_store = f"in the task's state store ({record.first_key} and the next ones)"
    if record.is_unread:
        return f"The runs of earlier tries are {in_store}."

    counts = record.results.counts
    has_runs = counts["total"] - counts["not_started"] > counts["rejected"]
    if not has_runs:
        return ""
    if not record.outlives_try:
        return "The log names the runs."
    return f"The runs are {in_store}, or else in the log."


def worst_result(results: Results, options: BatchOptions) -> WorkflowAutomationError | None:
    """Return the error for the worst results of items, None if there are none."""
    unknown = results.number_of("unknown")
    if unknown:
        what = f"It is unknown whether a run was started for {counted(unknown, 'item')}."
        return OutcomeUnknownError(what)

    unidentified = results.number_of("unidentified")
    if unidentified:
        what = f"A run was started for {counted(unidentified, 'item')}, but its id is unknown."
        return UnidentifiedError(what)

    failed, overdue = results.number_of("failed"), results.number_of("overdue")
    if options.fails_if_run_failed and failed + overdue:
        return RunFailedError(f"Of the runs, {failed} failed, and {overdue} are overdue.")

    rejected = results.number_of("rejected")
    if rejected and options.fails_if_rejected:
        return RejectedError(f"The service rejected {counted(rejected, 'item')}.")

    return None


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 run``, ``2 runs``."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def log_runs(log: Logger, results: Results, items: Iterable[BatchItem]) -> None:
    """
    Name runs in the log, where no entry does.

    :param results: the results of the batch, which name its items
    :param items: the items whose runs are named
    """
    named = (
        f"{results.name_of(item['index'])}: {_run_of(item)}"
        for item in items
        if item["status"] != "not started"
    )
    while True:
        runs = list(itertools.islice(named, _MAX_RUNS_IN_A_LINE))
        if not runs:
            return
        log.info("Runs: %s", one_line(", ".join(runs)))


def _run_of(item: BatchItem) -> str:
    """Return an item's run, or else its status."""
    if "response" in item:
        return json.dumps(item["response"])
    return item.get("run_id", item["status"])


def _table(results: Results) -> str:
    """Return a table of the first failed items with reasons, without those not started."""
    rows = []
    number = 0
    for item in results.in_order():
        if item["status"] in ("started", "success", "not started"):
            continue

        number += 1
        if number <= _MAX_ROWS:
            rows.append(_row(results.name_of(item["index"]), item))

    if number > _MAX_ROWS:
        rows.append(f"… and {number - _MAX_ROWS} more.")

    return "\n".join(rows)


def _row(name: str, item: BatchItem) -> str:
    why = " ".join(item.get("why", "").split())
    row = f"{name}  {item['status']}: {why}"
    if len(row) > _MAX_WIDTH:
        row = f"{row[: _MAX_WIDTH - 1]}…"
    return row


def counts_text(counts: BatchCounts, others: str = "not started") -> str:
    """
    Return how many items have which result, as a sentence.

    :param others: what is said of those without one
    """
    names = ["started"]
    if "success" in counts:
        names = ["success", "failed", "overdue"]
        if counts["started"]:  # whose ends are not read yet
            names.insert(0, "started")

    names += ["rejected", "unknown"]
    if counts["unidentified"]:  # rare
        names.append("unidentified")

    numbers: dict[str, Any] = {**counts}
    known = ", ".join(f"{numbers[name]} {name}" for name in names)
    return f"Of {counts['total']} items: {known}, {counts['not_started']} {others}."
