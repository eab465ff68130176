"""
Clearing a task starts another run, a retry never does: each row of the record's table, in a real Airflow.

All the cases run at once, each in a DAG run of its own. Where Airflow's Clear itself discards what a task
kept (3.4+), whoever chooses to keep it keeps the run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_launcher.processes import alive
from airflow_launcher.waiting import wait_for
from deployment import CANNOT_MISS_HEARTBEATS
from gate import Hold
from outcomes import UNKNOWN, clear_discards, outcome, run_ids

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService

ENDED = "nothing more is sent"
AGAIN = "clear it again"
CLEARED = "The task has been cleared since"


class Case:
    """One DAG run, and what a person does to it."""

    def __init__(
        self, deployment: Deployment, service: LocalService, dag_id: str, name: str, folder: Path
    ) -> None:
        self.api, self.service, self.deployment = deployment.api, service, deployment
        self.dag_id, self.run_id, self.folder = dag_id, name.replace("_", "-"), folder
        folder.mkdir()

    def begin(self) -> None:
        self.api.trigger(self.dag_id, self.run_id, {"folder": str(self.folder)})

    def begin_in_doubt(self) -> None:
        """Let the task fail for good: whether a run was started it cannot know, but one was."""
        self.service.faults.add("drop_after", inputs={"case": self.run_id})
        self.begin()
        self.until("failed")
        assert run_ids(self.service, self.run_id)

    def begin_killed(self) -> None:
        """Let the task be killed when it has started its run, so that it waits for its retry."""
        hold = self.deployment.gate.hold(
            Hold(self.run_id, "before", "PUT", "/workflow_automation_start", '"started"')
        )
        self.begin()
        wait_for("the run", hold.reached.is_set)
        (held,) = [one for one in self.deployment.gate.tries if one.ti_id == hold.ti_id]
        os.kill(held.pid, signal.SIGKILL)
        hold.released.set()
        self.until("up_for_retry")

    def until(self, state: str) -> None:
        wait_for(f"{self.run_id} {state}", lambda: self.state == state, 180)

    def edit(self, retries: int) -> None:
        (self.deployment.home / f"retries-{self.dag_id}").write_text(str(retries))
        self.api.reparse(self.dag_id, lambda task: int(task["retries"]) == retries, "trigger")

    def clear(self, task_id: str = "trigger", **options: bool) -> None:
        self.api.clear(self.dag_id, self.run_id, task_id, **options)

    def let_go(self) -> None:
        (self.folder / "go").touch()

    @property
    def state(self) -> str | None:
        state: str | None = self.api.task(self.dag_id, self.run_id, "trigger")["state"]
        return state

    @property
    def log(self) -> str:
        return self.deployment.log(self.dag_id, self.run_id)

    def expect(self, state: str, runs: int) -> None:
        found = outcome(self.deployment, self.service, self.dag_id, self.run_id)
        assert (found.state, len(found.runs)) == (state, runs), found.log
        if found.result is not None:
            assert found.result["run_id"] == found.runs[-1]


def edited_to_fewer_in_a_dag_run_that_ended(case: Case) -> None:
    """max_tries is 1 before and after: 1 + 0."""
    case.begin_in_doubt()
    case.api.finished(case.dag_id, case.run_id)
    case.edit(0)
    case.clear()
    case.expect("success", 2)


def edited_to_more(case: Case) -> None:
    case.begin_in_doubt()
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
        wait_for("the log", lambda: AGAIN in case.log)
        assert len(run_ids(case.service, case.run_id)) == 1
        case.clear()
    case.until("success")
    case.let_go()
    case.expect("success", 2)


def another_task_cleared_while_this_one_waits_for_its_retry(case: Case) -> None:
    case.begin_killed()
    case.clear("other")
    case.expect("failed", 1)
    assert UNKNOWN in case.log
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
    case.expect("success", 1)
    assert "Returning that run, not starting another" in case.log


CASES = {
    edited_to_fewer_in_a_dag_run_that_ended: "edited_to_fewer",
    edited_to_more: "edited_to_more",
    edited_to_fewer_in_a_dag_run_that_goes_on: "edited_beside",
    another_task_cleared_while_this_one_waits_for_its_retry: "beside",
    cleared_while_it_waits_for_its_retry: "beside",
    cleared_without_the_dag_run: "beside_a_hold",
    cleared_while_running_and_its_end_taken_for_a_failure: "waits_after",
    cleared_with_its_state_kept: "patient",
}


@pytest.fixture(scope="module")
def outcomes(
    deployment: Deployment, service: LocalService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Callable[[Case], None], Future[None]]]:
    folder = tmp_path_factory.mktemp("cases")
    with ThreadPoolExecutor(len(CASES)) as pool:
        yield {
            run: pool.submit(run, Case(deployment, service, dag_id, run.__name__, folder / run.__name__))
            for run, dag_id in CASES.items()
        }


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
def test_clear_or_retry(
    outcomes: dict[Callable[[Case], None], Future[None]], run: Callable[[Case], None]
) -> None:
    outcomes[run].result(300)


@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("dag_id", ["waits_for_the_service", "waits_for_the_service_mapped"])
def test_a_task_that_a_person_ended_starts_nothing(
    deployment: Deployment, service: LocalService, dag_id: str, state: str
) -> None:
    case = f"{dag_id}-{state}".replace("_", "-")
    fault = service.faults.add("busy", retry_after="30", inputs={"case": case})
    deployment.api.trigger(dag_id, case)
    wait_for("the request", lambda: fault.struck)
    map_index = 0 if dag_id.endswith("mapped") else -1
    deployment.api.mark(dag_id, case, "trigger", state, map_index=map_index)
    (first,) = deployment.gate.tries_of(case)
    wait_for("the end of the task", lambda: not alive(first.pid))

    # It ended by itself, before Airflow killed it: a wait that is shorter would end in a run.
    wait_for("its log", lambda: ENDED in deployment.log(dag_id, case, map_index=map_index), 10)
    assert run_ids(service, case) == []
