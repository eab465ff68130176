"""
Runs that claim their start: after a lost response or a kill, one run goes past its first step, and the task has it.

What counts is not the runs that were started, but those that worked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from airflow_launcher.waiting import wait_for
from cases import OUTCOME, START, Case, Flow, Outcomes, at_once
from outcomes import Outcome, clear_discards
from workflow_automation_provider.execution.callback import PATH

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


def begins(case: Case, started: float, **options: Any) -> None:
    """Have a run of the case claim its start, and then end without a word."""
    case.calls_back(**{"status": None, **options}, started=started)


def lose_response(case: Case, **inputs: Any) -> None:
    case.service.faults.add("drop_after", inputs={"case": case.run_id, **inputs})


@contextmanager
def killed_before_it_is_recorded(case: Case) -> Iterator[None]:
    """Kill the task between the response of the service and the write that makes it durable."""
    hold = case.hold("before", "PUT", OUTCOME, lost=True)
    case.begin()
    wait_for("the run", hold.reached.is_set)
    case.kill_task()
    yield
    hold.released.set()


def kill_before_it_is_recorded(case: Case) -> None:
    with killed_before_it_is_recorded(case):
        pass


def clear(case: Case) -> None:
    case.api.clear(
        case.dag_id, case.run_id, "trigger", **({"keep_task_state": True} if clear_discards() else {})
    )


def end_green(case: Case, *, runs: int = 1, tries: int = 1) -> Outcome:
    """Expect the last run, and that no other has worked since the last Clear."""
    found = case.end("success")
    assert (len(found.runs), found.tries) == (runs, tries)
    wait_for("the first step", lambda: case.worked)
    assert case.worked[-1] == found.runs[-1]
    assert found.result
    assert found.result["run_id"] == found.runs[-1]
    return found


def the_response_is_lost(case: Case) -> None:
    begins(case, 2)
    lose_response(case)
    case.begin()
    end_green(case)
    assert len(case.worked) == 1


def killed_before_it_is_recorded_and_claimed_until_the_retry(case: Case) -> None:
    begins(case, 0)
    first_step = case.hold_first_step()
    with killed_before_it_is_recorded(case):
        # The second try looks first of all.
        second = case.hold("before", "GET", START)
    wait_for("the second try", second.reached.is_set)
    first_step.released.set()
    assert [call.status for call in case.called()] == [200]
    second.released.set()
    found = end_green(case, tries=2)
    assert len(case.worked) == 1
    assert "Waiting up to" not in found.log


def killed_in_the_last_try_and_cleared(case: Case) -> None:
    """A Clear starts over: the run of before is told to stop."""
    last_step = Flow()
    case.calls_back(started=0, result=last_step, times=1)
    begins(case, 0)
    kill_before_it_is_recorded(case)
    case.end("failed")
    wait_for("the first step", lambda: case.worked)
    clear(case)
    end_green(case, runs=2, tries=2)
    last_step.end()
    assert [call.status for call in case.called(3)] == [200, 200, 404]
    assert case.worked == case.runs


def its_first_step_is_too_late(case: Case) -> None:
    begins(case, 0)
    lose_response(case)
    first_step = case.hold_first_step()
    case.begin()
    end_green(case, runs=2, tries=2)
    first_step.released.set()
    assert {str(call.run_id): call.status for call in case.called(2)} == dict(
        zip(case.runs, (404, 200), strict=True)
    )
    assert case.worked == case.runs[1:]


def its_first_step_is_too_late_in_the_last_try(case: Case) -> None:
    begins(case, 0)
    lose_response(case)
    first_step = case.hold_first_step()
    case.begin()
    found = case.end("failed")
    assert "[start-revoked]" in found.log
    first_step.released.set()
    assert [call.status for call in case.called()] == [404]
    assert case.worked == []
    clear(case)
    end_green(case, runs=2, tries=2)
    assert len(case.worked) == 1


def its_first_step_comes_before_the_response(case: Case) -> None:
    begins(case, 0)
    case.service.faults.add("drip", seconds=20, inputs={"case": case.run_id})
    recorded = case.hold("before", "PUT", OUTCOME)
    case.begin()
    wait_for("the first step", lambda: case.worked)
    assert not recorded.reached.is_set()
    recorded.released.set()
    end_green(case)


def its_first_step_comes_once_the_task_has_succeeded(case: Case) -> None:
    begins(case, 0)
    first_step = case.hold_first_step()
    case.begin()
    case.end("success")
    first_step.released.set()
    end_green(case)
    assert [call.status for call in case.called()] == [200]


def the_api_server_is_down_at_the_first_step(case: Case) -> None:
    begins(case, 0)
    lose_response(case)
    down = case.hold("before", "POST", PATH, '"started"', lost=True)
    down.status = 503
    down.released.set()
    case.begin()
    end_green(case)
    assert [(call.status, call.attempts) for call in case.called()] == [(200, 2)]
    assert len(case.worked) == 1


def marked_as_success_while_it_uploads(case: Case) -> None:
    """The task waits for its run, but has not begun to: nobody wants the run any more."""
    begins(case, 0)
    uploads = case.service.faults.add("delay", seconds=20, operation="upload", inputs={"case": case.run_id})
    first_step = case.hold_first_step()
    file = case.deployment.home / f"{case.run_id}.csv"
    file.write_text("a,b\n1,2\n")
    case.begin(file=str(file))
    wait_for("the upload", lambda: uploads.struck)
    case.api.mark(case.dag_id, case.run_id, "trigger", "success")
    first_step.released.set()
    assert [call.status for call in case.called()] == [404]
    assert case.worked == []


def mapped(case: Case) -> None:
    begins(case, 1)
    lose_response(case, row=0)
    case.service.faults.add("hang_after", inputs={"case": case.run_id, "row": 2}, seconds=5)
    case.begin()
    assert case.api.finished(case.dag_id, case.run_id) == "success"
    results = [case.api.xcom(case.dag_id, case.run_id, "trigger", map_index=index) for index in range(3)]
    rows = {
        str(run.run_id): run.inputs["row"] for run in case.service.runs if run.inputs["case"] == case.run_id
    }
    assert [rows[result["run_id"]] for result in results] == [0, 1, 2]
    wait_for("the first steps", lambda: len(case.worked) == 3)


def it_speaks_while_it_works(case: Case) -> None:
    """For longer than it may be silent."""
    words = [{"progress": n / 4, "delay": 9} for n in range(4)]
    case.calls_back(started=1, running=words, result={"rows": 3})
    lose_response(case)
    case.begin()
    assert case.end_well().tries == 1
    assert [call.status for call in case.called(6)] == [200] * 6


def it_falls_silent(case: Case) -> None:
    begins(case, 0, running=[{"message": "half of the rows", "progress": 0.5}])
    case.begin()
    found = case.end("failed")
    assert found.tries == 1
    assert "[run-silent]" in found.log
    assert "half of the rows (50%)" in found.log
    assert len(found.runs) == 1


def it_failed_and_is_started_again(case: Case) -> None:
    case.calls_back(status="failed", message="no such table", started=0, times=1)
    case.calls_back(result={"rows": 3}, started=0)
    case.begin()
    found = case.end_well(runs=2)
    assert found.tries == 2
    assert all(run_id in found.log for run_id in found.runs)
    assert case.worked == case.runs


CASES = {
    the_response_is_lost: "claims",
    killed_before_it_is_recorded_and_claimed_until_the_retry: "claims_patiently",
    killed_in_the_last_try_and_cleared: "claims",
    its_first_step_is_too_late: "claims_briefly",
    its_first_step_is_too_late_in_the_last_try: "claims_briefly_once",
    its_first_step_comes_before_the_response: "claims",
    its_first_step_comes_once_the_task_has_succeeded: "claims",
    the_api_server_is_down_at_the_first_step: "claims",
    marked_as_success_while_it_uploads: "claims_with_files",
    mapped: "claims_mapped",
    it_speaks_while_it_works: "claims_and_waits",
    it_falls_silent: "claims_and_waits",
    it_failed_and_is_started_again: "starts_failed_again",
}


@pytest.fixture(scope="module")
def outcomes(deployment: Deployment, service: LocalService) -> Iterator[Outcomes]:
    def case_of(run: Callable[[Case], None], dag_id: str) -> Case:
        return Case(deployment, service, dag_id, f"claim-{run.__name__}")

    with at_once(CASES, case_of) as found:
        yield found


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
def test_a_claim(outcomes: Outcomes, run: Callable[[Case], None]) -> None:
    outcomes[run].result()
