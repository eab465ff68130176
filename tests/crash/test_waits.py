"""A task that waits for the end of its run: each answer arrives once, whatever is killed, stopped or cleared."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from airflow_launcher.processes import wait_for
from case import OUTCOME, Case, Play, Played, each
from real_airflow import Flow

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


def called_while_it_parks(case: Case) -> None:
    flow = case.held_flow()
    hold = case.hold("before", "PATCH", "/state", "awaiting_input")
    case.begin()
    wait_for("the park", hold.reached.is_set)
    flow.end()
    case.called()
    hold.released.set()
    case.end_well()


def called_once_it_is_parked(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    case.parked()
    flow.end()
    case.end_well()
    assert case.answers() == [200]


def killed_once_the_run_is_recorded(case: Case) -> None:
    flow = case.held_flow()
    case.begin_and_kill(case.hold("after", "PUT", OUTCOME), "both")
    flow.end()
    case.end_well()


def killed_while_it_continues(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    case.parked()
    hold = case.hold("after", "GET", "/workflow_automation_run/")
    flow.end()
    wait_for("the task continues", hold.reached.is_set)
    case.kill()
    hold.released.set()
    case.end_well()


def killed_before_the_run_was_recorded_and_told_by_the_flow(case: Case) -> None:
    """Nobody knows the run's id, but that there is one, and how it ended."""
    case.calls_back(result={"rows": 3})
    hold = case.hold("before", "PUT", OUTCOME, lost=True)
    case.begin()
    wait_for("the run", hold.reached.is_set)
    case.called()
    case.kill()
    hold.released.set()
    assert case.end("success", runs=1).result == {"flow_id": "demo-flow", "result": {"rows": 3}}


def never_told(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    found = case.end("failed", runs=1)
    flow.end()
    assert "completion_timeout (0:00:30)" in found.log
    assert case.answers() == [200]


def cleared_while_it_waits(case: Case) -> None:
    """The old run's callback does not settle the new one."""
    old, new = Flow(), Flow()
    flows = iter([old, new])
    case.calls_back(result=lambda run: next(flows)(run))
    case.begin()
    case.parked()
    case.clear()
    wait_for("the second run", lambda: len(case.runs) == 2)
    case.parked(2)
    old.end()
    assert case.answers() == [404]
    case.parked(2)
    new.end()
    case.end_well(runs=2)


def marked_as_success(case: Case) -> None:
    """By a person who knows the end: nobody was asked for it, and the next task has the run."""
    flow = case.held_flow()
    case.begin()
    case.parked()
    assert case.api.ask("GET", f"/dags/{case.dag_id}/dagRuns/{case.run_id}/hitlDetails")["total_entries"] == 0
    case.mark("success")
    flow.end()
    assert case.answers() == [200]
    (run_id,) = case.end("success", runs=1).runs
    assert case.api.xcom(case.dag_id, case.run_id, "announce") == run_id


def its_state_is_deleted_while_it_waits(case: Case) -> None:
    """A task that was parked with its run starts no other, whatever it remembers."""
    flow = case.held_flow()
    case.begin()
    case.parked()
    instance = f"/dags/{case.dag_id}/dagRuns/{case.run_id}/taskInstances/trigger"
    for entry in case.api.ask("GET", f"{instance}/state-store")["task_state_store"]:
        case.api.ask("DELETE", f"{instance}/state-store/{entry['key']}")
    flow.end()
    assert case.answers() == [404]
    case.deployment.put_off_check(case.run_id, timedelta())
    wait_for("the check", lambda: len(case.tries) > 1)
    case.parked(2)
    assert len(case.runs) == 1
    case.mark("failed")
    case.end("failed", runs=1)


WAITS: dict[Play, str] = {
    called_while_it_parks: "waits",
    called_once_it_is_parked: "waits",
    killed_once_the_run_is_recorded: "waits",
    killed_while_it_continues: "waits",
    killed_before_the_run_was_recorded_and_told_by_the_flow: "waits",
    never_told: "waits_briefly",
    cleared_while_it_waits: "waits",
    marked_as_success: "waits_and_announces",
    its_state_is_deleted_while_it_waits: "waits",
}


@each(WAITS)
def test_a_wait(played: Played, play: Play, dag_id: str) -> None:
    played[play].result()


def stop_without_a_lock(deployment: Deployment, scheduler: psutil.Process) -> None:
    """Stop the scheduler while it does not write: else nobody else could."""

    def stopped() -> bool:
        scheduler.send_signal(signal.SIGSTOP)
        wait_for("the stop", lambda: scheduler.status() == psutil.STATUS_STOPPED, pause=0.01)
        if deployment.is_locked():
            scheduler.send_signal(signal.SIGCONT)
            return False
        return True

    wait_for("a scheduler that does not write", stopped)


def test_the_scheduler_stands_still_over_park_and_callback(
    deployment: Deployment, service: LocalService
) -> None:
    case = Case(deployment, service, "waits", "scheduler-stopped")
    flow = case.held_flow()
    case.begin()
    wait_for("the run", lambda: case.runs)
    (scheduler, *_) = deployment.programs["scheduler"].family()
    stop_without_a_lock(deployment, scheduler)
    try:
        wait_for("the park", lambda: case.state == "awaiting_input")
        flow.end()
        assert case.answers() == [200]
        time.sleep(8)  # until long after the task should have been woken
    finally:
        scheduler.send_signal(signal.SIGCONT)
    case.end_well()
