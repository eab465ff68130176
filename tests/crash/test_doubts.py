"""A start in doubt, and a person who looked, and gives the failed task its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import cases
from airflow_launcher.api import FINISHED
from airflow_launcher.waiting import wait_for
from outcomes import clear_discards

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService

FLOW = {"flow_id": "demo-flow"}
"""Of the start that was in doubt."""


class Case(cases.Case):
    """One DAG run whose start is in doubt."""

    def begin_in_doubt(self, fault: str = "drop_after") -> None:
        self.service.faults.add(fault, inputs={"case": self.run_id})
        self.begin()

    @property
    def _instance(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/trigger"

    def give(self, run: object) -> None:
        """Enter a run in the task's state store, as the tab Storage does."""
        path = f"{self._instance}/state-store/workflow_automation_run?map_index=-1"
        self.api.ask("PUT", path, {"value": run})

    def clear(self) -> None:
        kept = {"keep_task_state": True} if clear_discards() else {}
        self.api.clear(self.dag_id, self.run_id, "trigger", **kept)

    def until(self, state: str) -> None:
        wait_for(f"{self.run_id} {state}", lambda: self.state == state, pause=0.5)
        if state in FINISHED:
            # A Clear in between would be overtaken by the end of the DAG run.
            self.api.finished(self.dag_id, self.run_id)


def a_failed_task_is_given_its_run(case: Case) -> None:
    case.begin_in_doubt()
    case.until("failed")
    (run_id,) = case.runs
    assert "key workflow_automation_run" in case.log
    case.give({"run_id": run_id, "run_link": "https://service.example/runs/7"})
    case.clear()
    found = case.end("success")
    assert found.result == {**FLOW, "run_id": run_id, "run_link": "https://service.example/runs/7"}
    assert found.runs == [run_id]


def a_run_whose_id_is_unknown_is_given(case: Case) -> None:
    case.begin_in_doubt("garbage")
    case.until("failed")
    (run_id,) = case.runs
    case.give(run_id)
    case.clear()
    found = case.end("success")
    assert found.result == {**FLOW, "run_id": run_id}
    assert found.runs == [run_id]


def a_run_is_given_once(case: Case) -> None:
    case.begin_in_doubt()
    case.until("failed")
    (run_id,) = case.runs
    case.give(run_id)
    case.clear()
    assert case.end("success").result == {**FLOW, "run_id": run_id}
    if not clear_discards():  # else the person chose to keep it
        case.clear()
        found = case.end("success")
        assert len(found.runs) == 2
        assert found.result
        assert found.result["run_id"] == found.runs[1]


def a_rejected_task_is_given_a_run(case: Case) -> None:
    case.begin_in_doubt("reject")
    case.until("failed")
    case.give(77)
    case.clear()
    found = case.end("success")
    assert found.result == {**FLOW, "run_id": "77"}
    assert not found.runs


def what_is_given_names_no_run(case: Case) -> None:
    case.begin_in_doubt()
    case.until("failed")
    case.give({"run": "77"})
    case.clear()
    case.until("failed")
    found = case.end("failed")
    assert "has 'run': expected" in found.log
    assert len(found.runs) == 1


CASES = {
    a_failed_task_is_given_its_run: "patient",
    a_run_whose_id_is_unknown_is_given: "patient",
    a_run_is_given_once: "patient",
    a_rejected_task_is_given_a_run: "patient",
    what_is_given_names_no_run: "patient",
}


@pytest.fixture(scope="module")
def outcomes(deployment: Deployment, service: LocalService) -> Iterator[cases.Outcomes]:
    with cases.at_once(CASES, lambda run, dag_id: Case(deployment, service, dag_id, run.__name__)) as found:
        yield found


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
def test_a_start_in_doubt(outcomes: cases.Outcomes, run: Callable[[Case], None]) -> None:
    outcomes[run].result()
