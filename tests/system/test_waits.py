"""Tasks that wait for the end of their run, on Celery: each gets its own answer, whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_launcher.airflow import PASSWORD, USER
from airflow_launcher.processes import wait_for
from real_airflow import Flow
from services import FLOW_ID, KEY
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from stack import Stack
    from workflow_automation_provider.testing.journal import Run, SentCallback

WAITS = int(os.environ.get("WAITS", "40"))
SCHEDULERS = int(os.environ.get("SCHEDULERS", "2"))
LONGEST_DELAY = 12.0

RESULT = {"rows": 3}


class Case:
    """One DAG run whose task waits."""

    def __init__(
        self, stack: Stack, flows: LocalService, name: str, dag_id: str = "system_wait", **conf: Any
    ) -> None:
        self.stack, self.flows, self.api = stack, flows, stack.api
        self.dag_id, self.run_id = dag_id, name.replace("_", "-")
        self._conf = {"conn_id": "waits", **conf}

    def calls_back(self, **options: Any) -> None:
        self.flows.callbacks.add(inputs={"case": self.run_id}, **{"wait": 0.5, "attempts": 12, **options})

    def held_flow(self) -> Flow:
        flow = Flow()
        self.calls_back(result=flow)
        return flow

    def begin(self) -> None:
        self.api.trigger(self.dag_id, self.run_id, self._conf)

    def parked(self, times: int = 1) -> None:
        wait_for(
            f"{self.run_id} parked",
            lambda: self.stack.is_parked(self.dag_id, self.run_id, times),
            pause=0.5,
        )

    @property
    def state(self) -> str | None:
        found: str | None = self.api.task(self.dag_id, self.run_id, "trigger")["state"]
        return found

    @property
    def runs(self) -> list[Run]:
        return [run for run in self.flows.runs if run.inputs["case"] == self.run_id]

    def called(self) -> list[SentCallback]:
        ids = {run.run_id for run in self.runs}
        return [call for call in self.flows.journal.callbacks() if call.run_id in ids]

    def succeeds(self) -> dict[str, Any]:
        """Expect the result, of the only run, without a second try."""
        state = self.api.finished(self.dag_id, self.run_id)
        assert state == "success", self.api.log(self.dag_id, self.run_id, "trigger", 1)
        (run,) = self.runs
        found: dict[str, Any] = self.api.xcom(self.dag_id, self.run_id, "trigger")
        assert (found["run_id"], found["result"]) == (run.run_id, RESULT)
        assert [one["try_number"] for one in self.api.tries(self.dag_id, self.run_id, "trigger")] == [1]
        return found


@pytest.fixture(scope="module")
def flows(stack: Stack) -> Iterator[LocalService]:
    """A service in this process: a test can hold back what its flows do."""
    with LocalService([Key(KEY, FLOW_ID)], journal=stack.home / "flows.jsonl") as flows:
        stack.api.add_connection("waits", flows.base_url, KEY, flow_id=FLOW_ID)
        yield flows


@pytest.fixture(scope="module")
def schedulers(stack: Stack) -> Iterator[None]:
    with ExitStack() as components:
        for number in range(2, SCHEDULERS + 1):
            name = f"scheduler-{number}"
            components.enter_context(
                stack.beside(name, "scheduler", "--skip-serve-logs", ready="Starting the scheduler")
            )
        yield


def called_while_it_parks(stack: Stack, flows: LocalService) -> None:
    case = Case(stack, flows, "called_while_it_parks")
    flow = case.held_flow()
    case.begin()
    pushed = "SELECT 1 FROM xcom WHERE run_id = :run_id AND key = 'return_value'"
    # Pushing its run is the last that it does before it parks.
    wait_for("the XCom", lambda: stack.query(pushed, run_id=case.run_id), pause=0.02)
    flow.end()
    case.succeeds()
    assert [call.status for call in case.called()] == [200]


def stored_without_waking_the_task(stack: Stack, flows: LocalService) -> None:
    """As if the API server had been killed after it had stored the answer of a task that was about to park."""
    case = Case(stack, flows, "stored_without_waking_the_task")
    case.begin()
    # It is to look by itself, soon.
    wait_for("the task parked", lambda: case.state == "awaiting_input")
    said = {"end": {"status": "success", "result": RESULT, "at": "2026-01-01T00:00:00+00:00"}}
    stored = stack.query(
        "INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at) "
        "SELECT dag_run_id, dag_id, run_id, task_id, map_index, "
        "'workflow_automation_run/' || (value::json->>'token'), :value, updated_at "
        "FROM task_state_store WHERE run_id = :run_id AND key LIKE :key RETURNING key",
        value=json.dumps(said),
        run_id=case.run_id,
        key="workflow_automation_start/%",
    )
    assert len(stored) == 1
    case.succeeds()
    assert not case.called()


CASES = [called_while_it_parks, stored_without_waking_the_task]
HELD = [f"parked-while-the-api-server-is-killed-{n}" for n in range(3)]


class Batch(Case):
    """Many tasks at once, whose flows end at random."""

    def begin(self) -> None:
        delays = random.Random(WAITS)
        for row in range(WAITS):
            self.flows.callbacks.add(
                result={"row": row},
                delay=delays.uniform(0, LONGEST_DELAY),
                wait=0.5,
                attempts=12,
                inputs={"case": self.run_id, "row": row},
            )
        super().begin()


@pytest.fixture(scope="module")
def batch(stack: Stack, flows: LocalService, schedulers: None) -> Batch:
    batch = Batch(stack, flows, "batch", "system_wait_mapped", rows=WAITS)
    batch.begin()
    return batch


@pytest.fixture(scope="module")
def held(stack: Stack, flows: LocalService, batch: Batch) -> list[tuple[Case, Flow]]:
    cases = [Case(stack, flows, name) for name in HELD]
    found = [(case, case.held_flow()) for case in cases]
    for case in cases:
        case.begin()
    return found


@pytest.fixture(scope="module")
def outcomes(
    stack: Stack, flows: LocalService, held: list[tuple[Case, Flow]]
) -> Iterator[dict[Callable[..., None], Future[None]]]:
    with ThreadPoolExecutor(len(CASES)) as pool:
        yield {run: pool.submit(run, stack, flows) for run in CASES}


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
def test_a_wait(outcomes: dict[Callable[..., None], Future[None]], run: Callable[..., None]) -> None:
    outcomes[run].result()


def test_each_of_many_gets_its_own_answer(stack: Stack, batch: Batch, note: Callable[[str], None]) -> None:
    state = stack.api.finished(batch.dag_id, batch.run_id, 60 + 10 * WAITS)
    where = "FROM task_instance WHERE run_id = 'batch' AND task_id = 'trigger'"
    found = stack.query(f"SELECT map_index, state, try_number, end_date {where} ORDER BY map_index")
    assert [(index, state, tries) for index, state, tries, _ in found] == [
        (row, "success", 1) for row in range(WAITS)
    ]
    assert state == "success"
    assert not stack.query("SELECT map_index FROM task_instance_history WHERE run_id = 'batch'")

    runs = {run.inputs["row"]: run.run_id for run in batch.runs}
    assert len(batch.runs) == len(runs) == WAITS
    xcom = "SELECT map_index, count(*) FROM xcom WHERE run_id = 'batch' AND task_id = 'trigger' "
    entries = stack.query(xcom + "AND key = 'return_value' GROUP BY map_index ORDER BY map_index")
    assert entries == [(row, 1) for row in range(WAITS)]
    path = f"/dags/{batch.dag_id}/dagRuns/batch/taskInstances/trigger/xcomEntries/return_value"
    for row in range(WAITS):
        value = stack.api.ask("GET", f"{path}?deserialize=true&map_index={row}")["value"]
        assert (value["result"], value["run_id"]) == ({"row": row}, runs[row])

    calls = {call.run_id: call for call in batch.called()}
    assert [calls[runs[row]].status for row in range(WAITS)] == [200] * WAITS
    after = sorted(
        (end - datetime.fromisoformat(calls[runs[row]].at)).total_seconds() for row, _, _, end in found
    )
    note(
        f"{WAITS} waits, {SCHEDULERS} schedulers: all delivered, {after[0]:.0f} to {after[-1]:.0f} s "
        f"after the call, half within {after[WAITS // 2]:.0f} s"
    )


def test_api_server_is_killed_while_tasks_are_parked(
    stack: Stack, held: list[tuple[Case, Flow]], batch: Batch
) -> None:
    """The flows call while there is none, and again."""
    stack.api.finished(batch.dag_id, batch.run_id, 60 + 10 * WAITS)
    for case, _ in held:
        case.parked()
    stack.programs["api-server"].kill()
    for _, flow in held:
        flow.end()
    wait_for("the API server", lambda: stack.api.healthy(["scheduler"]), pause=0.5)
    stack.api.log_in(USER, PASSWORD)
    for case, _ in held:
        case.succeeds()
        (call,) = case.called()
        assert call.status == 200
        assert call.attempts > 1
