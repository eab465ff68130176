"""A worker is killed with -9, its whole tree, in the middle of a trigger, a batch and an upload."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_launcher.waiting import wait_for
from said import MAYBE_STARTED
from services import FLOW_ID, KEY
from slow_lane import SlowLane

if TYPE_CHECKING:
    from services import Service
    from stack import Stack

MIB = 2**20


@pytest.fixture(scope="module")
def slow_lane(stack: Stack, service: Service) -> Iterator[SlowLane]:
    slow_lane = SlowLane(service.port, limit=100 * MIB)
    stack.api.add_connection(
        "slow_lane", f"http://127.0.0.1:{slow_lane.port}/api", KEY, flow_id=FLOW_ID, timeout=120
    )
    yield slow_lane
    slow_lane.stop()


@pytest.mark.parametrize(("fault", "seconds"), [("delay", 15), ("hang_after", 60)])
def test_kill_in_the_middle_of_a_trigger(
    stack: Stack, service: Service, note: Callable[[str], None], fault: str, seconds: float
) -> None:
    case = f"kill-trigger-{fault}"
    service.add_fault(fault, case, seconds=seconds)
    stack.api.trigger("system_trigger", case)
    pid = stack.api.running("system_trigger", case, "trigger")
    wait_for("the fault", lambda: service.struck(case))
    if fault == "hang_after":
        wait_for("the run", lambda: service.runs_of(case))
    stack.kill_worker_of(pid)
    killed = time.monotonic()

    state = stack.api.finished("system_trigger", case)
    note(f"{case}: {state} {time.monotonic() - killed:.0f} s after the kill")
    # The service was about to start a run, or had: docs/promises.md says that the next try fails, and says why.
    assert state == "failed"
    wait_for("the run", lambda: service.runs_of(case))
    assert len(service.runs_of(case)) == 1
    assert not service.runs_of(case, "after")
    task = stack.api.task("system_trigger", case, "trigger")
    assert (task["state"], task["try_number"]) == ("failed", 2)
    assert MAYBE_STARTED in stack.api.log("system_trigger", case, "trigger", 2)


def test_kill_in_the_middle_of_a_batch(
    stack: Stack, service: Service, note: Callable[[str], None], tmp_path: Path
) -> None:
    case, items = "kill-batch", 1000
    batch, output = tmp_path / "batch.jsonl", tmp_path / "output.jsonl"
    batch.write_text("".join(f"{json.dumps({'case': case, 'n': n})}\n" for n in range(items)))
    # Here the batch waits to be killed.
    service.control.add_fault("delay", inputs={"case": case, "n": items // 2}, seconds=50)
    tmp_path.chmod(0o755)

    def started() -> Counter[int]:
        return Counter(run.inputs["n"] for run in service.journal.runs() if run.inputs.get("case") == case)

    stack.api.trigger("system_batch", case, {"batch": str(batch), "output": str(output)})
    pid = stack.api.running("system_batch", case, "trigger")
    wait_for("the fault", lambda: service.struck(case, n=items // 2))
    stack.kill_worker_of(pid)
    killed = time.monotonic()

    state = stack.api.finished("system_batch", case)
    found = Counter(json.loads(line)["status"] for line in output.read_text().splitlines())
    note(f"{case}: {state} {time.monotonic() - killed:.0f} s after the kill: {dict(found)}")
    # What was open is unknown, at most one window; all else was started, once.
    assert state == "failed"
    assert found.keys() == {"started", "unknown"}
    assert found["unknown"] <= 64
    assert max(started().values()) == 1
    assert len(started()) >= found["started"]
    task = stack.api.task("system_batch", case, "trigger")
    assert (task["state"], task["try_number"]) == ("failed", 2)
    assert f", {found['unknown']} unknown, " in stack.api.log("system_batch", case, "trigger", 2)


def test_kill_in_the_middle_of_an_upload(
    stack: Stack, service: Service, slow_lane: SlowLane, note: Callable[[str], None], tmp_path: Path
) -> None:
    case = "kill-upload"
    big = tmp_path / "big.bin"
    with big.open("wb") as file:
        file.truncate(200 * MIB)
    stack.api.trigger("system_upload", case, {"file": str(big)})
    wait_for("half the upload", lambda: slow_lane.sent >= 100 * MIB)
    stack.kill_worker_of(stack.api.task("system_upload", case, "upload")["pid"])
    killed = time.monotonic()
    sent = slow_lane.sent
    slow_lane.opened.set()
    assert sent < 200 * MIB

    def uploads() -> list[str]:
        requests = [request for request in service.journal.requests("upload") if request.size > 50 * MIB]
        return [request.outcome for request in requests]

    wait_for("the end of the connection", uploads)

    state = stack.api.finished("system_upload", case)
    note(f"{case}: {state} {time.monotonic() - killed:.0f} s after the kill, which came at {sent // MIB} MiB")
    # An upload may be repeated: the next try sends what the service did not confirm.
    assert state == "success"
    (run,) = service.runs_of(case)
    assert [upload.run_id for upload in service.journal.uploads() if upload.run_id == run.run_id] == [
        run.run_id
    ]
    assert stack.api.task("system_upload", case, "upload")["try_number"] == 2
    assert uploads() == ["client left", "responded"]
    assert stack.api.xcom("system_upload", case, "upload")["bytes"] == 200 * MIB
