"""kill -9 three times in the middle of a batch of 2,000 items with faults: no input twice, and none unaccounted for."""

from __future__ import annotations

import functools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_launcher.processes import alive
from airflow_launcher.waiting import wait_for

if TYPE_CHECKING:
    from deployment import Blow, Deployment
    from workflow_automation_provider.testing import LocalService

ITEMS, WINDOW = 2000, 64
SHARE_FAULTED = 0.04
FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("drop_before", {}),
    ("drop_after", {}),
    ("reset_after", {}),
    ("hang_after", {"seconds": 6}),
    ("delay", {"seconds": 1}),
    ("status_after", {}),
    ("status_after", {"status": 303}),
    ("reject", {}),
    ("reject", {"status": 502}),
    ("busy", {}),
    ("busy", {"retry_after": "1"}),
    ("status_after", {"status": 503, "headers": {"Retry-After": "1"}}),
    ("truncate", {}),
    ("garbage", {}),
    ("stale", {}),
]
LOST_BY_A_KILL = re.compile(r"Try \d+ ended")


# At these items, one for each kill, the batch waits to be killed, if it comes so far.
STOPS = (650, 1050, 1500)


def test_three_kills(
    deployment: Deployment, service: LocalService, note: Callable[[str], None], tmp_path: Path
) -> None:
    case, chance = "batch-three-kills", random.Random(12)
    batch, output = tmp_path / "batch.jsonl", tmp_path / "output.jsonl"
    batch.write_text("".join(f"{json.dumps({'case': case, 'n': n})}\n" for n in range(ITEMS)))
    for n in range(ITEMS):
        if chance.random() < SHARE_FAULTED and n not in STOPS:
            kind, options = chance.choice(FAULTS)
            service.faults.add(kind, inputs={"case": case, "n": n}, **options)

    stops = [service.faults.add("delay", inputs={"case": case, "n": n}, seconds=60) for n in STOPS]

    def runs() -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for run in service.runs:
            if run.inputs["case"] == case:
                found.setdefault(run.inputs["n"], []).append(str(run.run_id))
        return found

    def has_started(number: int) -> bool:
        return len(runs()) >= number

    deployment.api.trigger("batch", case, {"batch": str(batch), "output": str(output)})
    blows: tuple[Blow, ...] = ("task", "supervisor", "both")
    for number, blow in enumerate(blows):
        started = (number + 1) * ITEMS // 5
        wait_for(f"{started} runs", functools.partial(has_started, started))
        current = deployment.gate.tries_of(case)[-1]
        assert len(deployment.gate.tries_of(case)) == number + 1
        deployment.kill(blow, current)
        stops[number].remaining = 0
    assert deployment.api.finished("batch", case) == "failed"
    tries = deployment.gate.tries_of(case)
    wait_for("the orphans", lambda: not any(alive(found.pid) for found in tries))

    assert len(tries) == 4
    started_for = runs()
    assert [n for n, run_ids in started_for.items() if len(run_ids) > 1] == []
    items = [json.loads(line) for line in output.read_text().splitlines()]
    assert [item["index"] for item in items] == [*range(ITEMS)]
    for n, item in enumerate(items):
        run_ids = started_for.get(n, [])
        match item["status"]:
            case "started":
                assert [item["run_id"]] == run_ids
            case "unidentified":
                assert len(run_ids) == 1
            case "rejected":
                assert run_ids == []
            case status:
                assert status == "unknown"
    lost = [item["index"] for item in items if LOST_BY_A_KILL.match(item.get("why", ""))]
    by_try = Counter(item["why"].split()[1] for item in items if item["index"] in lost)
    assert all(number <= WINDOW for number in by_try.values())
    # Named in the log as well, as far as people read.
    log = deployment.logs("batch", case)[-1]
    first = next(item["index"] for item in items if item["status"] not in ("started", "not started"))
    assert f"batch[{first}]  {items[first]['status']}: " in log
    note(
        f"{ITEMS} items, three kills: {dict(Counter(item['status'] for item in items))}; "
        f"lost by the kill of each try: {dict(by_try)}, of which were started: {sum(n in started_for for n in lost)}"
    )
