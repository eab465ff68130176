"""
kill -9 of a task, of its supervisor, of both, and a try that is frozen: never a second run, and none that nobody knows of.

``tests/unit/test_every_kill.py`` has all moments, in a process of its own; here Airflow finds what was killed.
"""

from __future__ import annotations

import os
import signal

from airflow_launcher.processes import alive, wait_for
from case import OUTCOME, START, Case, Play, Played, each
from said import ASKING, MAYBE_STARTED


def killed_while_the_service_works(case: Case) -> None:
    """In its only try: what it said beforehand is all that tells of the run."""
    case.fault("hang_after", seconds=100)
    case.begin()
    wait_for("the run", lambda: case.runs)
    # The supervisor reads the log after the request that it answered before this moment.
    wait_for("the line beforehand", lambda: ASKING in case.log)
    case.kill()
    assert ASKING in case.end("failed", runs=1, tries=1).log


def killed_before_the_outcome_is_recorded(case: Case) -> None:
    case.begin_and_kill(case.hold("before", "PUT", OUTCOME, lost=True))
    found = case.end("failed", runs=1)
    assert MAYBE_STARTED in found.log
    assert found.tries < 4  # it is not retried until it has no retries left


def the_supervisor_is_killed_once_the_outcome_is_recorded(case: Case) -> None:
    case.begin_and_kill(case.hold("after", "PUT", OUTCOME), "supervisor")
    case.end("success", runs=1)


def frozen_between_its_record_and_the_request(case: Case) -> None:
    """It comes back when another try has long done its work, and may yet send: one run, and announced."""
    hold = case.hold("after", "PUT", START)
    case.begin()
    wait_for("the record", hold.reached.is_set)
    (first,) = case.tries
    for pid in (first.supervisor, first.pid):
        os.kill(pid, signal.SIGSTOP)
    case.deployment.miss_heartbeats(first.pid)
    case.api.finished(case.dag_id, case.run_id)
    assert alive(first.pid)
    hold.released.set()
    for pid in (first.pid, first.supervisor):
        os.kill(pid, signal.SIGCONT)
    wait_for("the end of what is left", lambda: not alive(first.pid))
    assert len(case.runs) <= 1
    assert MAYBE_STARTED in case.end("failed", runs=len(case.runs)).log


def an_orphan_wakes_after_the_next_try(case: Case) -> None:
    """And starts nothing."""
    case.begin()
    case.until_here()
    (first,) = case.tries
    case.kill("supervisor")
    case.end("success", runs=1)
    assert alive(first.pid)
    (case.folder / "go").touch()
    wait_for("the end of the orphan", lambda: not alive(first.pid))
    case.end("success", runs=1)


KILLS: dict[Play, str] = {
    killed_while_the_service_works: "once",
    killed_before_the_outcome_is_recorded: "taskflow",
    the_supervisor_is_killed_once_the_outcome_is_recorded: "patient",
    frozen_between_its_record_and_the_request: "patient",
    an_orphan_wakes_after_the_next_try: "waits_before",
}


@each(KILLS)
def test_no_second_run_and_none_unmentioned(played: Played, play: Play) -> None:
    played[play].result()
