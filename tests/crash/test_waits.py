"""A task that waits for the end of its run: each answer arrives once, whatever is killed, stopped or cleared."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_launcher.waiting import wait_for
from cases import OUTCOME, Case, Flow, Outcomes, at_once

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


def called_at_once(case: Case) -> None:
    case.calls_back(result={"rows": 3})
    case.begin()
    found = case.end_well()
    assert found.tries == 1
    assert [call.status for call in case.called()] == [200]


def called_while_it_parks(case: Case) -> None:
    flow = case.held_flow()
    hold = case.hold("before", "PATCH", "/state", "awaiting_input")
    case.begin()
    wait_for("the park", hold.reached.is_set)
    flow.end()
    case.called()
    hold.released.set()
    assert case.end_well().tries == 1


def called_once_it_is_parked(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    case.parked()
    flow.end()
    assert case.end_well().tries == 1


def called_seconds_later(case: Case) -> None:
    case.calls_back(result={"rows": 3}, delay=4)
    case.begin()
    assert case.end_well().tries == 1


def killed_once_the_run_is_recorded(case: Case) -> None:
    flow = case.held_flow()
    hold = case.hold("after", "PUT", OUTCOME)
    case.begin()
    wait_for("the record", hold.reached.is_set)
    case.kill()
    hold.released.set()
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
    assert case.end_well().tries == 2


def killed_before_the_run_was_recorded_and_told_by_the_flow(case: Case) -> None:
    """Nobody knows the run's id, but that there is one, and how it ended."""
    case.calls_back(result={"rows": 3})
    hold = case.hold("before", "PUT", OUTCOME, lost=True)
    case.begin()
    wait_for("the run", hold.reached.is_set)
    case.called()
    case.kill()
    hold.released.set()
    found = case.end("success")
    assert found.result == {"flow_id": "demo-flow", "result": {"rows": 3}}
    assert len(found.runs) == 1


def told_that_it_failed(case: Case) -> None:
    case.calls_back(status="failed", message="disk full", result={"at": 7})
    case.begin()
    found = case.end("failed")
    assert "failed: disk full" in found.log
    assert found.tries == 1
    assert len(found.runs) == 1


def never_told(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    found = case.end("failed")
    flow.end()
    assert "completion_timeout (0:00:30)" in found.log
    assert found.tries == 1
    assert len(found.runs) == 1
    assert [call.status for call in case.called()] == [200]


def told_with_a_wrong_token(case: Case) -> None:
    first = {"token": "A" * 64, "then": [{"token": "x", "delay": 0}, {"token": None, "delay": 1}]}
    case.calls_back(result={"rows": 3}, **first)
    case.begin()
    case.end_well()
    assert [call.status for call in case.called(3)] == [404, 404, 200]


def told_badly_and_then_well(case: Case) -> None:
    well = {"body": None, "result": {"rows": 3}}
    case.calls_back(body="{", then=[{"body": {"status": "done"}}, {"body": "x" * 70_000}, well])
    case.begin()
    case.end_well()
    assert [call.status for call in case.called(4)] == [400, 400, 413, 200]


def told_twice(case: Case) -> None:
    case.calls_back(result={"rows": 3}, then=[{}, {"result": {"rows": 4}}])
    case.begin()
    assert [call.status for call in case.called(3)] == [200, 200, 409]
    case.end_well()


def cleared_while_it_waits(case: Case) -> None:
    """The old run's callback does not settle the new one."""
    old, new = Flow(), Flow()
    flows = iter([old, new])
    case.calls_back(result=lambda run: next(flows)(run))
    case.begin()
    case.parked()
    case.api.clear(case.dag_id, case.run_id, "trigger")
    wait_for("the second run", lambda: len(case.runs) == 2)
    case.parked(2)
    old.end()
    assert [call.status for call in case.called()] == [404]
    case.parked(2)
    new.end()
    case.end_well(runs=2)


def cleared_while_it_continues(case: Case) -> None:
    """Airflow continues the next try with what the earlier one was parked with."""
    folder = case.deployment.home / case.run_id
    folder.mkdir()
    flow = case.held_flow()
    case.begin(folder=str(folder))
    case.parked()
    flow.end()
    wait_for("the task continues", (folder / "here").exists)
    case.calls_back(result={"rows": 3})
    case.api.clear(case.dag_id, case.run_id, "trigger")
    assert "cleared after it continued" in case.end_well(runs=2).log


def marked_as_success(case: Case) -> None:
    """By a person who knows the end: nobody was asked for it, and the next task has the run."""
    flow = case.held_flow()
    case.begin()
    case.parked()
    assert case.api.ask("GET", f"/dags/{case.dag_id}/dagRuns/{case.run_id}/hitlDetails")["total_entries"] == 0
    case.api.mark(case.dag_id, case.run_id, "trigger", "success")
    flow.end()
    assert [call.status for call in case.called()] == [200]
    assert case.api.finished(case.dag_id, case.run_id) == "success"
    (run_id,) = case.runs
    assert case.api.xcom(case.dag_id, case.run_id, "announce") == run_id
    assert case.api.xcom(case.dag_id, case.run_id, "trigger")["run_id"] == run_id


def marked_as_failed(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    case.parked()
    case.api.mark(case.dag_id, case.run_id, "trigger", "failed")
    flow.end()
    assert [call.status for call in case.called()] == [200]
    case.end("failed")
    assert len(case.runs) == 1


def its_state_is_deleted_while_it_waits(case: Case) -> None:
    """A task that was parked with its run starts no other, whatever it remembers."""
    flow = case.held_flow()
    case.begin()
    case.parked()
    instance = f"/dags/{case.dag_id}/dagRuns/{case.run_id}/taskInstances/trigger"
    for entry in case.api.ask("GET", f"{instance}/state-store")["task_state_store"]:
        case.api.ask("DELETE", f"{instance}/state-store/{entry['key']}")
    flow.end()
    assert [call.status for call in case.called()] == [404]
    case.deployment.put_off_check(case.run_id, timedelta())
    wait_for("the check", lambda: len(case.deployment.gate.tries_of(case.run_id)) == 2)
    case.parked(2)
    assert len(case.runs) == 1
    case.api.mark(case.dag_id, case.run_id, "trigger", "failed")
    case.end("failed")


def its_files_are_gone_once_they_are_uploaded(case: Case) -> None:
    file = case.deployment.home / "rows.csv"
    file.write_text("a,b\n1,2\n")
    flow = case.held_flow()
    case.begin(file=str(file))
    case.parked()
    file.unlink()
    flow.end()
    assert case.end_well().tries == 1
    assert [
        str(upload.run_id) for upload in case.service.uploads if str(upload.run_id) in case.runs
    ] == case.runs


def killed_in_doubt_but_told_by_the_flow_where_a_second_run_is_accepted(case: Case) -> None:
    killed_before_the_run_was_recorded_and_told_by_the_flow(case)


def mapped(case: Case) -> None:
    case.calls_back(result=lambda run: {"row": run.inputs["row"]})
    case.begin()
    case.api.finished(case.dag_id, case.run_id)
    path = f"/dags/{case.dag_id}/dagRuns/{case.run_id}/taskInstances/trigger/xcomEntries/return_value?deserialize=true"
    results = [case.api.ask("GET", f"{path}&map_index={index}")["value"] for index in range(3)]
    assert [result["result"] for result in results] == [{"row": row} for row in range(3)]
    assert sorted(result["run_id"] for result in results) == sorted(case.runs)


CASES = {
    called_at_once: "waits",
    called_while_it_parks: "waits",
    called_once_it_is_parked: "waits",
    called_seconds_later: "waits",
    killed_once_the_run_is_recorded: "waits_patiently",
    killed_while_it_continues: "waits_patiently",
    killed_before_the_run_was_recorded_and_told_by_the_flow: "waits_patiently",
    told_that_it_failed: "waits_patiently",
    never_told: "waits_briefly",
    told_with_a_wrong_token: "waits",
    told_badly_and_then_well: "waits",
    told_twice: "waits",
    cleared_while_it_waits: "waits",
    cleared_while_it_continues: "waits_and_lingers",
    marked_as_success: "waits_and_announces",
    marked_as_failed: "waits",
    its_state_is_deleted_while_it_waits: "waits",
    its_files_are_gone_once_they_are_uploaded: "waits_with_files",
    killed_in_doubt_but_told_by_the_flow_where_a_second_run_is_accepted: "waits_start_again",
    mapped: "waits_mapped",
}


@pytest.fixture(scope="module")
def outcomes(deployment: Deployment, service: LocalService) -> Iterator[Outcomes]:
    with at_once(CASES, lambda run, dag_id: Case(deployment, service, dag_id, run.__name__)) as found:
        yield found


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
def test_a_wait(outcomes: Outcomes, run: Callable[[Case], None]) -> None:
    outcomes[run].result()


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
    scheduler = deployment.programs["scheduler"]
    (leader, *_) = scheduler.family()
    stop_without_a_lock(deployment, leader)
    try:
        wait_for("the park", lambda: case.state == "awaiting_input")
        flow.end()
        assert [call.status for call in case.called()] == [200]
        time.sleep(8)  # until long after the task should have been woken
    finally:
        leader.send_signal(signal.SIGCONT)
    case.end_well()
