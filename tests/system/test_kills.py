"""
The workers are killed with -9, their whole trees, in the middle of a trigger.

A batch and an upload.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_launcher.processes import wait_for
from sentences import MAYBE_STARTED

if TYPE_CHECKING:
    from services import Service
    from stack import Stack

ITEMS = 1000


@pytest.fixture(scope="module")
def output(stack: Stack, service: Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the batch, once each task is halfway and was killed there."""
    folder = tmp_path_factory.mktemp("kills")
    batch, file = folder / "batch.jsonl", folder / "file.bin"
    batch.write_text(
        "".join(f"{json.dumps({'case': 'kill-batch', 'n': n})}\n" for n in range(ITEMS))
    )
    file.write_bytes(b"123")
    # Here the tasks wait to be killed.
    service.control.add_fault("delay", operation="upload", seconds=300)
    service.control.add_fault("delay", inputs={"case": "kill-batch", "n": ITEMS // 2}, seconds=300)
    service.add_fault("hang_after", "kill-trigger", seconds=60)
    files = {"batch": str(batch), "output": str(folder / "output.jsonl")}
    stack.api.trigger("system_batch", "kill-batch", files)
    stack.api.trigger("system_upload", "kill-upload", {"file": str(file)})
    stack.api.trigger("system_trigger", "kill-trigger")
    wait_for(
        "the faults", lambda: not any(fault["remaining"] for fault in service.control.faults())
    )
    wait_for("the run", lambda: service.runs_of("kill-trigger"))
    stack.kill_workers()
    return folder / "output.jsonl"


def last_log(stack: Stack, dag_id: str, case: str) -> str:
    """Return the log of the last try, which failed although there might have been more."""
    task = stack.api.task(dag_id, case, "trigger")
    assert task["state"] == "failed"
    assert 1 < task["try_number"] < 4
    return stack.api.log(dag_id, case, "trigger", task["try_number"])


def test_a_trigger(stack: Stack, service: Service, output: Path) -> None:
    """
    The service had started a run.

    Docs/promises.md says that the next try fails, and says why.
    """
    assert stack.api.finished("system_trigger", "kill-trigger") == "failed"
    assert len(service.runs_of("kill-trigger")) == 1
    assert not service.runs_of("kill-trigger", "after")
    assert MAYBE_STARTED in last_log(stack, "system_trigger", "kill-trigger")


def test_a_batch(stack: Stack, service: Service, output: Path, note: Callable[[str], None]) -> None:
    """What was open is unknown, at most one window; all else was started, once."""
    assert stack.api.finished("system_batch", "kill-batch") == "failed"
    found = Counter(json.loads(line)["status"] for line in output.read_text().splitlines())
    note(f"a batch of {ITEMS} items whose worker was killed: {dict(found)}")
    assert found.keys() == {"started", "unknown"}
    assert found["unknown"] <= 64
    runs = [run for run in service.journal.runs() if run.inputs.get("case") == "kill-batch"]
    started = Counter(run.inputs["n"] for run in runs)
    assert max(started.values()) == 1
    assert len(started) >= found["started"]
    assert f", {found['unknown']} unknown, " in last_log(stack, "system_batch", "kill-batch")


def test_an_upload(stack: Stack, service: Service, output: Path) -> None:
    """It may be repeated: the next try sends what the service did not confirm."""
    assert stack.api.finished("system_upload", "kill-upload") == "success"
    (run,) = service.runs_of("kill-upload")
    assert [upload.run_id for upload in service.journal.uploads()].count(str(run.run_id)) == 1
    assert stack.api.xcom("system_upload", "kill-upload", "upload")["bytes"] == 3


def test_no_task_instance_started_two_runs(service: Service) -> None:
    """After all that was done before this test."""
    # Of a case, a task has its id in the inputs, an item of a batch or a mapped task its number.
    started = Counter(
        (run.inputs["case"], *(run.inputs.get(name) for name in ("task", "n", "row")))
        for run in service.journal.runs()
        if "case" in run.inputs
    )
    assert [case for case, runs in started.items() if runs > 1] == []
