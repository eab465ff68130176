"""Runs that claim their start, on Celery with two schedulers: lost responses, 503s and kill -9, and all tasks end green."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from airflow_launcher.processes import wait_for
from services import FLOW_ID, KEY
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from stack import Stack

CASE = "claims"
# What becomes of the request of each row; of those that hang, the worker is killed.
FAULTS = [
    None,
    ("drop_after", {}),
    ("reset_after", {}),
    ("status_after", {"status": 503}),
    ("reject", {"status": 503}),
    ("hang_after", {"seconds": 60}),
    ("hang_after", {"seconds": 60}),
]
HANGING = [row for row, fault in enumerate(FAULTS) if fault and fault[0] == "hang_after"]


@pytest.fixture(scope="module")
def flows(stack: Stack) -> Iterator[LocalService]:
    with (
        LocalService([Key(KEY, FLOW_ID)], journal=stack.home / "claims.jsonl") as flows,
        stack.beside("scheduler-of-claims", "scheduler", "--skip-serve-logs", ready="Starting the scheduler"),
    ):
        stack.api.add_connection("claims", flows.base_url, KEY, flow_id=FLOW_ID)
        yield flows


def test_one_working_run_each(stack: Stack, flows: LocalService, note: Callable[[str], None]) -> None:
    began = time.monotonic()
    # Late enough for some to come after the kill.
    flows.callbacks.add(None, inputs={"case": CASE}, started=3, wait=0.5, attempts=12)
    for row, fault in enumerate(FAULTS):
        if fault:
            flows.faults.add(fault[0], inputs={"case": CASE, "row": row}, **fault[1])
    stack.api.trigger("system_claim", CASE, {"conn_id": "claims", "rows": len(FAULTS)})
    where = f"FROM task_instance WHERE run_id = '{CASE}' AND task_id = 'trigger'"
    wait_for("the runs", lambda: {*HANGING} <= {run.inputs["row"] for run in flows.runs})
    stack.kill_workers()

    state = stack.api.finished("system_claim", CASE)
    found = stack.query(f"SELECT map_index, state, try_number {where} ORDER BY map_index")
    assert [(row, state) for row, state, _ in found] == [(row, "success") for row in range(len(FAULTS))]
    assert state == "success"
    wait_for("the first steps", lambda: len(flows.journal.callbacks()) == len(flows.runs))
    worked = defaultdict(list)
    for run in flows.journal.worked():
        worked[run.inputs["row"]].append(run.run_id)
    path = f"/dags/system_claim/dagRuns/{CASE}/taskInstances/trigger/xcomEntries/return_value"
    for row in range(len(FAULTS)):
        value = stack.api.ask("GET", f"{path}?deserialize=true&map_index={row}")["value"]
        assert worked[row] == [value["run_id"]]
    note(
        f"{len(FAULTS)} claims, {len(flows.runs)} runs, of which {len(FAULTS)} worked, in tries "
        f"{[tries for _, _, tries in found]}, in {time.monotonic() - began:.0f} s"
    )
