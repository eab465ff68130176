"""What the endpoint says to a run, whatever it has seen: the table in its docstring, row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest
from msgspec.structs import replace as replace_entry

from workflow_automation_provider.execution.record import callback_decision
from workflow_automation_provider.execution.record.callback import Ended, Report, Running, Started
from workflow_automation_provider.execution.record.callback_decision import (
    Seen,
    Verdict,
    verdict_on,
)
from workflow_automation_provider.execution.record.entries import Claim, End, RunReports

THEN, NOW = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
RUN_IDS = None, "7", "8"
REPORTS: list[Report] = [
    report
    for run_id in RUN_IDS
    for report in (
        Started(run_id, "http://run"),
        Running("half", 0.5, run_id),
        Ended("success", {"rows": 1, "of": 2}, "done", run_id),
        Ended("success", {"rows": True, "of": 2}, "done", run_id),
    )
]
TASKS = "running", "restarting", "awaiting_input", "success", "ended", None


def all_seen():
    """Yield all that there can be of a start; only the last one's run is entered."""
    reports = [
        RunReports(claim=claim, end=end, stopped=stopped)
        for claim in (None, Claim(THEN), Claim(THEN, "7"))
        for end in (
            None,
            *(End(THEN, "success", run_id, {"rows": 1, "of": 2}, "done") for run_id in RUN_IDS),
        )
        for stopped in (None, THEN)
    ]
    places = [(True, True, adopted) for adopted in RUN_IDS]
    places += [(True, False, adopted) for adopted in RUN_IDS] + [(False, False, None)]
    for report, (is_last, is_current, adopted), revoked, waits, task in product(
        reports, places, (False, True), (False, True), TASKS
    ):
        yield Seen(
            reports=report,
            is_last=is_last,
            is_current=is_current,
            is_revoked=revoked,
            waits=waits,
            adopted=adopted,
            task=task,
        )


def is_other(report, seen):
    """
    Another run has claimed or ended, or was entered.

    Who says no run_id may be the one that was entered.
    """
    named = seen.reports.run_ids | ({seen.adopted} if seen.adopted and report.run_id else set())
    return any(run_id != report.run_id for run_id in named)


# The condition, what answers *started* and *running*, and what to an end; empty where the row
# does not apply.
ROWS = {
    "has ended": (
        lambda report, seen: seen.reports.end and seen.reports.end.run_id in (None, report.run_id),
        "STOP",
        "END, or OTHER_END",
    ),
    "was told to stop": (lambda _, seen: seen.reports.stopped, "STOP", "STOP"),
    "is not that which claimed, ended or is adopted": (
        is_other,
        "STOP, recorded",
        "STOP, recorded",
    ),
    "is not wanted": (
        lambda _, seen: (
            not seen.is_current or seen.task == "ended" or (seen.task == "success" and seen.waits)
        ),
        "STOP, recorded",
        "",
    ),
    "is of a start that is not the last": (
        lambda _, seen: not seen.is_last,
        "",
        "STOP, recorded",
    ),
    "has a task that is being restarted": (
        lambda _, seen: seen.task == "restarting",
        "WAIT",
        "",
    ),
    "has claimed": (lambda _, seen: seen.reports.claim, "GO_ON", "END"),
    "has a start that is revoked, and the task decides": (
        lambda _, seen: seen.is_revoked and seen.task not in ("awaiting_input", "success"),
        "WAIT",
        "WAIT, while it runs",
    ),
    "none of these": (lambda *_: True, "GO_ON, it claims", "END"),
}


def test_the_docstring_is_this_table():
    """The same rows, in the same order; its columns are as wide as their borders."""
    lines = [line.rstrip() for line in str(callback_decision.__doc__).splitlines()]
    _, first, last = [number for number, line in enumerate(lines) if line.startswith("===")]
    widths = [len(border) for border in lines[first].split()]
    table = []
    for name, (_, claim, end) in ROWS.items():
        cells = zip((name, claim, end), widths, strict=True)
        table.append("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    assert lines[first + 1 : last] == table


def cell_of(report, seen):
    """Return the cell of the first row that applies."""
    for fits, claim, end in ROWS.values():
        cell = end if isinstance(report, Ended) else claim
        runs = seen.task in ("running", "restarting")
        if cell and fits(report, seen) and (runs or not cell.endswith("while it runs")):
            return cell
    raise AssertionError(seen)


def verdict_of(cell, report, seen):
    if cell != "END, or OTHER_END":
        return Verdict[cell.split(",")[0]]
    is_same = report.result["rows"] is not True and report.run_id == seen.reports.end.run_id
    return Verdict.END if is_same else Verdict.OTHER_END


def recorded(cell, report, seen):
    """Return what the run has reported and was told, after that."""
    reports, claim = seen.reports, seen.reports.claim
    if cell.endswith("recorded") and is_other(report, seen):
        return replace_entry(reports, refused=(report.run_id,) if report.run_id else ())
    if cell == "STOP, recorded":
        return replace_entry(reports, stopped=NOW)
    if cell == "GO_ON, it claims":
        return replace_entry(reports, claim=Claim(NOW, report.run_id, report.run_link))
    if cell in ("END", "WAIT, while it runs"):
        return replace_entry(
            reports, end=End(NOW, report.status, report.run_id, report.result, report.message)
        )
    if cell == "GO_ON":
        link = claim.run_link or report.run_link
        return replace_entry(
            reports, claim=replace_entry(claim, run_id=report.run_id, run_link=link)
        )
    return reports


@pytest.mark.parametrize("report", REPORTS, ids=str)
def test_the_table(report):
    for seen in all_seen():
        cell = cell_of(report, seen)
        verdict, reports = verdict_on(report, seen, NOW)
        assert verdict is verdict_of(cell, report, seen), seen
        expected = seen.reports if verdict is Verdict.WAIT else recorded(cell, report, seen)
        assert reports == expected, seen


def test_refused_runs_are_noted_once_and_not_for_ever():
    seen = Seen(reports=RunReports(claim=Claim(THEN, "7")))
    for number in [*range(100, 130), 100]:
        seen = replace(seen, reports=verdict_on(Started(str(number)), seen, NOW)[1])
    assert seen.reports.refused == tuple(str(number) for number in range(100, 120))
