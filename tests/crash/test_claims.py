"""
Runs that claim their start: after a lost response or a kill, one run goes past its first step, and the task has it.

What counts is not the runs that were started, but those that worked. ``tests/system/test_kills.py`` has more, on Celery.
"""

from __future__ import annotations

from airflow_launcher.processes import wait_for
from case import OUTCOME, START, Case, play
from real_airflow import Flow
from workflow_automation_provider.execution.callback import PATH


def end_green(case: Case, *, runs: int = 1) -> None:
    """Expect the last run, and that no other has worked since the last Clear."""
    result = case.end("success", runs=runs)
    wait_for("the first step", lambda: case.worked)
    assert case.worked[-1] == case.runs[-1] == result["run_id"]


@play("claims")
def test_the_response_is_lost(case: Case) -> None:
    case.calls_back(status=None, started=2)
    case.fault("drop_after")
    case.begin()
    end_green(case)
    assert len(case.worked) == 1


@play("claims_patiently")
def test_killed_before_it_is_recorded_and_claimed_until_the_retry(case: Case) -> None:
    case.calls_back(status=None, started=0)
    first_step = case.hold("before", "POST", PATH, '"started"', again=True)
    recorded = case.hold("before", "PUT", OUTCOME, lost=True)
    case.begin()
    wait_for("the run", recorded.reached.is_set)
    case.kill("task")
    # The second try looks first of all.
    second = case.hold("before", "GET", START)
    recorded.released.set()
    wait_for("the second try", second.reached.is_set)
    first_step.released.set()
    assert case.answers() == [200]
    second.released.set()
    end_green(case)
    assert len(case.worked) == 1
    assert "Waiting up to" not in case.log


@play("claims")
def test_killed_in_the_last_try_and_cleared(case: Case) -> None:
    """A Clear starts over: the run of before is told to stop."""
    last_step = Flow()
    case.calls_back(started=0, result=last_step, times=1)
    case.calls_back(status=None, started=0)
    case.begin_and_kill(case.hold("before", "PUT", OUTCOME, lost=True))
    case.end("failed", runs=1)
    wait_for("the first step", lambda: case.worked)
    case.clear()
    end_green(case, runs=2)
    last_step.end()
    assert case.answers(3) == [200, 200, 404]
    assert case.worked == case.runs
