"""
Measure what waiting for the ends of runs costs, beside deferred tasks that poll: ``make bench-wait``.

One Airflow does both in turn. First its tasks wait with ``TriggerFlowOperator(wait_for_completion=True)``, without a
triggerer. Then a triggerer is started, and as many tasks are deferred to a trigger that asks an HTTP URL every
minute, as other providers' triggers do. What Airflow's processes use is measured for a minute while all of them
wait. Then some flows end, one after the other, and what is measured is the time until their tasks have succeeded.

A waiting task continues now and then to look: first after 15 seconds, later every hour. Here it does only the
latter. What a check costs is what it costs to continue a task, which is measured as the flows end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_launcher.airflow import TRIGGERER, Airflow, connection_to, temporary_home
from airflow_launcher.processes import wait_for
from undisturbed import undisturbed_airflow
from workflow_automation_provider.testing import LocalService

if TYPE_CHECKING:
    import psutil

    from airflow_launcher.api import AirflowApi

TASKS, ENDING, WARM_UP = 200, 40, 16
POLL = 60  # seconds between two polls of one trigger: a usual default
WINDOW = POLL  # seconds; each trigger polls once
IDLE_WINDOW = 20
SPREAD = 30  # seconds over which the flows end
SETTLE = 10
MIB = 1024 * 1024

WAITING = """
from airflow.sdk import DAG
from workflow_automation_provider.execution import wait
from workflow_automation_provider.operators.flows import TriggerFlowOperator

wait._FIRST_SLEEP = wait._MAX_SLEEP

for dag_id, tasks in (("warm_up", {warm_up}), ("waiting", {tasks})):
    with DAG(dag_id, schedule=None):
        TriggerFlowOperator.partial(task_id="task", wait_for_completion=True).expand(
            inputs=[{{"dag": dag_id, "case": case}} for case in range(tasks)]
        )
"""

DEFERRED = """
from airflow.sdk import DAG
from polling import PollingOperator

with DAG("deferred", schedule=None):
    PollingOperator.partial(task_id="task").expand(url=[f"{url}/{{case}}" for case in range({tasks})])
"""

POLLING = """
import asyncio
import random

import aiohttp
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent


class PollingTrigger(BaseTrigger):
    def __init__(self, url):
        super().__init__()
        self.url = url

    def serialize(self):
        return "polling.PollingTrigger", {"url": self.url}

    async def run(self):
        # As if the tasks had been deferred at different times.
        await asyncio.sleep(random.uniform(0, POLL))
        while True:
            async with aiohttp.ClientSession() as session, session.get(self.url) as response:
                if (state := (await response.json())["state"]) != "running":
                    break
            await asyncio.sleep(POLL)
        yield TriggerEvent(state)


class PollingOperator(BaseOperator):
    def __init__(self, *, url, **kwargs):
        super().__init__(**kwargs)
        self.url = url

    def execute(self, context):
        self.defer(trigger=PollingTrigger(self.url), method_name="execute_complete")

    def execute_complete(self, context, event):
        return event
"""


class Flows:
    """When the flows end: those of the first tasks at set times, all others never."""

    def __init__(self, ending: int) -> None:
        self.ends = dict.fromkeys(range(ending), float("inf"))
        self._began = threading.Event()

    def end(self) -> None:
        """Have the flows end, one after the other."""
        now = time.time()
        self.ends = {case: now + SPREAD * case / len(self.ends) for case in self.ends}
        self._began.set()

    def wait(self, case: int) -> None:
        """Return at the end of a flow."""
        self._began.wait()
        time.sleep(max(0.0, self.ends[case] - time.time()))


@contextlib.contextmanager
def serve(flows: Flows) -> Iterator[str]:
    """Serve the states of runs, and give the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            has_ended = flows.ends.get(int(self.path.strip("/")), float("inf")) <= time.time()
            body = f'{{"state": "{"success" if has_ended else "running"}"}}'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class Cost(NamedTuple):
    """
    What Airflow uses.

    :param memory: MiB, as proportional set size
    :param queries: a minute
    :param cpu: seconds a minute
    """

    processes: float
    memory: float
    queries: float
    cpu: float


def processes(airflow: Airflow) -> list[psutil.Process]:
    """Return Airflow's processes, without the database's."""
    return [process for program in airflow.programs.values() for process in program.family()]


def cpu_seconds(airflow: Airflow) -> float:
    """Return the CPU time of Airflow's processes, of those that have ended too."""
    return sum(sum(process.cpu_times()[:4]) for process in processes(airflow))


def queries(airflow: Airflow) -> int:
    """Return how many statements the database has run, without those that only begin or end a transaction."""
    found = 0
    with (airflow.home / "outputs" / "postgresql.out").open(errors="replace") as log:
        for line in log:
            _, logged, statement = line.partition("LOG:  ")
            kind, _, statement = statement.partition(": ")
            if logged and (kind == "statement" or kind.startswith("execute ")):
                found += not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK"))
    return found


def measure(airflow: Airflow, seconds: float) -> Cost:
    """Measure what Airflow uses, for so many seconds."""
    began, cpu, count = time.monotonic(), cpu_seconds(airflow), queries(airflow)
    time.sleep(seconds)
    minutes = (time.monotonic() - began) / 60
    cpu, count = cpu_seconds(airflow) - cpu, queries(airflow) - count
    found = processes(airflow)
    memory = sum(process.memory_full_info().pss for process in found) / MIB
    return Cost(len(found), memory, count / minutes, cpu / minutes)


class Result(NamedTuple):
    """
    What one of the ways came to.

    :param seconds: from the end of each flow to the success of its task
    :param cpu: seconds for each task that continues, beyond those for the ones that wait
    """

    idle: Cost
    waiting: Cost
    seconds: list[float]
    cpu: float


def say(what: str) -> None:
    """Tell how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr)


def reach(api: AirflowApi, dag_id: str, state: str, tasks: int) -> list[dict[str, Any]]:
    """Wait until so many mapped task instances are in a state, and return the first hundred."""
    path = f"/dags/{dag_id}/dagRuns/run/taskInstances/task/listMapped?state={state}&limit=100"

    def look() -> list[dict[str, Any]] | None:
        found = api.ask("GET", path)
        return found["task_instances"] if found["total_entries"] >= tasks else None

    # Seldom: the api-server that is asked here also serves the tasks.
    return wait_for(f"{tasks} tasks of {dag_id} in {state}", look, 900, pause=2)


def run(airflow: Airflow, dag_id: str, state: str, tasks: int, flows: Flows) -> Result:
    """
    Measure one of the ways.

    :param state: in which its tasks wait
    """
    api = airflow.api
    api.trigger(dag_id, "run")
    reach(api, dag_id, state, tasks)
    say(f"{tasks} tasks are {dag_id}")
    time.sleep(SETTLE)
    waiting = measure(airflow, WINDOW)
    began, cpu = time.monotonic(), cpu_seconds(airflow)
    flows.end()
    ended = reach(api, dag_id, "success", len(flows.ends))
    seconds = [
        datetime.fromisoformat(task["end_date"]).timestamp() - flows.ends[task["map_index"]] for task in ended
    ]
    cpu = cpu_seconds(airflow) - cpu - waiting.cpu * (time.monotonic() - began) / 60
    say(f"{len(seconds)} of them succeeded")
    api.ask("PATCH", f"/dags/{dag_id}/dagRuns/run", {"state": "failed"})
    time.sleep(SETTLE)
    return Result(measure(airflow, IDLE_WINDOW), waiting, seconds, cpu / len(ended))


def compare(tasks: int, ending: int) -> dict[str, Result]:
    """Measure both ways."""
    waiting, deferred = Flows(ending), Flows(ending)
    with (
        temporary_home("bench") as home,
        serve(deferred) as url,
        LocalService(journal=home / "runs") as service,
    ):
        for folder in ("dags", "modules"):
            (home / folder).mkdir()
        (home / "modules" / "polling.py").write_text(f"POLL = {POLL}\n{POLLING}")
        (home / "dags" / "waiting.py").write_text(WAITING.format(tasks=tasks, warm_up=WARM_UP))
        (home / "dags" / "deferred.py").write_text(DEFERRED.format(tasks=tasks, url=url))
        service.callbacks.add(inputs={"dag": "warm_up"})
        for case in waiting.ends:
            service.callbacks.add(inputs={"case": case}, result=lambda run: waiting.wait(run.inputs["case"]))
        with undisturbed_airflow(
            home,
            {"CORE__PARALLELISM": "8", "CORE__MAX_ACTIVE_TASKS_PER_DAG": "8"},
            connections={"workflow_automation_default": connection_to(service.base_url)},
            # Where the triggerer finds the trigger.
            variables={"PYTHONPATH": str(home / "modules")},
        ) as airflow:
            say("Airflow is ready")
            airflow.api.trigger("warm_up", "run")
            airflow.api.finished("warm_up", "run")
            found = {"waiting": run(airflow, "waiting", "awaiting_input", tasks, waiting)}
            airflow.launch(TRIGGERER)
            say("The triggerer is ready")
            return {**found, "deferred": run(airflow, "deferred", "deferred", tasks, deferred)}


def table(results: Mapping[str, Result], tasks: int) -> Iterator[str]:
    """Write the results as Markdown."""
    idle = results["waiting"].idle
    yield (
        "| | processes | memory, MiB | queries a minute | CPU seconds a minute "
        "| CPU seconds to continue a task | end of the flow to success, s: median | worst |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    titles = {
        "waiting": ("idle", f"{tasks} tasks wait"),
        "deferred": ("idle, with a triggerer", f"{tasks} tasks are deferred"),
    }
    for who, (title, title_waiting) in titles.items():
        result = results[who]
        yield f"| {title} | {' | '.join(cells(result.idle, idle))} | | | |"
        times = f"{result.cpu:.1f} | {statistics.median(result.seconds):.0f} | {max(result.seconds):.0f}"
        yield f"| {title_waiting} | {' | '.join(cells(result.waiting, idle))} | {times} |"


def cells(cost: Cost, idle: Cost) -> Iterator[str]:
    """Write what Airflow uses, with how much that is beyond idling in parentheses."""
    for name, value, base in zip(cost._fields, cost, idle, strict=True):
        digits = ".1f" if name == "cpu" else ",.0f"
        beyond = "" if cost is idle else f" ({value - base:+{digits}})"
        yield f"{value:{digits}}{beyond}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Measure what waiting for the ends of runs costs, beside deferred tasks that poll."
    )
    parser.add_argument("--tasks", type=int, default=TASKS, help="tasks that wait, and that are deferred")
    parser.add_argument(
        "--ending", type=int, default=ENDING, help="tasks of each whose flow ends, at most 100"
    )
    arguments = parser.parse_args()
    results = compare(arguments.tasks, arguments.ending)
    print("\n".join(table(results, arguments.tasks)))
    print(
        f"\nPython {platform.python_version()}, {os.cpu_count()} cores; times of {arguments.ending} tasks each; "
        f"load average {os.getloadavg()[1]:.1f}."
    )


if __name__ == "__main__":
    main()
