"""
A Clear starts another run; a retry never does, nor a task that a person ended: in a real Airflow.

What each fault comes to is in ``tests/unit/test_fault_table.py``, and what becomes of a cleared
task in any state, whatever else happens to it, in ``tests/unit/test_world_machine.py``. Airflow 3.4
deletes what a task that is cleared has stored: its next try cannot tell of the run of before.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import RetryDecision

from airflow_launcher.processes import alive, wait_for
from airflow_rows import IS_3_4
from case import Case, play
from sentences import MAYBE_STARTED


@play("patient")
def test_cleared_once_it_had_succeeded(case: Case) -> None:
    """And again with its DAG run: Airflow 3.4, too, keeps what the tasks have stored then."""
    case.begin()
    case.end("success", runs=1)
    case.clear()
    case.end("success", runs=2)
    if not IS_3_4:
        wait_for("its log", lambda: f"started run {case.runs[0]}" in case.log)
    case.api.ask("POST", f"/dags/{case.dag_id}/dagRuns/{case.run_id}/clear", {"dry_run": False})
    case.end("success", runs=3)


@play("patient")
def test_cleared_while_the_service_works(case: Case) -> None:
    """
    It starts another run, though it was running, and is not retried.

    The task was killed before it knew of its run: its next try is the one place that tells of it.
    """
    fault = case.fault("hang_after", seconds=90)
    case.begin()
    wait_for("the run", lambda: fault.struck and case.runs)
    case.clear()
    case.until_seen(1)
    case.end("success", runs=2)
    if not IS_3_4:
        assert any(
            MAYBE_STARTED in line and "has been cleared" in line for line in case.log.splitlines()
        )


@play("after_another")
def test_the_task_before_is_marked_as_success(case: Case) -> None:
    """Airflow then clears the failed tasks downstream of it, and the task starts another run."""
    case.fault("drop_after")
    case.begin()
    case.end("failed", runs=1)
    # It has succeeded, and could not be marked as what it is.
    case.mark("failed", task_id="before")
    case.mark("success", task_id="before")
    wait_for("another run", lambda: len(case.runs) == 2)
    case.end("success", runs=2)


@play("waits_for_the_service_mapped")
def test_marked_as_success_mapped(case: Case) -> None:
    """
    It ends by itself, before Airflow kills it, and starts nothing.

    A wait that is shorter would end in a run.
    """

    def log() -> str:
        return case.deployment.log(case.dag_id, case.run_id, map_index=0)

    case.fault("busy", retry_after="240")
    case.begin()
    wait_for("the wait", lambda: "Retrying in" in log())
    case.mark("success", map_index=0)
    wait_for("the end of the task", lambda: not alive(case.tries[0].pid))
    wait_for("its log", lambda: "nothing more is sent" in log())
    assert case.runs == []


@play("patient")
def test_retried_when_the_service_asks(case: Case) -> None:
    """The DAG's own retry_delay is 1 s; how much later the retry comes is up to the scheduler."""
    case.fault("busy", retry_after="8")
    case.begin()
    case.end("success", runs=1)
    tries = case.api.tries(case.dag_id, case.run_id, "trigger")
    if hasattr(RetryDecision, "reschedule"):
        assert [one["try_number"] for one in tries] == [1], "Airflow 3.4 spends no retry"
        return
    first, second = (
        datetime.fromisoformat(tries[n][date]) for n, date in ((0, "end_date"), (1, "start_date"))
    )
    assert round((second - first).total_seconds(), 3) >= 8
