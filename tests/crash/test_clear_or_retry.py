"""
Clearing a task starts another run; a retry never does, nor a task that a person ended: in a real Airflow.

All the cases run at once, each in a DAG run of its own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import cases
from airflow_launcher.processes import alive
from airflow_launcher.waiting import wait_for
from deployment import CANNOT_MISS_HEARTBEATS
from gate import Hold
from outcomes import clear_discards, outcome
from said import MAYBE_STARTED

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService

ENDED = "nothing more is sent"
CLEARED = "has been cleared"


one_end = threading.Lock()


class Case(cases.Case):
    """One DAG run, and what a person does to it."""

    def __init__(self, deployment: Deployment, service: LocalService, dag_id: str, name: str) -> None:
        super().__init__(deployment, service, dag_id, f"clear-{name}")
        self.folder = deployment.home / self.run_id
        self.folder.mkdir()

    def begin(self, **conf: str) -> None:
        super().begin(folder=str(self.folder), **conf)

    def begin_in_doubt(self) -> None:
        """Let the task fail for good: whether a run was started it cannot know, but one was."""
        self.service.faults.add("drop_after", inputs={"case": self.run_id})
        self.begin()
        self.until("failed")
        assert self.runs

    def begin_killed(self) -> None:
        """Let the task be killed when it has started its run, so that it waits for its retry."""
        hold = self.hold("before", "PUT", cases.OUTCOME, lost=True)
        self.begin()
        wait_for("the run", hold.reached.is_set)
        (held,) = [one for one in self.deployment.gate.tries if one.ti_id == hold.ti_id]
        os.kill(held.pid, signal.SIGKILL)
        hold.released.set()
        self.until("up_for_retry")

    def until(self, state: str) -> None:
        wait_for(f"{self.run_id} {state}", lambda: self.state == state, pause=0.5)

    def edit(self, retries: int) -> None:
        (self.deployment.home / f"retries-{self.dag_id}").write_text(str(retries))
        self.api.reparse(self.dag_id, lambda task: int(task["retries"]) == retries, "trigger")

    def clear(self, task_id: str = "trigger", **options: bool) -> None:
        self.api.clear(self.dag_id, self.run_id, task_id, **options)

    def clear_running(self) -> None:
        """Clear the task, and wait for its end: of two whose end it sees at once, Airflow 3.3 counts one Clear."""
        with one_end:
            self.clear()
            wait_for("the end of the task", lambda: self.deployment.executions_seen(self.run_id))

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def expect(self, state: str, runs: int, tries: int | None = None) -> None:
        found = outcome(self.deployment, self.service, self.dag_id, self.run_id)
        assert (found.state, len(found.runs)) == (state, runs), found.log
        assert found.tries == tries or tries is None
        if found.result is not None:
            assert found.result["run_id"] == found.runs[-1]


def edited_to_fewer_in_a_dag_run_that_ended(case: Case) -> None:
    """max_tries is 1 before and after: 1 + 0. It could as well be a retry."""
    case.begin_in_doubt()
    case.api.finished(case.dag_id, case.run_id)
    case.edit(0)
    case.clear()
    if not clear_discards():
        case.expect("failed", 1, tries=2)
        case.clear()
    case.expect("success", 2)


def edited_to_more(case: Case) -> None:
    case.begin_in_doubt()
    case.api.finished(case.dag_id, case.run_id)
    case.edit(3)
    case.clear()
    case.expect("success", 2)


def edited_to_fewer_in_a_dag_run_that_goes_on(case: Case) -> None:
    case.begin_in_doubt()
    case.edit(0)
    case.clear()
    if not clear_discards():
        # It could as well be a retry: no second run, until the person clears once more.
        case.until("failed")
        assert len(case.runs) == 1
        case.clear()
    case.until("success")
    case.let_go()
    case.expect("success", 2)


def another_task_cleared_while_this_one_waits_for_its_retry(case: Case) -> None:
    case.begin_killed()
    case.clear("other")
    case.expect("failed", 1)
    assert MAYBE_STARTED in case.log
    assert CLEARED not in case.log


def cleared_while_it_waits_for_its_retry(case: Case) -> None:
    case.begin_killed()
    case.clear()
    case.expect("success", 2)


def cleared_without_the_dag_run(case: Case) -> None:
    """Where the DAG run's state is left as it is, Airflow does not count the Clear."""
    case.begin_in_doubt()
    case.clear(reset_dag_runs=False)
    case.until("success")
    case.let_go()
    case.expect("success", 2)


def cleared_while_running_and_its_end_taken_for_a_failure(case: Case) -> None:
    """A worker that hangs: Airflow misses the heartbeats of the task that it was to end."""
    if CANNOT_MISS_HEARTBEATS:
        pytest.skip("Airflow 3.4.0b2's scheduler ends at the first task without heartbeats")
    case.begin()
    wait_for("the task", (case.folder / "here").exists)
    (first,) = case.deployment.gate.tries_of(case.run_id)
    frozen = (first.supervisor, first.pid)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        case.clear()
        case.deployment.miss_heartbeats(first.pid)
        case.expect("success", 1)
    finally:
        case.let_go()
        for pid in reversed(frozen):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def cleared_with_its_state_kept(case: Case) -> None:
    if not clear_discards():
        pytest.skip("Before Airflow 3.4 nobody can choose to keep a task's state")
    case.begin()
    case.expect("success", 1)
    case.clear(keep_task_state=True)
    case.expect("success", 2)


def cleared_once_it_had_succeeded(case: Case) -> None:
    case.begin()
    case.expect("success", 1)
    (first,) = case.runs
    case.clear()
    case.expect("success", 2)
    if not clear_discards():
        assert "Try 1 (" in case.log
        assert f"started run {first}" in case.log


def cleared_once_it_had_failed(case: Case) -> None:
    case.begin_in_doubt()
    case.expect("failed", 1)
    assert MAYBE_STARTED in case.log
    case.clear()
    case.expect("success", 2)


def cleared_once_it_had_failed_without_its_run_id(case: Case) -> None:
    case.service.faults.add("garbage", inputs={"case": case.run_id})
    case.begin()
    case.expect("failed", 1)
    case.clear()
    case.expect("success", 2)


def cleared_while_running(case: Case) -> None:
    case.begin()
    wait_for("the task", (case.folder / "here").exists)
    case.clear_running()
    case.expect("success", 2)


def cleared_while_the_service_works(case: Case) -> None:
    fault = case.service.faults.add("delay", seconds=30, inputs={"case": case.run_id})
    case.begin()
    wait_for("the request", lambda: fault.struck)
    case.clear_running()
    found = outcome(case.deployment, case.service, case.dag_id, case.run_id)
    assert found.state == "success"
    if clear_discards():
        # The task that ends may yet store its run, after the Clear: then the next try keeps it.
        assert found.result is not None
        assert found.result["run_id"] == case.runs[-1]
    else:
        wait_for("both runs", lambda: len(case.runs) == 2)
        # The task was killed before it knew of its run: this is the one place that tells of it.
        assert any(MAYBE_STARTED in line and CLEARED in line for line in case.log.splitlines())


def cleared_with_its_dag_run(case: Case) -> None:
    """Airflow 3.4, too, keeps what the tasks have stored then."""
    case.begin()
    case.expect("success", 1)
    case.api.ask("POST", f"/dags/{case.dag_id}/dagRuns/{case.run_id}/clear", {"dry_run": False})
    case.expect("success", 2)


def deleted_with_its_dag_run_and_run_again(case: Case) -> None:
    case.begin()
    case.expect("success", 1)
    case.api.ask("DELETE", f"/dags/{case.dag_id}/dagRuns/{case.run_id}")
    case.begin()
    # The scheduler may take the executor's late event of the deleted try for this one's, and retry it.
    case.expect("success", 2)


def retried_where_the_record_is_not_found(case: Case) -> None:
    """A 404, as of an API server without the route."""
    recorded = case.hold("after", "PUT", cases.OUTCOME)
    case.begin()
    wait_for("the record", recorded.reached.is_set)
    lost = case.deployment.gate.hold(Hold(case.run_id, "before", "GET", f"{cases.START}1/0", status=404))
    lost.released.set()
    case.kill_task()
    recorded.released.set()
    case.expect("success", 1, tries=2)
    assert lost.reached.is_set()


def retried_where_the_record_of_taskflow_is_not_found(case: Case) -> None:
    retried_where_the_record_is_not_found(case)


def retried_and_the_next_dag_reads_its_run(case: Case) -> None:
    """Which the asset of the run starts."""
    hold = case.hold("after", "PUT", cases.OUTCOME)
    case.begin()
    wait_for("the record", hold.reached.is_set)
    case.kill_task()
    hold.released.set()
    case.expect("success", 1, tries=2)
    (continued,) = wait_for("the next DAG run", lambda: case.api.dag_runs("asset_continue"))
    run_id = continued["dag_run_id"]
    assert case.api.finished("asset_continue", run_id) == "success"
    assert case.api.xcom("asset_continue", run_id, "read") == [
        case.api.xcom(case.dag_id, case.run_id, "trigger")
    ]


def ended_by_a_person(case: Case, state: str) -> None:
    """It ends by itself, before Airflow kills it, and starts nothing: a wait that is shorter would end in a run."""
    case.service.faults.add("busy", retry_after="30", inputs={"case": case.run_id})
    map_index = 0 if case.dag_id.endswith("mapped") else -1

    def log() -> str:
        return case.deployment.log(case.dag_id, case.run_id, map_index=map_index)

    case.begin()
    wait_for("the wait", lambda: "Retrying in" in log())
    case.api.mark(case.dag_id, case.run_id, "trigger", state, map_index=map_index)
    (first,) = case.deployment.gate.tries_of(case.run_id)
    wait_for("the end of the task", lambda: not alive(first.pid))
    wait_for("its log", lambda: ENDED in log())
    assert case.runs == []


def marked_as_failed(case: Case) -> None:
    ended_by_a_person(case, "failed")


def marked_as_success(case: Case) -> None:
    ended_by_a_person(case, "success")


def marked_as_failed_mapped(case: Case) -> None:
    ended_by_a_person(case, "failed")


def marked_as_success_mapped(case: Case) -> None:
    ended_by_a_person(case, "success")


CASES = {
    edited_to_fewer_in_a_dag_run_that_ended: "edited_to_fewer",
    edited_to_more: "edited_to_more",
    edited_to_fewer_in_a_dag_run_that_goes_on: "edited_beside",
    another_task_cleared_while_this_one_waits_for_its_retry: "beside",
    cleared_while_it_waits_for_its_retry: "beside",
    cleared_without_the_dag_run: "beside_a_hold",
    cleared_while_running_and_its_end_taken_for_a_failure: "waits_after",
    cleared_with_its_state_kept: "patient",
    cleared_once_it_had_succeeded: "patient",
    cleared_once_it_had_failed: "patient",
    cleared_once_it_had_failed_without_its_run_id: "patient",
    cleared_while_running: "waits_after",
    cleared_while_the_service_works: "patient",
    cleared_with_its_dag_run: "patient",
    deleted_with_its_dag_run_and_run_again: "patient",
    retried_where_the_record_is_not_found: "patient",
    retried_where_the_record_of_taskflow_is_not_found: "taskflow",
    retried_and_the_next_dag_reads_its_run: "asset_start",
    marked_as_failed: "waits_for_the_service",
    marked_as_success: "waits_for_the_service",
    marked_as_failed_mapped: "waits_for_the_service_mapped",
    marked_as_success_mapped: "waits_for_the_service_mapped",
}


@pytest.fixture(scope="module")
def outcomes(deployment: Deployment, service: LocalService) -> Iterator[cases.Outcomes]:
    with cases.at_once(CASES, lambda run, dag_id: Case(deployment, service, dag_id, run.__name__)) as found:
        yield found


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
def test_clear_or_retry(outcomes: cases.Outcomes, run: Callable[[Case], None]) -> None:
    outcomes[run].result()
