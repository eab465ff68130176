"""The workers are killed with -9, their whole trees, in the middle of triggers, claims, a batch and an upload."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_launcher.processes import wait_for
from said import MAYBE_STARTED
from services import FLOW_ID, KEY
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from services import Service
    from stack import Stack

ITEMS = 1000
TRIGGERS = {"delay": 30, "hang_after": 60}
# What becomes of the request of each row of those that claim.
CLAIMS = [
    None,
    ("drop_after", {}),
    ("reset_after", {}),
    ("status_after", {"status": 503}),
    ("reject", {"status": 503}),
    ("hang_after", {"seconds": 60}),
    ("hang_after", {"seconds": 60}),
]
HANGING = [row for row, fault in enumerate(CLAIMS) if fault and fault[0] == "hang_after"]


@pytest.fixture(scope="module")
def flows(stack: Stack) -> Iterator[LocalService]:
    """A service whose runs claim their start: late enough for some to come after the kill."""
    with LocalService([Key(KEY, FLOW_ID)], journal=stack.home / "claims.jsonl") as flows:
        stack.api.add_connection("claims", flows.airflow_connection())
        flows.callbacks.add(None, started=3, wait=0.5, attempts=12)
        for row, fault in enumerate(CLAIMS):
            if fault:
                flows.faults.add(fault[0], inputs={"row": row}, **fault[1])
        yield flows


@pytest.fixture(scope="module")
def output(
    stack: Stack, service: Service, flows: LocalService, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The file of the batch, once each task is halfway and was killed there."""
    folder = tmp_path_factory.mktemp("kills")
    batch, file = folder / "batch.jsonl", folder / "file.bin"
    batch.write_text("".join(f"{json.dumps({'case': 'kill-batch', 'n': n})}\n" for n in range(ITEMS)))
    file.write_bytes(b"123")
    # Here the batch and the upload wait to be killed.
    service.control.add_fault("delay", operation="upload", seconds=300)
    service.control.add_fault("delay", inputs={"case": "kill-batch", "n": ITEMS // 2}, seconds=300)
    files = {"batch": str(batch), "output": str(folder / "output.jsonl")}
    stack.api.trigger("system_batch", "kill-batch", files)
    stack.api.trigger("system_upload", "kill-upload", {"file": str(file)})
    stack.api.trigger("system_claim", "claims", {"conn_id": "claims", "rows": len(CLAIMS)})
    wait_for("the claims", lambda: {*HANGING} <= {run.inputs["row"] for run in flows.runs})
    wait_for("half the batch", lambda: service.struck("kill-batch", n=ITEMS // 2))
    wait_for(
        "the upload",
        lambda: any(
            fault.get("operation") == "upload" and not fault["remaining"]
            for fault in service.control.faults()
        ),
    )
    for kind, seconds in TRIGGERS.items():
        service.add_fault(kind, f"kill-{kind}", seconds=seconds)
        stack.api.trigger("system_trigger", f"kill-{kind}")
    wait_for("the faults", lambda: all(service.struck(f"kill-{kind}") for kind in TRIGGERS))
    wait_for("the run", lambda: service.runs_of("kill-hang_after"))
    stack.kill_workers()
    return folder / "output.jsonl"


def test_claims(stack: Stack, flows: LocalService, output: Path, note: Callable[[str], None]) -> None:
    """All tasks end green, each with the one run that works."""
    state = stack.api.finished("system_claim", "claims")
    where = "FROM task_instance WHERE run_id = 'claims' AND task_id = 'trigger'"
    found = stack.query(f"SELECT map_index, state, try_number {where} ORDER BY map_index")
    assert [(row, state) for row, state, _ in found] == [(row, "success") for row in range(len(CLAIMS))]
    assert state == "success"
    wait_for("the first steps", lambda: len(flows.journal.callbacks()) == len(flows.runs))
    worked = defaultdict(list)
    for run in flows.journal.worked():
        worked[run.inputs["row"]].append(run.run_id)
    for row in range(len(CLAIMS)):
        value = stack.api.xcom("system_claim", "claims", "trigger", map_index=row)
        assert worked[row] == [value["run_id"]]
    note(f"{len(CLAIMS)} claims, {len(flows.runs)} runs, in tries {[tries for _, _, tries in found]}")


def last_log(stack: Stack, dag_id: str, case: str) -> str:
    """Return the log of the last try, which failed although there might have been more."""
    task = stack.api.task(dag_id, case, "trigger")
    assert task["state"] == "failed"
    assert 1 < task["try_number"] < 4
    return stack.api.log(dag_id, case, "trigger", task["try_number"])


@pytest.mark.parametrize("kind", TRIGGERS)
def test_a_trigger(stack: Stack, service: Service, output: Path, kind: str) -> None:
    """The service was about to start a run, or had: docs/promises.md says that the next try fails, and says why."""
    case = f"kill-{kind}"
    assert stack.api.finished("system_trigger", case) == "failed"
    wait_for("the run", lambda: service.runs_of(case))
    assert len(service.runs_of(case)) == 1
    assert not service.runs_of(case, "after")
    assert MAYBE_STARTED in last_log(stack, "system_trigger", case)


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
