"""A start in doubt, and a person who looked: what is asked, and that each answer does what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import cases
from airflow_launcher.api import FINISHED
from airflow_launcher.waiting import wait_for
from outcomes import clear_discards
from said import MAYBE_STARTED

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService

STARTED, NOT_STARTED, FAIL = "A run was started", "No run was started", "Fail the task"
SUCCEEDED, FAILED = "The run succeeded", "The run failed"


class Case(cases.Case):
    """One DAG run whose start is in doubt."""

    def begin_in_doubt(self, fault: str = "drop_after") -> None:
        self.service.faults.add(fault, inputs={"case": self.run_id})
        self.begin()

    @property
    def _instance(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/trigger"

    def asked(self, times: int = 1) -> dict[str, Any]:
        """
        Wait until the task waits for an answer, and return the question.

        :param times: how often it has asked
        """
        self.parked(times)
        found: dict[str, Any] = self.api.ask("GET", f"{self._instance}/-1/hitlDetails")
        return found

    def answer(self, option: str, **fields: str | None) -> None:
        body = {"chosen_options": [option], "params_input": fields}
        self.api.ask("PATCH", f"{self._instance}/-1/hitlDetails", body)

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


def a_run_was_started(case: Case) -> None:
    case.begin_in_doubt()
    question = case.asked()
    assert question["subject"] == "Was a run started?"
    assert question["options"] == [STARTED, NOT_STARTED, FAIL]
    assert "`workflow_automation_default`" in question["body"]
    assert "flow `demo-flow`" in question["body"]
    (run_id,) = case.runs
    case.answer(STARTED, run_id=run_id, run_link="https://service.example/runs/9")
    found = case.end("success")
    assert found.result == {
        "run_id": run_id,
        "run_link": "https://service.example/runs/9",
        "flow_id": "demo-flow",
    }
    assert found.runs == [run_id]


def an_answer_without_the_run_id_is_asked_for_again(case: Case) -> None:
    case.begin_in_doubt()
    case.asked()
    (run_id,) = case.runs
    case.answer(STARTED, run_id=None, run_link=None)
    case.asked(2)
    case.answer(STARTED, run_id=f" {run_id} ", run_link=None)
    assert case.end("success").result == {"run_id": run_id, "flow_id": "demo-flow"}


def no_run_was_started(case: Case) -> None:
    case.begin_in_doubt("drop_before")
    case.asked()
    assert not case.runs
    case.answer(NOT_STARTED, run_id=None, run_link=None)
    found = case.end("success")
    assert found.result
    assert found.runs == [found.result["run_id"]]


def no_run_was_started_and_the_next_start_is_in_doubt_as_well(case: Case) -> None:
    case.service.faults.add("drop_before", inputs={"case": case.run_id}, times=2)
    case.begin()
    case.asked()
    case.answer(NOT_STARTED, run_id=None, run_link=None)
    case.asked(2)
    case.answer(NOT_STARTED, run_id=None, run_link=None)
    assert len(case.end("success").runs) == 1


def cleared_while_it_continues(case: Case) -> None:
    """Airflow continues the next try with the answer that was given to the earlier one."""
    case.begin_in_doubt("drop_before")
    case.asked()
    hang = case.service.faults.add("hang_before", inputs={"case": case.run_id}, seconds=90)
    case.answer(NOT_STARTED, run_id=None, run_link=None)
    wait_for("the second request", lambda: hang.struck)
    case.api.clear(case.dag_id, case.run_id, "trigger")
    found = case.end("success")
    assert "cleared after it continued" in found.log
    assert len(found.runs) == 1


def fail(case: Case) -> None:
    case.begin_in_doubt()
    case.asked()
    case.answer(FAIL, run_id=None, run_link=None)
    found = case.end("failed")
    assert f"answered: {FAIL}." in found.log
    assert MAYBE_STARTED in found.log
    assert found.tries == 1


def killed_before_the_outcome_was_known(case: Case) -> None:
    hold = case.hold("after", "PUT", cases.RECORD, "starting")
    case.begin()
    wait_for("the record", hold.reached.is_set)
    case.kill_task()
    hold.released.set()
    question = case.asked(2)
    assert "Try 1 (" in question["body"]
    case.answer(NOT_STARTED, run_id=None, run_link=None)
    found = case.end("success")
    assert len(found.runs) == 1


def a_run_whose_id_is_unknown(case: Case) -> None:
    case.begin_in_doubt("garbage")
    question = case.asked()
    assert question["options"] == [STARTED, FAIL]
    (run_id,) = case.runs
    case.answer(STARTED, run_id=run_id, run_link=None)
    assert case.end("success").result == {"run_id": run_id, "flow_id": "demo-flow"}


def nobody_answers(case: Case) -> None:
    case.begin_in_doubt()
    found = case.end("failed")
    assert "ask_timeout (0:00:30)" in found.log
    assert found.tries == 1
    assert len(found.runs) == 1


def a_run_that_ended_meanwhile(case: Case) -> None:
    case.begin_in_doubt()
    question = case.asked()
    assert question["options"] == [STARTED, NOT_STARTED, SUCCEEDED, FAILED, FAIL]
    (run_id,) = case.runs
    case.answer(SUCCEEDED, run_id=run_id, run_link=None, result='{"rows": 3}', message=None)
    found = case.end("success")
    assert found.result == {"run_id": run_id, "flow_id": "demo-flow", "result": {"rows": 3}}


def a_run_that_then_ends(case: Case) -> None:
    case.begin_in_doubt()
    case.asked()
    (run_id,) = case.runs
    case.answer(STARTED, run_id=run_id, run_link=None, result=None, message=None)
    case.asked(2)
    assert "Waiting for the end" in case.log
    case.answer(FAILED, run_id=None, run_link=None, result=None, message="disk full")
    found = case.end("failed")
    assert "failed: disk full" in found.log
    assert found.runs == [run_id]


def a_failed_task_is_given_its_run(case: Case) -> None:
    case.begin_in_doubt()
    case.until("failed")
    (run_id,) = case.runs
    assert "key workflow_automation_run" in case.log
    case.give({"run_id": run_id, "run_link": "https://service.example/runs/7"})
    case.clear()
    found = case.end("success")
    assert found.result == {"run_id": run_id, "run_link": "https://service.example/runs/7"}
    assert found.runs == [run_id]


def a_run_is_given_once(case: Case) -> None:
    case.begin_in_doubt()
    case.until("failed")
    (run_id,) = case.runs
    case.give(run_id)
    case.clear()
    assert case.end("success").result == {"run_id": run_id}
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
    assert found.result == {"run_id": "77"}
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
    a_run_was_started: "asks",
    an_answer_without_the_run_id_is_asked_for_again: "asks",
    no_run_was_started: "asks",
    no_run_was_started_and_the_next_start_is_in_doubt_as_well: "asks",
    cleared_while_it_continues: "asks",
    fail: "asks_patiently",
    killed_before_the_outcome_was_known: "asks_patiently",
    a_run_whose_id_is_unknown: "asks",
    nobody_answers: "asks_briefly",
    a_run_that_ended_meanwhile: "asks_and_waits",
    a_run_that_then_ends: "asks_and_waits",
    a_failed_task_is_given_its_run: "patient",
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
