"""PostgreSQL is gone for a while, when a task waits for the service."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_launcher.processes import wait_for
from said import MAYBE_STARTED

if TYPE_CHECKING:
    from services import Service
    from stack import Stack


def test_outage_while_the_service_answers(
    stack: Stack, service: Service, note: Callable[[str], None]
) -> None:
    """The database is gone when the task comes to record its run, and the heartbeats are late when it is back."""
    case = "outage"
    service.add_fault("delay", case, seconds=6)
    stack.api.trigger("system_trigger", case)
    wait_for("the fault", lambda: service.struck(case))
    pid = stack.api.task("system_trigger", case, "trigger")["pid"]
    stack.postgresql.stop()
    (run,) = wait_for("the run", lambda: service.runs_of(case))
    time.sleep(6)  # for the task to ask in vain
    stack.postgresql.start()
    stack.miss_heartbeats([pid])

    state = stack.api.finished("system_trigger", case)
    task = stack.api.task("system_trigger", case, "trigger")
    note(f"PostgreSQL gone for a while: {state} in {task['try_number']} tries")
    assert service.runs_of(case) == [run]
    if task["state"] == "success":
        assert stack.api.xcom("system_trigger", case, "trigger")["run_id"] == run.run_id
    else:
        # What could not be recorded is at least announced, and not tried again.
        assert task["state"] == "failed"
        assert MAYBE_STARTED in stack.api.log("system_trigger", case, "trigger", task["try_number"])
    # Airflow fails a task that it cannot hand out, so the next task may never have been run.
    assert len(service.runs_of(case, "after")) == (1 if state == "success" else 0)


def test_no_task_instance_started_two_runs(service: Service) -> None:
    """After all that was done before this test."""
    # Of a case, a task has its id in the inputs, an item of a batch or a mapped task its number.
    started = Counter(
        (run.inputs["case"], *(run.inputs.get(name) for name in ("task", "n", "row")))
        for run in service.journal.runs()
        if "case" in run.inputs
    )
    assert [case for case, runs in started.items() if runs > 1] == []
