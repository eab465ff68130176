"""
Tasks that wait for the end of their run, on Celery with two schedulers.

Each gets its own answer, whatever is killed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_launcher.airflow import PASSWORD, USER
from airflow_launcher.processes import wait_for
from real_airflow import Flow
from services import FLOW_ID, KEY
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from stack import Stack

WAITS = int(os.environ.get("WAITS", "20"))
LONGEST_DELAY = 12.0
AGAIN: dict[str, Any] = {"wait": 0.5, "attempts": 12}
RESULT = {"rows": 3}
HELD = [f"suspended-{n}" for n in range(3)]


@pytest.fixture(scope="module")
def flows(stack: Stack) -> Iterator[LocalService]:
    """A service in this process: a test can hold back what its flows do."""
    with LocalService([Key(KEY, FLOW_ID)], journal=stack.home / "flows.jsonl") as flows:
        stack.api.add_connection("waits", flows.airflow_connection())
        yield flows


def test_each_of_many_gets_its_own_answer(
    stack: Stack, flows: LocalService, note: Callable[[str], None]
) -> None:
    delays = random.Random(WAITS)
    for row in range(WAITS):
        delay = delays.uniform(0, LONGEST_DELAY)
        flows.callbacks.add(
            inputs={"case": "batch", "row": row}, result={"row": row}, delay=delay, **AGAIN
        )
    stack.api.trigger("system_wait_mapped", "batch", {"conn_id": "waits", "rows": WAITS})
    state = stack.api.finished("system_wait_mapped", "batch", 60 + 10 * WAITS)
    where = "FROM task_instance WHERE run_id = 'batch' AND task_id = 'trigger'"
    found = stack.query(f"SELECT map_index, state, try_number, end_date {where} ORDER BY map_index")
    assert [(index, state, tries) for index, state, tries, _ in found] == [
        (row, "success", 1) for row in range(WAITS)
    ]
    assert state == "success"
    assert not stack.query("SELECT map_index FROM task_instance_history WHERE run_id = 'batch'")

    runs = {run.inputs["row"]: run.run_id for run in flows.runs}
    assert len(flows.runs) == len(runs) == WAITS
    for row in range(WAITS):
        value = stack.api.xcom("system_wait_mapped", "batch", "trigger", map_index=row)
        assert (value["result"], value["run_id"]) == ({"row": row}, runs[row])

    calls = {call.run_id: call for call in flows.journal.callbacks()}
    assert [calls[runs[row]].status for row in range(WAITS)] == [200] * WAITS
    after = sorted(
        (end - datetime.fromisoformat(calls[runs[row]].at)).total_seconds()
        for row, _, _, end in found
    )
    note(
        f"{WAITS} waits: all delivered, {after[0]:.0f} to {after[-1]:.0f} s after the call, "
        f"half within {after[WAITS // 2]:.0f} s"
    )


def test_all_else_is_killed_while_tasks_wait(stack: Stack, flows: LocalService) -> None:
    """
    The API server, a scheduler and the triggerer.

    The flows call while there is no endpoint, and again.
    """
    held = {case: Flow() for case in HELD}
    for case, flow in held.items():
        flows.callbacks.add(inputs={"case": case}, result=flow, **AGAIN)
        stack.api.trigger("system_wait", case, {"conn_id": "waits"})
    for case in held:
        wait_for(f"{case} suspended", partial(stack.is_suspended, "system_wait", case), pause=0.5)
    for name in ("scheduler", "triggerer", "api-server"):
        stack.programs[name].kill()
    for flow in held.values():
        flow.end()
    wait_for("Airflow", lambda: stack.api.healthy(["scheduler", "triggerer"]), pause=0.5)
    stack.api.log_in(USER, PASSWORD)
    for case in held:
        state = stack.api.finished("system_wait", case)
        assert state == "success", stack.api.log("system_wait", case, "trigger", 1)
        (run,) = (run for run in flows.runs if run.inputs["case"] == case)
        value = stack.api.xcom("system_wait", case, "trigger")
        assert (value["run_id"], value["result"]) == (run.run_id, RESULT)
        assert [one["try_number"] for one in stack.api.tries("system_wait", case, "trigger")] == [1]
        (call,) = (call for call in flows.journal.callbacks() if call.run_id == run.run_id)
        assert call.status == 200
        assert call.attempts > 1
