"""
A batch that waits for the ends of its runs in S3: whatever is killed or cleared, it has its own.

What each fault comes to is in ``tests/unit/operators/test_batch_waits.py``; here Airflow finds
what was killed.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from airflow_launcher.processes import wait_for
from case import Case, play
from real_airflow import Flow
from store_proxy import Fault

ITEMS = 20


def started(case: Case) -> dict[int, list[str]]:
    """Return the ids of the runs that were started for each item, in order."""
    found: dict[int, list[str]] = {}
    for run in case.service.runs:
        if run.inputs["case"] == case.run_id:
            found.setdefault(run.inputs["n"], []).append(str(run.run_id))
    return found


def folder(case: Case) -> str:
    """Return the folder of the batch's ends, as its last entry has it: its key in the bucket."""
    (entries,) = case.deployment.batches(case.dag_id, case.run_id).values()
    return str(entries[-1]["folder"]).removeprefix(case.deployment.bucket.url())


def ends(case: Case, of: str) -> int:
    """Return how many ends a folder has."""
    keys = case.deployment.bucket.keys()
    return sum(key.startswith(f"{of}/") for key in keys)


def items(case: Case) -> list[dict[str, Any]]:
    """Return what the output file has."""
    path = case.deployment.home / f"{case.run_id}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def held_flow(case: Case, **options: Any) -> Flow:
    """Have runs end with their own ids as results, once they are let go."""
    flow = Flow()
    case.calls_back(result=lambda run: {**flow(run), "run_id": str(run.run_id)}, **options)
    return flow


def end_well(case: Case, *, runs: int = ITEMS) -> None:
    """Expect the end of the last run of each item."""
    result = case.end("success", runs=runs)
    assert result.items() >= {"success": ITEMS, "unknown": 0, "failed": 0, "overdue": 0}.items()
    expected = [(n, "success", started(case)[n][-1]) for n in range(ITEMS)]
    found = [(one["index"], one["status"], one["result"]["run_id"]) for one in items(case)]
    assert found == expected


@play("batch_waits")
def test_a_batch_is_killed_before_the_last_response(case: Case) -> None:
    """The end of its run settles the item that is in doubt."""
    held_flow(case).end()
    case.fault("hang_after", seconds=300, times=1, inputs={"case": case.run_id, "n": 7})
    case.begin()
    wait_for("all runs", lambda: len(case.runs) == ITEMS)
    case.kill()
    end_well(case)


@play("batch_waits_shortly")
def test_a_batch_is_killed_in_the_middle_of_sending(case: Case) -> None:
    """What was in flight is not sent again, and is in doubt unless its run writes its end."""
    held_flow(case).end()
    for n in (6, 7):
        case.fault("hang_after", seconds=300, times=1, inputs={"case": case.run_id, "n": n})
    case.begin()
    wait_for("two runs without a response", lambda: {6, 7} <= started(case).keys())
    case.kill()
    case.api.finished(case.dag_id, case.run_id)
    runs = started(case)
    assert {len(found) for found in runs.values()} == {1}
    expected = ["success" if n in runs else "unknown" for n in range(ITEMS)]
    assert [one["status"] for one in items(case)] == expected, case.log
    # The second try has sent what was never in flight.
    assert {*range(8), *range(16, ITEMS)} <= runs.keys()
    state = "failed" if len(runs) < ITEMS else "success"
    case.end(state, runs=len(runs))


@play("batch_waits")
def test_the_triggerer_is_killed_while_a_batch_waits(case: Case) -> None:
    flow = held_flow(case)
    case.begin()
    case.deferred()
    with case.deployment.without_triggerer():
        flow.end()
        assert case.answers(ITEMS) == [200] * ITEMS
    end_well(case)


@play("batch_waits")
def test_a_batch_is_killed_while_it_reads_the_ends(case: Case) -> None:
    reached, released = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        released.wait(600)

    flow = held_flow(case)
    case.begin()
    case.deferred()
    tenth = f"{folder(case)}/10.json"
    case.deployment.store.faults.append(
        Fault(
            lambda seen: seen.method == "GET" and seen.target.partition("?")[0].endswith(tenth),
            before=hold,
        )
    )
    flow.end()
    wait_for("the tenth end is read", reached.is_set)
    case.kill()
    released.set()
    end_well(case)


@play("batch_waits")
def test_a_batch_is_cleared_while_its_runs_are_at_work(case: Case) -> None:
    """They write to the old folder, which nobody reads, also where a Clear deletes the entries."""
    before, after = held_flow(case, times=ITEMS), held_flow(case, times=ITEMS)
    case.begin()
    case.deferred()
    old = folder(case)
    case.clear()
    wait_for("the runs of after", lambda: len(case.runs) == 2 * ITEMS)
    before.end()
    case.answers(ITEMS)
    case.deferred()
    new = folder(case)
    assert (ends(case, old), ends(case, new)) == (ITEMS, 0)
    after.end()
    end_well(case, runs=2 * ITEMS)
    assert [len(found) for found in started(case).values()] == [2] * ITEMS
    assert (ends(case, old), ends(case, new)) == (ITEMS, ITEMS)
