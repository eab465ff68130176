"""
A kill -9 before each call of a task to Airflow and to the service, and after the last.

What its next tries make of it.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from entry_keys import BATCH
from workflow_automation_provider.execution.batch.ends import BatchEnds
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator

from .starts import claims, entries, trigger, waits

OPTIONS: dict[str, Any] = {"task_id": "flow", "retries": 3, "send_retry_timeout": 0}
READY = (None, "up_for_retry", "awaiting_input", "deferred")


def batch(folder, **options):
    return TriggerFlowBatchOperator(
        batch=[{"n": n} for n in range(3)],
        max_concurrency=1,
        output_path=str(folder / "output.jsonl"),
        **OPTIONS,
        **options,
    )


def upload(folder):
    for name in "abc":
        (folder / name).write_text(name)
    run = WorkflowAutomationHook().trigger_flow()
    return UploadFilesOperator(
        run_id=str(run.run_id), files=str(folder / "*"), files_per_request=1, **OPTIONS
    )


class Life:
    """
    A task instance until it has ended.

    Each of its runs asks at once, and ends once the task is suspended.

    The second time that it is deferred, its time is up: what has not ended by then never does.

    :param kill: the number of the call at which its process is killed, of all its calls
    """

    deferred = 0

    def __init__(self, task, name, *, kill=None, after=False):
        Life.deferred = 0
        self.task = task
        self.can_call = "claim" in name
        self._act = "kill after" if after else "kill"
        self._kill = kill
        self.calls = 0
        while task.state in READY:
            if task.state in ("awaiting_input", "deferred"):
                self.end_runs()
                Life.deferred += 1
            task.try_(self.at)

    def at(self, _):
        self.ask()
        self.calls += 1
        return self._act if self.calls - 1 == self._kill else None

    def ask(self):
        for run in self.task.flow.runs:
            if self.can_call and not run.reported:
                self.task.flow.reports("started", run, run_id=True)

    def end_runs(self):
        self.ask()
        for run in self.task.flow.runs:
            if not run.end and (not self.can_call or run.reported[0][1] == 200):
                self.task.flow.reports("success", run, run_id=True)


def check_start(life):
    """One request at most; the task is green with its run, or says that there may be one."""
    task = life.task
    assert len(task.requests) <= 1
    if task.state == "success":
        assert [run.run_id for run in task.flow.runs] == [task.xcoms["return_value"]["run_id"]]
    else:
        assert task.last.error.code == "start-unknown"


def check_wait(life):
    check_start(life)
    for run in life.task.flow.runs:
        assert (run.end == "success") == (life.task.state == "success")


def check_claim(life):
    """The task is green with the one run that works."""
    task = life.task
    life.ask()
    (works,) = (run for run in task.flow.runs if run.reported[0][1] == 200)
    assert task.state == "success"
    assert task.xcoms["return_value"]["run_id"] == works.run_id
    assert len(task.requests) <= 2


def check_batch(life):
    """
    No item is sent twice.

    The output names all runs but those of the items that it says are in doubt.
    """
    task = life.task
    output = [json.loads(line) for line in Path(task.operator.output_path).read_text().splitlines()]
    known = {item["run_id"] for item in output if item["status"] == "started"}
    unknown = {run.run_id for run in task.flow.runs} - known
    in_doubt = sum(item["status"] == "unknown" for item in output)
    assert len(task.requests) <= 3
    assert len(output) == 3
    assert len(known) + in_doubt == 3
    assert len(unknown) <= in_doubt
    assert (in_doubt > 0) == (task.state == "failed")
    assert task.state == "success" or task.last.error.code == "start-unknown"
    # So does the page of the runs, which reads the last entry only.
    last = max(entries(task, BATCH).items())[1]
    assert last["counts"]["unknown"] + last["in_flight"] == in_doubt


def check_batch_that_waits(life):
    """
    No item is sent twice, and each run that was started has its end in the output.

    Also where its start is in doubt.
    """
    task = life.task
    output = [json.loads(line) for line in Path(task.operator.output_path).read_text().splitlines()]
    ended = {item["run_id"] for item in output if item["status"] == "success"}
    in_doubt = sum(item["status"] == "unknown" for item in output)
    assert ended == {run.run_id for run in task.flow.runs}
    assert len(task.requests) <= 3
    assert len(ended) + in_doubt == 3
    assert (in_doubt > 0) == (task.state == "failed")
    assert len({entry["folder"] for entry in entries(task, BATCH).values()}) == 1


def check_upload(life):
    """Each file is there; what was confirmed is not sent again."""
    assert life.task.state == "success"
    assert 3 <= len(life.task.requests) <= 4


# What makes the operator of a scenario, and what is to hold.
SCENARIOS: dict[str, tuple[Any, Any]] = {
    "start": (lambda _: trigger(), check_start),
    "batch": (batch, check_batch),
    "batch that waits": (
        lambda folder: batch(folder, wait_for_completion=True),
        check_batch_that_waits,
    ),
    "upload": (upload, check_upload),
    "wait": (lambda _: waits(), check_wait),
    "claim": (lambda _: claims(), check_claim),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_kill_at_every_call(world, tmp_path, monkeypatch, name):
    make, check = SCENARIOS[name]
    extra = {}
    if name == "batch that waits":
        extra["callback_base_url"] = (tmp_path / "ends").as_uri()
        left = BatchEnds._left
        monkeypatch.setattr(
            BatchEnds, "_left", lambda own: left(own) if Life.deferred < 2 else timedelta()
        )

    def live(**kill):
        return Life(world(make(tmp_path), **extra), name, **kill)

    unharmed = live()
    assert unharmed.task.state == "success"
    assert unharmed.calls > 4
    last = unharmed.calls - 1
    # After a call is before the next one: nothing outside the process happens in between.
    for call, after in (*((call, False) for call in range(last + 1)), (last, True)):
        life = live(kill=call, after=after)
        assert any(process.is_dead for process in life.task.processes)
        check(life)
