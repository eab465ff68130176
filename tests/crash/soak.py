"""
Many mapped task instances at once, with random kills and random faults: what holds for each must hold for all.

    python tests/crash/soak.py --instances 300 --seconds 600 --seed 1

Among them are batches, of which the same holds for each item.

No task instance has two runs; every run in the service's journal is its task instance's result, or named in its
failure; every success has a run. Some task instances wait for their flow to call back: each result is
delivered to its own task instance, and Airflow loses none: whatever failed was killed, or says why. A third have their
runs claim their start, some late: there, several runs may be started, and what counts is how many worked: exactly one
if the task succeeded, at most one if it failed. Any breach is an error that names the task instance.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_launcher.airflow import connection_to, temporary_home
from airflow_launcher.api import FINISHED
from airflow_launcher.processes import alive, parent, wait_for
from deployment import Deployment
from said import ASKING, MAYBE_STARTED
from workflow_automation_provider.testing import DEMO_KEY, LocalService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workflow_automation_provider.testing.journal import Run, Work

FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("drop_before", {}),
    ("drop_after", {}),
    ("reset_before", {}),
    ("reset_after", {}),
    ("hang_after", {"seconds": 6}),
    ("delay", {"seconds": 2}),
    ("delay", {"seconds": 6}),
    ("drip", {"seconds": 2}),
    ("status_after", {}),
    ("reject", {}),
    ("reject", {"status": 502}),
    ("busy", {}),
    ("busy", {"status": 503, "retry_after": "2"}),
    ("busy", {"times": 3}),
    ("reject", {"status": 503}),
    ("status_after", {"status": 503}),
    ("status_after", {"status": 503, "headers": {"Retry-After": "2"}}),
    ("status_after", {"status": 408}),
    ("status_after", {"status": 303}),
    ("truncate", {}),
    ("garbage", {}),
    ("empty", {}),
]
SLOTS = 18
SHARE_FAULTED = 0.35
SHARE_WAITING = 0.2
LATEST_CALLBACK = 20.0  # seconds after the run was started
SHARE_CLAIMING, SHARE_CLAIMING_FAULTED = 1 / 3, 0.7
# Of the claiming, those whose response is lost and whose first step comes about when the next try revokes its token;
# seconds after the run was started.
SHARE_LATE, LATE_FIRST_STEP = 0.9, (4.0, 30.0)
LOST = [fault for fault in FAULTS if fault[0] in ("drop_after", "reset_after", "status_after", "garbage")]
RAISED = "Task failed with exception"
STARTED = "A run was started"
SHARE_KILLED = 0.5  # of all tries, those that end too soon included
LATEST_KILL = 1.2  # seconds after a try began
ITEMS, SHARE_OF_ITEMS_FAULTED = 60, 0.1  # of each batch
INSTANCES_PER_BATCH = 15


class Killer(threading.Thread):
    """Kills a share of the tries, each at a random moment: the task process or its supervisor."""

    def __init__(self, deployment: Deployment, run_ids: tuple[str, ...], chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.killed: Counter[str] = Counter()
        self.pids: set[int] = set()
        self.done = threading.Event()
        self._deployment, self._gate = deployment, deployment.gate
        self._run_ids = run_ids
        self._chance = chance

    def run(self) -> None:
        seen = 0
        planned: list[tuple[float, str, int]] = []
        while not self.done.wait(0.02):
            tries = self._gate.tries
            for found in tries[seen:]:
                if found.run_id in self._run_ids and self._chance.random() < SHARE_KILLED:
                    victim = self._chance.choice(["task", "supervisor"])
                    # A supervisor is a worker that goes on to other tasks: it is one only while its task lives.
                    at = time.monotonic() + self._chance.uniform(0, LATEST_KILL)
                    planned.append((at, victim, found.pid))
            seen = len(tries)
            for plan in [plan for plan in planned if plan[0] < time.monotonic()]:
                planned.remove(plan)
                self._kill(*plan[1:])

    def _kill(self, victim: str, pid: int) -> None:
        supervisor = next(found.supervisor for found in self._gate.tries if found.pid == pid)
        if parent(pid) == supervisor and alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid if victim == "task" else supervisor, signal.SIGKILL)
                self.killed[victim] += 1
                self.pids.add(pid)
                if victim == "supervisor":
                    self._deployment.miss_heartbeats(pid)


def soak(deployment: Deployment, service: LocalService, *, instances: int, seconds: float, seed: int) -> str:
    """
    Run it, and return the counts.

    :param instances: how many task instances
    :param seconds: how long it may take
    :param seed: of the choice of faults and kills
    :raises AssertionError: if anything does not hold
    """
    chance = random.Random(seed)
    run_id = f"soak-{seed}"
    faulted = 0
    waiting = []
    claiming, late = [], []
    for n in range(instances):
        case = {"case": f"{run_id}/{n}"}
        call: dict[str, Any] = {}
        if chance.random() < SHARE_WAITING:
            waiting.append(n)
            call = {"result": case, "delay": chance.uniform(0, LATEST_CALLBACK)}
        if chance.random() < SHARE_CLAIMING:
            claiming.append(n)
            if chance.random() < SHARE_LATE:
                late.append(n)
            first_step = chance.uniform(*(LATE_FIRST_STEP if n in late else (0, 1)))
            call = {"status": None, **call, "started": first_step}
            if n in waiting:
                call["status"] = "success"
        if call:
            service.callbacks.add(inputs=case, wait=0.5, attempts=12, **call)
        if n in late or chance.random() < (SHARE_CLAIMING_FAULTED if n in claiming else SHARE_FAULTED):
            kind, options = chance.choice(LOST if n in late else FAULTS)
            service.faults.add(kind, inputs=case, **options)
            faulted += 1
    batches = max(instances // INSTANCES_PER_BATCH, 2)
    for b in range(batches):
        for n in range(ITEMS):
            if chance.random() < SHARE_OF_ITEMS_FAULTED:
                kind, options = chance.choice(FAULTS)
                service.faults.add(kind, inputs={"case": f"{run_id}/{b}/{n}"}, **options)
                faulted += 1
    deployment.api.ask("POST", "/pools", {"name": "soak", "slots": SLOTS})
    began = time.monotonic()
    deployment.api.trigger("soak", run_id, {"instances": instances, "waiting": waiting, "claiming": claiming})
    deployment.api.trigger("soak_batch", run_id, {"batches": batches, "items": ITEMS})
    killer = Killer(deployment, (run_id,), chance)
    # The first tasks only make the lists, and are left alone.
    wait_for("the mapped tasks", lambda: task_instances(deployment, run_id, instances))
    wait_for("the batches", lambda: task_instances(deployment, run_id, batches, "soak_batch"))
    killer.start()
    try:
        wait_for("the soak", lambda: all_finished(deployment, run_id, instances), seconds)
        wait_for("the batches", lambda: all_finished(deployment, run_id, batches, "soak_batch"), seconds)
    finally:
        killer.done.set()
        killer.join()
    took = time.monotonic() - began
    # Orphans, and requests that the service still works on, may yet start a run.
    ours = [found for found in deployment.gate.tries if found.run_id == run_id]
    wait_for("the orphans", lambda: not any(alive(found.pid) for found in ours))
    time.sleep(max(options.get("seconds", 0) for _, options in FAULTS))
    wait_for("the first steps", lambda: all_began(service, {f"{run_id}/{n}" for n in claiming}))
    lines = judge(deployment, service, run_id, instances, waiting, claiming)
    lines += judge_waits(deployment, service, run_id, waiting, killer.pids)
    lines += judge_batches(deployment, service, run_id, batches)
    runs = by_case(service.runs)
    return "\n".join(
        [
            (
                f"{instances} task instances and {batches} batches of {ITEMS} items in {took:.0f} s (seed {seed}): "
                f"{len(ours) - 2} executions, {faulted} faults, {len(waiting)} wait, {len(claiming)} claim, "
                f"of which {sum(len(runs[f'{run_id}/{n}']) > 1 for n in claiming)} started a second run, "
                f"killed {killer.killed['task']} tasks and {killer.killed['supervisor']} supervisors"
            ),
            *lines,
        ]
    )


def task_instances(
    deployment: Deployment, run_id: str, instances: int, dag_id: str = "soak"
) -> list[dict[str, Any]]:
    """Return the mapped task instances, none until all are there."""
    found: list[dict[str, Any]] = []
    while True:
        path = (
            f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/trigger/listMapped?limit=100&offset={len(found)}"
        )
        page = deployment.api.ask("GET", path)["task_instances"]
        found += page
        if len(page) < 100:
            return found if len(found) == instances else []


def all_finished(deployment: Deployment, run_id: str, instances: int, dag_id: str = "soak") -> bool:
    time.sleep(1)  # polling is work, too, for two processors
    if deployment.api.dag_run(dag_id, run_id)["state"] not in FINISHED:
        return False
    return all(found["state"] in FINISHED for found in task_instances(deployment, run_id, instances, dag_id))


def all_began(service: LocalService, cases: set[str]) -> bool:
    """Tell whether the service works on no request, and each run of some cases is past its first step, or stopped there."""
    struck = sum(scripted.struck for scripted in service.faults.all() if scripted.fault.kind == "delay")
    if sum(request.fault == "delay" for request in service.journal.requests()) < struck:
        return False
    worked = {work.run_id for work in service.journal.worked()}
    calls = {call.run_id: call for call in reversed(service.journal.callbacks())}
    runs = [run.run_id for run in service.runs if run.inputs["case"] in cases]
    return all(run in worked or (run in calls and calls[run].status != 200) for run in runs)


def judge(
    deployment: Deployment,
    service: LocalService,
    run_id: str,
    instances: int,
    waiting: list[int],
    claiming: list[int],
) -> list[str]:
    """Return the counts, once all holds for each task instance."""
    runs, worked = by_case(service.runs), by_case(service.journal.worked())
    counts: Counter[str] = Counter()
    breaches = []
    for found in task_instances(deployment, run_id, instances):
        index, state = found["map_index"], found["state"]
        claims = index in claiming
        started = runs[f"{run_id}/{index}"]
        if claims:
            counts[f"{state}, {len(started)} runs, of which {len(worked[f'{run_id}/{index}'])} worked"] += 1
            started = worked[f"{run_id}/{index}"]
        else:
            counts[f"{state}, {len(started)} runs"] += 1
        result = deployment.api.xcom("soak", run_id, "trigger", map_index=index) if state == "success" else {}
        logs = deployment.logs("soak", run_id, map_index=index)
        if len(started) > 1:
            breaches.append("\n".join((f"{index}: the runs {started}", *logs)))
        # A flow may call back before its run is recorded: if the task is killed in between, it knows only the result.
        returned = [result.get("run_id")] if "run_id" in result or index not in waiting else started[:1]
        if state == "success" and started != returned:
            breaches.append("\n".join((f"{index}: succeeded with the runs {started}, and {result}", *logs)))
        if state != "success" and started:
            how = _told(logs, started[0])
            counts[f"run of a failed task, {how}"] += 1
            if not how:
                breaches.append(
                    "\n".join((f"{index}: {state}, and nothing tells of the run {started}:", *logs))
                )
    assert not breaches, "\n".join((f"Seed {run_id}", *breaches))
    return [f"  {number:4}  {what}" for what, number in sorted(counts.items())]


def by_case(records: Sequence[Run] | Sequence[Work]) -> dict[str, list[str]]:
    """Return the ids of the runs of each case."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        found[record.inputs["case"]].append(str(record.run_id))
    return found


def judge_waits(
    deployment: Deployment, service: LocalService, run_id: str, waiting: list[int], killed: set[int]
) -> list[str]:
    """
    Return the counts, once each result was delivered, and no try was lost.

    :param killed: the processes whose tries were killed
    """
    cases = {run.run_id: run.inputs["case"] for run in service.runs}
    called = {
        cases[call.run_id]: datetime.fromisoformat(call.at)
        for call in service.journal.callbacks()
        if call.status == 200 and call.body["status"] == "success"
    }
    counts: Counter[str] = Counter()
    breaches = []
    for index in waiting:
        case = {"case": f"{run_id}/{index}"}
        tries = deployment.api.tries("soak", run_id, "trigger", index)
        logs = deployment.logs_by_try("soak", run_id, map_index=index)
        for found in tries:
            log = logs.get(found["try_number"], "")
            if found["state"] != "success" and found["pid"] not in killed and RAISED not in log:
                breaches.append(f"{index}: try {found['try_number']} was lost:\n{log}")
        last = tries[-1]
        counts[f"wait, {last['state']} in try {len(tries)}"] += 1
        if last["state"] == "success":
            result = deployment.api.xcom("soak", run_id, "trigger", map_index=index)
            if result.get("result") != case:
                breaches.append(f"{index}: {result} was delivered, not {case}")
        elif last["pid"] not in killed:
            # A callback may be accepted while a task fails that found none when it looked.
            ti_ids = {found.ti_id for found in deployment.gate.tries if found.pid == last["pid"]}
            looks = [deployment.gate.looked[ti_id] for ti_id in ti_ids & deployment.gate.looked.keys()]
            looked = max(looks, default=datetime.fromisoformat(last["end_date"]))
            if (at := called.get(case["case"], looked)) < looked:
                breaches.append(f"{index}: {last['state']}, though its flow called back at {at}")
    assert not breaches, "\n".join((f"Seed {run_id}", *breaches))
    return [f"  {number:4}  {what}" for what, number in sorted(counts.items())]


def judge_batches(deployment: Deployment, service: LocalService, run_id: str, batches: int) -> list[str]:
    """Return the counts, once all holds for each item of each batch: its record knows of every run."""
    runs = by_case(service.runs)
    records = deployment.batches("soak_batch", run_id)
    counts: Counter[str] = Counter()
    breaches = []
    for found in task_instances(deployment, run_id, batches, "soak_batch"):
        b, state = found["map_index"], found["state"]
        statuses: dict[int, tuple[str, str]] = {}
        for entry in records.get(b, []):
            for n in entry["opened"]:
                statuses[int(n)] = "open", ""
            for n, item in entry["results"].items():
                statuses[int(n)] = item["status"], item.get("run_id", "")
        for n in range(ITEMS):
            started = runs[f"{run_id}/{b}/{n}"]
            status, recorded = statuses.get(n, ("not opened", ""))
            counts[f"items {status}, {len(started)} runs"] += 1
            expected = {
                "started": started == [recorded],
                "unidentified": len(started) == 1,
                "unknown": len(started) <= 1,
                "open": len(started) <= 1,
            }.get(status, not started)
            if not expected or (state == "success" and status != "started"):
                breaches.append(f"{b}/{n}: {state}, {status} {recorded}, the runs {started}")
    assert not breaches, "\n".join((f"Seed {run_id}", *breaches))
    return [f"  {number:4}  {what}" for what, number in sorted(counts.items())]


def _told(logs: list[str], run_id: str) -> str:
    """Tell how the logs of a failed task's tries speak of its run."""
    said = (STARTED, "started a run", f"Started run {run_id}:", f"Run {run_id} has claimed this start.")
    if any(words in log for log in logs for words in said):
        return "told that it exists"
    if any(MAYBE_STARTED in log for log in logs):
        return "told that it may exist"
    # All later tries were killed before they could tell of it. What this one said is the last word.
    return "told beforehand" if any(map(_ends_asking, logs)) else ""


def _ends_asking(log: str) -> bool:
    ours = [line for line in log.splitlines() if "workflow_automation_provider" in line]
    return bool(ours) and ASKING in ours[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    with LocalService(keys=[DEMO_KEY]) as service, temporary_home("soak") as home:
        connections = {"workflow_automation_default": connection_to(service.base_url, timeout=4)}
        with Deployment(home, connections) as deployment:
            sys.stdout.write(soak(deployment, service, **vars(options)) + "\n")


if __name__ == "__main__":
    main()
