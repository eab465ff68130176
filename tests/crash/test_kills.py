"""
kill -9 of a task, of its supervisor, of both, and a try that is frozen.

Never a second run, and none that nobody knows of.

``tests/unit/test_every_kill.py`` has all moments, in a process of its own; here Airflow finds what
was killed.
"""

from __future__ import annotations

import os
import signal

import pytest

from airflow_launcher.processes import alive, wait_for
from case import Case, play
from deployment import ENDS_AT_MISSED_HEARTBEATS
from entry_keys import OUTCOME, START
from sentences import ASKING, MAYBE_STARTED


@play("once")
def test_killed_while_the_service_works(case: Case) -> None:
    """In its only try: what it said beforehand is all that tells of the run."""
    case.fault("hang_after", seconds=100)
    case.begin()
    wait_for("the run", lambda: case.runs)
    # The supervisor reads the log after the request that it answered before this moment.
    wait_for("the line beforehand", lambda: ASKING in case.log)
    case.kill()
    case.end("failed", runs=1, tries=1)
    assert ASKING in case.log


@play("claims")
def test_killed_before_its_run_claims_the_start(case: Case) -> None:
    """The next try waits for the claim, and has the run that works."""
    case.calls_back(status=None, started=5)
    case.fault("hang_after", seconds=100)
    case.begin()
    wait_for("the run", lambda: case.runs)
    case.kill("task")
    case.end("success", runs=1)
    wait_for("the first step", lambda: case.worked == case.runs)


@play("patient")
def test_the_supervisor_is_killed_once_the_outcome_is_recorded(case: Case) -> None:
    hold = case.hold("after", "PUT", f"/{OUTCOME}")
    case.begin()
    wait_for("the outcome", hold.reached.is_set)
    case.kill("supervisor")
    hold.released.set()
    case.end("success", runs=1)


@play("patient")
def test_suspended_between_its_record_and_the_request(case: Case) -> None:
    """
    It comes back when another try has long done its work, and may yet send.

    One run, and announced.
    """
    if ENDS_AT_MISSED_HEARTBEATS:
        pytest.skip("A missed heartbeat ends the scheduler of this pre-release")
    hold = case.hold("after", "PUT", f"/{START}")
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
    case.end("failed", runs=len(case.runs))
    assert MAYBE_STARTED in case.log
