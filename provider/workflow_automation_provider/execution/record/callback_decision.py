"""
What the endpoint says to a run: a table, without Airflow and without a database.

A start is *current* if it is the task instance's last one, and has its ``max_tries``, which a Clear
changes. A run is *wanted* if its start is current, and the task has not ended, or is green and does
not wait. The first row that fits:

==================================================  =====================  ======================
The run                                             ``started``,           an end
                                                    ``running``
==================================================  =====================  ======================
has ended                                           STOP                   END, or OTHER_END
was told to stop                                    STOP                   STOP
is not that which claimed, ended or is adopted      STOP, recorded         STOP, recorded
is not wanted                                       STOP, recorded
is of a start that is not the last                                         STOP, recorded
has a task that is being restarted                  WAIT
has claimed                                         GO_ON                  END
has a start that is revoked, and the task decides   WAIT                   WAIT, while it runs
none of these                                       GO_ON, it claims       END
==================================================  =====================  ======================

Two runs that hold one token are told apart by their ``run_id`` alone; a claim without one takes
that of the first report that has one. If another run has the task, the caller's ``run_id`` is
recorded in place of a stop.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from workflow_automation_provider.execution.record.callback import Ended, Report, Running, Started
from workflow_automation_provider.execution.record.entries import NO_REPORTS, Claim, End, RunReports

# No flow starts so many runs with one token: whoever sends more ids makes them up.
_MAX_REFUSED = 20


class Verdict(enum.Enum):
    """What the endpoint says to a run."""

    STOP = "stop"
    GO_ON = "go on"
    END = "the end is stored"
    OTHER_END = "another end is stored"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """
    What the endpoint sees of the start that gave out a token, at one time.

    :param reports: what its run has reported
    :param is_last: whether it is the task instance's last start
    :param is_current: whether it also has the task instance's ``max_tries``
    :param is_revoked: whether no run may claim it while the task decides
    :param waits: whether the task waits for the end of the run
    :param adopted: id of the run that the task has adopted, None if there is none
    :param task: the task's state in Airflow, *ended* for each final state but success, *restarting*
        also for one that is missing from its DAG for now
    """

    reports: RunReports = NO_REPORTS
    is_last: bool = True
    is_current: bool = True
    is_revoked: bool = False
    waits: bool = False
    adopted: str | None = None
    task: str | None = "running"

    @property
    def is_wanted(self) -> bool:
        """Whether a run may go on."""
        if not self.is_current or self.task == "ended":
            return False
        return self.task != "success" or not self.waits


def verdict_on(report: Report, seen: Seen, now: datetime) -> tuple[Verdict, RunReports]:
    """
    Decide what to say to a run, and what to record before.

    :return: the verdict, and all that the run has reported and was told by then
    """
    reports = seen.reports
    if reports.end and reports.end.run_id in (None, report.run_id):
        if not isinstance(report, Ended):
            return Verdict.STOP, reports
        if _is_same(report, reports.end):
            return Verdict.END, reports
        return Verdict.OTHER_END, reports

    if reports.stopped:
        return Verdict.STOP, reports

    if _is_other(report, seen):
        return Verdict.STOP, _refused(reports, report.run_id)
    # An end counts even if the run is no longer wanted, but only of the last start.
    if isinstance(report, Ended):
        if not seen.is_last:
            return Verdict.STOP, replace(reports, stopped=now)
        return _decide_end(report, seen, now)

    if not seen.is_wanted:
        return Verdict.STOP, replace(reports, stopped=now)

    return _decide_claim(report, seen, now)


def _is_same(report: Ended, end: End) -> bool:
    """Return whether a run repeats its end."""
    stored = Ended(end.status, end.result, end.message, end.run_id)
    # As JSON: 1, 1.0 and True are three values.
    return json.dumps(report, sort_keys=True) == json.dumps(stored, sort_keys=True)


def _is_other(report: Report, seen: Seen) -> bool:
    """Return whether another run has the task."""
    others = seen.reports.run_ids - {report.run_id}
    if others:
        return True
    # A flow that never sends its run_id must be able to end the run that was adopted.
    return report.run_id is not None and seen.adopted not in (None, report.run_id)


def _decide_end(report: Ended, seen: Seen, now: datetime) -> tuple[Verdict, RunReports]:
    """Decide about an end, where no other run has the task."""
    is_deciding = seen.is_revoked and seen.task in ("running", "restarting")
    if is_deciding and seen.reports.claim is None:
        return Verdict.WAIT, seen.reports
    end = End(now, report.status, report.run_id, report.result, report.message)
    return Verdict.END, replace(seen.reports, end=end)


def _decide_claim(
    report: Started | Running, seen: Seen, now: datetime
) -> tuple[Verdict, RunReports]:
    """Decide about a run that is wanted, where no other run has the task."""
    reports = seen.reports
    if seen.task == "restarting":
        return Verdict.WAIT, reports

    if reports.claim:
        claim = replace(reports.claim, run_id=report.run_id)
        if claim.run_link is None:
            claim = replace(claim, run_link=report.run_link)
        return Verdict.GO_ON, replace(reports, claim=claim)

    if seen.is_revoked and seen.task not in ("awaiting_input", "success"):
        return Verdict.WAIT, reports

    return Verdict.GO_ON, replace(reports, claim=Claim(now, report.run_id, report.run_link))


def _refused(reports: RunReports, run_id: str | None) -> RunReports:
    is_full = len(reports.refused) >= _MAX_REFUSED
    if run_id is None or run_id in reports.refused or is_full:
        return reports
    return replace(reports, refused=(*reports.refused, run_id))
