"""
Many mapped task instances at once, with random kills and random faults.

What holds for each must hold for all.

    python tests/crash/soak.py --instances 300 --seconds 600 --seed 1

Among them are batches, of which the same holds for each item.

No task instance has two runs; every run in the service's journal is its task instance's result, or
named in its failure; every success has a run. Some task instances wait for their flow to call back,
or to write to a mailbox, and half of the batches wait for the ends of their runs: each result is
delivered to its own task instance or item, and Airflow loses none: whatever failed was killed, or
says why. A third have their runs claim their start, some late: there, several runs may
be started, and what counts is how many worked: exactly one if the task succeeded, at most one if it
failed. Any breach is an error that names the task instance.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_launcher.airflow import temporary_home
from airflow_launcher.api import FINISHED
from airflow_launcher.processes import alive, parent, wait_for
from deployment import Deployment
from sentences import ASKING, MAYBE_STARTED
from workflow_automation_provider.testing import DEMO_KEY, LocalService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deployment import Blow
    from gate import Try
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
SHARE_WAITING, SHARE_WITH_MAILBOX = 0.3, 0.5  # of all, and of those that wait and claim nothing
LATEST_CALLBACK = 20.0  # seconds after the run was started
SHARE_CLAIMING, SHARE_CLAIMING_FAULTED = 1 / 3, 0.7
# Of the claiming, those whose response is lost and whose first step comes about when the next try
# revokes its token; seconds after the run was started.
SHARE_LATE, LATE_FIRST_STEP = 0.9, (4.0, 30.0)
LOST = [
    fault
    for fault in FAULTS
    if fault[0] in ("drop_after", "reset_after", "status_after", "garbage")
]
RAISED = "Task failed with exception"
STARTED = "A run was started"
SHARE_KILLED = 0.5  # of all tries, those that end too soon included
LATEST_KILL = 1.2  # seconds after a try began
ITEMS, SHARE_OF_ITEMS_FAULTED = 60, 0.1  # of each batch
BATCH, BATCH_WAITS = "soak_batch", "soak_batch_waits"
INSTANCES_PER_BATCH = 30  # of each of the two DAGs
LAST_LOOK = timedelta(seconds=5)  # an end that is written later may be too late for a batch


class Killer(threading.Thread):
    """Kills a share of the tries, each at a random moment: the task process or its supervisor."""

    def __init__(self, deployment: Deployment, run_id: str, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.killed: Counter[Blow] = Counter()
        self.pids: set[int] = set()
        self.done = threading.Event()
        self._deployment, self._run_id, self._chance = deployment, run_id, chance

    def run(self) -> None:
        seen = 0
        planned: list[tuple[float, Blow, Try]] = []
        blows: tuple[Blow, ...] = ("task", "supervisor")
        while not self.done.wait(0.02):
            tries = self._deployment.gate.tries
            for found in tries[seen:]:
                if found.run_id == self._run_id and self._chance.random() < SHARE_KILLED:
                    at = time.monotonic() + self._chance.uniform(0, LATEST_KILL)
                    planned.append((at, self._chance.choice(blows), found))
            seen = len(tries)
            for plan in [plan for plan in planned if plan[0] < time.monotonic()]:
                planned.remove(plan)
                self._kill(*plan[1:])

    def _kill(self, blow: Blow, found: Try) -> None:
        # A supervisor is a worker that goes on to other tasks: it is one only while its task lives.
        if parent(found.pid) == found.supervisor and alive(found.pid):
            with suppress(ProcessLookupError):
                self._deployment.kill(blow, found)
                self.killed[blow] += 1
                self.pids.add(found.pid)


class Soak:
    """
    One DAG run of many task instances, and one of batches.

    :param instances: how many task instances
    :param seed: of the choice of faults and kills
    """

    def __init__(
        self, deployment: Deployment, service: LocalService, instances: int, seed: int
    ) -> None:
        self.deployment, self.service, self.api = deployment, service, deployment.api
        self.chance = random.Random(seed)
        self.run_id = f"soak-{seed}"
        self.instances, self.batches = instances, max(instances // INSTANCES_PER_BATCH, 2)
        self.waiting: list[int] = []
        self.claiming: list[int] = []
        self.with_mailbox: list[int] = []
        self.faulted = 0
        self.counts: Counter[str] = Counter()
        self.breaches: list[str] = []

    def plan(self) -> None:
        """Script what the service and the flows do."""
        chance = self.chance
        for n in range(self.instances):
            case = {"case": f"{self.run_id}/{n}"}
            call: dict[str, Any] = {}
            late = False
            if chance.random() < SHARE_WAITING:
                self.waiting.append(n)
                call = {"result": case, "delay": chance.uniform(0, LATEST_CALLBACK)}
            if chance.random() < SHARE_CLAIMING:
                self.claiming.append(n)
                late = chance.random() < SHARE_LATE
                first_step = chance.uniform(*(LATE_FIRST_STEP if late else (0, 1)))
                call = {"status": None, **call, "started": first_step}
                if n in self.waiting:
                    call["status"] = "success"
            elif n in self.waiting and chance.random() < SHARE_WITH_MAILBOX:
                self.with_mailbox.append(n)
            if call:
                self.service.callbacks.add(inputs=case, wait=0.5, attempts=12, **call)
            share = SHARE_CLAIMING_FAULTED if n in self.claiming else SHARE_FAULTED
            if late or chance.random() < share:
                self.fault(case, LOST if late else FAULTS)

        for dag_id in (BATCH, BATCH_WAITS):
            for b in range(self.batches):
                self.plan_batch(dag_id, f"{dag_id}/{self.run_id}/{b}")

    def plan_batch(self, dag_id: str, name: str) -> None:
        if dag_id == BATCH_WAITS:
            self.service.callbacks.add(
                inputs={"batch": name},
                result=lambda run: run.run_id,
                delay=self.chance.uniform(0, LATEST_CALLBACK),
            )

        for n in range(ITEMS):
            if self.chance.random() < SHARE_OF_ITEMS_FAULTED:
                self.fault({"case": f"{name}/{n}"}, FAULTS)

    def fault(self, case: dict[str, str], kinds: list[tuple[str, dict[str, Any]]]) -> None:
        kind, options = self.chance.choice(kinds)
        self.service.faults.add(kind, inputs=case, **options)
        self.faulted += 1

    def run(self, seconds: float) -> str:
        """
        Run it, and return the counts.

        :param seconds: how long it may take
        :raises AssertionError: if anything does not hold
        """
        self.plan()
        self.api.ask("POST", "/pools", {"name": "soak", "slots": SLOTS})
        began = time.monotonic()
        which = {
            "waiting": self.waiting,
            "claiming": self.claiming,
            "with_mailbox": self.with_mailbox,
        }
        dag_ids = ("soak", BATCH, BATCH_WAITS)
        self.api.trigger("soak", self.run_id, {"instances": self.instances, **which})
        for dag_id in (BATCH, BATCH_WAITS):
            self.api.trigger(dag_id, self.run_id, {"batches": self.batches, "items": ITEMS})
        killer = Killer(self.deployment, self.run_id, self.chance)
        # The first tasks only make the lists, and are left alone.
        wait_for("the mapped tasks", lambda: all(map(self.tasks, dag_ids)))
        killer.start()
        try:
            for dag_id in dag_ids:
                wait_for(dag_id, functools.partial(self.all_finished, dag_id), seconds, pause=1)
        finally:
            killer.done.set()
            killer.join()
        took = time.monotonic() - began
        # Orphans, and requests that the service still works on, may yet start a run.
        ours = [found for found in self.deployment.gate.tries if found.run_id == self.run_id]
        wait_for("the orphans", lambda: not any(alive(found.pid) for found in ours))
        time.sleep(max(options.get("seconds", 0) for _, options in FAULTS))
        wait_for("the first steps", self.all_began)
        self.judge()
        self.judge_waits(killer.pids)
        self.judge_batches(BATCH)
        self.judge_batches(BATCH_WAITS)
        assert not self.breaches, "\n".join((f"Seed {self.run_id}", *self.breaches))
        head = (
            f"{self.instances} task instances and {2 * self.batches} batches of {ITEMS} items, of which "
            f"half wait, in {took:.0f} s ({self.run_id}): {len(ours) - len(dag_ids)} executions, "
            f"{self.faulted} faults, {len(self.waiting)} wait, {len(self.with_mailbox)} of them by a "
            f"mailbox, {len(self.claiming)} claim, killed {killer.killed['task']} tasks and "
            f"{killer.killed['supervisor']} supervisors"
        )
        return "\n".join(
            (head, *(f"  {number:4}  {what}" for what, number in sorted(self.counts.items())))
        )

    def tasks(self, dag_id: str = "soak") -> list[dict[str, Any]]:
        """Return the mapped task instances, none until all are there."""
        found: list[dict[str, Any]] = []
        path = f"/dags/{dag_id}/dagRuns/{self.run_id}/taskInstances/trigger/listMapped?limit=100"
        while page := self.api.ask("GET", f"{path}&offset={len(found)}")["task_instances"]:
            found += page
        return found if len(found) == (self.instances if dag_id == "soak" else self.batches) else []

    def all_finished(self, dag_id: str) -> bool:
        ended = self.api.dag_run(dag_id, self.run_id)["state"] in FINISHED
        return ended and all(found["state"] in FINISHED for found in self.tasks(dag_id))

    def all_began(self) -> bool:
        """
        Tell whether the service works on no request.

        Each claiming run is then past its first step, or stopped there.
        """
        journal, service = self.service.journal, self.service
        struck = sum(
            scripted.struck for scripted in service.faults.all() if scripted.fault.kind == "delay"
        )
        if sum(request.fault == "delay" for request in journal.requests()) < struck:
            return False
        worked = {work.run_id for work in journal.worked()}
        calls = {call.run_id: call for call in reversed(journal.callbacks())}
        cases = {f"{self.run_id}/{n}" for n in self.claiming}
        runs = [run.run_id for run in service.runs if run.inputs["case"] in cases]
        return all(run in worked or (run in calls and calls[run].status != 200) for run in runs)

    def judge(self) -> None:
        """Count what came of each task instance, and note what does not hold."""
        runs, worked = by_case(self.service.runs), by_case(self.service.journal.worked())
        for found in self.tasks():
            index, state = found["map_index"], found["state"]
            case = f"{self.run_id}/{index}"
            started = runs[case]
            says = f"{state}, {len(started)} runs"
            if index in self.claiming:
                started = worked[case]
                says += f", of which {len(started)} worked"
            self.counts[says] += 1
            result = self.result(index) if state == "success" else {}
            logs = [*self.deployment.logs("soak", self.run_id, map_index=index).values()]
            # A flow may call back before its run is recorded: a task that is killed in between
            # knows only the result.
            is_named = "run_id" in result or index not in self.waiting
            returned = [result.get("run_id")] if is_named else started[:1]
            is_breach = len(started) > 1 or (state == "success" and started != returned)
            if state != "success" and started:
                how = _mention_of(started[0], logs)
                self.counts[f"run of a failed task, {how}"] += 1
                is_breach = is_breach or not how
            if is_breach:
                self.breaches.append(
                    "\n".join((f"{index}: {says}: {started}, and {result}", *logs))
                )

    def result(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = self.api.xcom("soak", self.run_id, "trigger", map_index=index)
        return found

    def judge_waits(self, killed: set[int]) -> None:
        """
        Note which result was not delivered, and which try was lost.

        :param killed: the processes whose tries were killed
        """
        gate, cases = (
            self.deployment.gate,
            {run.run_id: run.inputs["case"] for run in self.service.runs},
        )
        called = {
            cases[call.run_id]: datetime.fromisoformat(call.at)
            for call in self.service.journal.callbacks()
            if call.status == 200 and call.body["status"] == "success"
        }
        for index in self.waiting:
            case = {"case": f"{self.run_id}/{index}"}
            tries = self.api.tries("soak", self.run_id, "trigger", index)
            logs = self.deployment.logs("soak", self.run_id, map_index=index)
            for found in tries:
                log = logs.get(found["try_number"], "")
                if found["state"] != "success" and found["pid"] not in killed and RAISED not in log:
                    self.breaches.append(f"{index}: try {found['try_number']} was lost:\n{log}")
            last = tries[-1]
            self.counts[f"wait, {last['state']} in try {len(tries)}"] += 1
            if last["state"] == "success":
                if self.result(index).get("result") != case:
                    self.breaches.append(f"{index}: another result than {case} was delivered")
            elif last["pid"] not in killed:
                # A callback may be accepted while a task fails that found none when it looked.
                ti_ids = {found.ti_id for found in gate.tries if found.pid == last["pid"]}
                looks = [gate.looked[ti_id] for ti_id in ti_ids & gate.looked.keys()]
                looked = max(looks, default=datetime.fromisoformat(last["end_date"]))
                if (at := called.get(case["case"], looked)) < looked:
                    self.breaches.append(
                        f"{index}: {last['state']}, though its flow called back at {at}"
                    )

    def judge_batches(self, dag_id: str) -> None:
        """
        Note which run of an item its batch does not know of.

        And which end a batch that has waited for them has missed.
        """
        runs = by_case(self.service.runs)
        records = self.deployment.batches(dag_id, self.run_id)
        ended = {
            call.run_id: datetime.fromisoformat(call.at)
            for call in self.service.journal.callbacks()
            if call.status == 200
        }
        for found in self.tasks(dag_id):
            b, state = found["map_index"], found["state"]
            entries = records.get(b, [])
            items = recorded(entries)
            in_time: set[str] = set()
            if dag_id == BATCH_WAITS:
                items |= self.output(b)
                if any(item["status"] == "success" for item in items.values()):
                    in_time = {run_id for run_id, at in ended.items() if at < last_look(entries)}

            for n in range(ITEMS):
                started = runs[f"{dag_id}/{self.run_id}/{b}/{n}"]
                item = items.get(n, {"status": "not opened"})
                status = item["status"]
                is_missed = not in_time.isdisjoint(started)
                self.counts[f"{dag_id}, items {status}, {len(started)} runs"] += 1
                expected = {
                    "started": started == [item.get("run_id")],
                    "success": started == [item.get("result")],
                    "unidentified": len(started) == 1,
                    "overdue": len(started) == 1 and not is_missed,
                    "unknown": len(started) <= 1 and not is_missed,
                    "open": len(started) <= 1,
                }.get(status, not started)
                best = "success" if dag_id == BATCH_WAITS else "started"
                if not expected or (state == "success" and status != best):
                    self.breaches.append(f"{dag_id} {b}/{n}: {state}, {item}, the runs {started}")

    def output(self, b: int) -> dict[int, dict[str, Any]]:
        """Return what a batch's output file has, by index."""
        path = self.deployment.home / f"{self.run_id}-{b}.jsonl"
        if not path.exists():
            return {}
        items = map(json.loads, path.read_text().splitlines())
        return {item["index"]: item for item in items}


def recorded(entries: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return what a batch's entries have of its items, by index."""
    items: dict[int, dict[str, Any]] = {}
    for entry in entries:
        items |= {int(n): {"status": "open"} for n in entry["opened"]}
        items |= {int(n): item for n, item in entry["results"].items()}
    return items


def last_look(entries: list[dict[str, Any]]) -> datetime:
    """Return until when a batch has seen each end that was written."""
    return datetime.fromisoformat(entries[-1]["until"]) - LAST_LOOK


def by_case(records: Sequence[Run] | Sequence[Work]) -> dict[str, list[str]]:
    """Return the ids of the runs of each case."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        found[record.inputs["case"]].append(str(record.run_id))
    return found


def _mention_of(run_id: str, logs: list[str]) -> str:
    """Return how the logs of a failed task's tries mention its run, empty if they do not."""
    named = (
        STARTED,
        "started a run",
        f"Started run {run_id}:",
        f"Run {run_id} has claimed this start.",
    )
    if any(words in log for log in logs for words in named):
        return "as started"
    if any(MAYBE_STARTED in log for log in logs):
        return "in doubt"
    # All later tries were killed before they could mention it: the last line announces it.
    return "announced" if any(map(_ends_asking, logs)) else ""


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
        extra = {"timeout": 4}
        with_mailboxes = {**extra, "callback_base_url": (home / "mailboxes").as_uri()}
        connections = {
            "workflow_automation_default": service.airflow_connection(extra=extra),
            "mailboxes_file": service.airflow_connection(extra=with_mailboxes),
        }
        with Deployment(home, connections) as deployment:
            soak = Soak(deployment, service, options.instances, options.seed)
            sys.stdout.write(soak.run(options.seconds) + "\n")


if __name__ == "__main__":
    main()
