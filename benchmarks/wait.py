"""
Measure what waiting for the ends of runs costs, beside deferred tasks that poll.

``make bench-wait``.

One Airflow does both in turn. First its tasks wait with
``TriggerFlowOperator(wait_for_completion=True)``, without a triggerer. Then a triggerer is started,
and as many tasks wait for an object in a stand-in for S3, to which their flows write. Then as many are
deferred to a trigger that asks an HTTP URL every minute, as other providers' triggers do. What Airflow's processes use is measured for a minute while all of them wait. Then some
flows end, one after the other, and what is measured is the time until their tasks have succeeded.

A waiting task continues now and then to look: first after 25 seconds, later every hour. Here it
does only the latter. What a check costs is what it costs to continue a task, which is measured as
the flows end.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_launcher.airflow import TRIGGERER, Airflow, temporary_home
from airflow_launcher.processes import wait_for
from common import MIB, cpu_seconds, pick, report, run_dag, say, undisturbed_airflow
from local_s3 import BUCKET, LocalS3
from workflow_automation_provider.testing import LocalService

if TYPE_CHECKING:
    import psutil

    from workflow_automation_provider.testing import Run

TASKS, ENDING, WARM_UP = pick((200, 40, 16), (5, 3, 1))
WINDOW, IDLE_WINDOW = pick((60, 20), (5, 5))  # seconds; in a minute, each trigger polls once
SPREAD = 30  # seconds over which the flows end
SETTLE = 10

DAGS = """
from airflow.sdk import DAG
from polling import PollingOperator
from workflow_automation_provider.execution.run import completion
from workflow_automation_provider.operators.flows import TriggerFlowOperator

completion.MIN_SLEEP = completion._MAX_SLEEP

for dag_id, tasks, conn_id in (
    ("warm_up", {warm_up}, "workflow_automation_default"),
    ("waiting", {tasks}, "workflow_automation_default"),
    ("mailboxes", {tasks}, "mailboxes"),
):
    with DAG(dag_id, schedule=None):
        TriggerFlowOperator.partial(
            task_id="task", wait_for_completion=True, workflow_automation_conn_id=conn_id
        ).expand(inputs=[{{"dag": dag_id, "case": case}} for case in range(tasks)])

with DAG("deferred", schedule=None):
    PollingOperator.partial(task_id="task").expand(url=[f"{url}/{{case}}" for case in range({tasks})])
"""


Flows = list[threading.Event]
"""
The ends of the flows that one of the ways waits for.

Of the first tasks; those of all others never end.
"""


def end(flows: Flows) -> list[float]:
    """Have flows end one after the other; return when each did."""
    times = []
    for flow in flows:
        times.append(time.time())
        flow.set()
        time.sleep(SPREAD / len(flows))
    return times


@contextlib.contextmanager
def serve(flows: Flows) -> Iterator[str]:
    """Serve the states of flows, and give the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            case = int(self.path[1:])
            state = "success" if case < len(flows) and flows[case].is_set() else "running"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(f'{{"state": "{state}"}}'.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
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


def queries(airflow: Airflow) -> int:
    """
    Return how many statements the database has run.

    Without those that only begin or end a transaction.
    """
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
    began, cpu, count = time.monotonic(), cpu_seconds(processes(airflow)), queries(airflow)
    time.sleep(seconds)
    minutes = (time.monotonic() - began) / 60
    found = processes(airflow)
    cpu, count = cpu_seconds(found) - cpu, queries(airflow) - count
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


def reach(airflow: Airflow, dag_id: str, state: str, tasks: int) -> list[dict[str, Any]]:
    """Wait until so many mapped task instances are in a state, and return the first hundred."""
    path = f"/dags/{dag_id}/dagRuns/run/taskInstances/task/listMapped?state={state}&limit=100"

    def look() -> list[dict[str, Any]] | None:
        found = airflow.api.ask("GET", path)
        return found["task_instances"] if found["total_entries"] >= tasks else None

    # Seldom: the api-server that is asked here also serves the tasks.
    found = wait_for(f"{tasks} tasks of {dag_id} in {state}", look, 900, pause=2)
    say(f"{time.strftime('%X')} {tasks} tasks of {dag_id} are in {state}")
    return found


def run(airflow: Airflow, dag_id: str, state: str, flows: Flows) -> Result:
    """
    Measure one of the ways.

    :param state: in which its tasks wait
    """
    airflow.api.trigger(dag_id, "run")
    reach(airflow, dag_id, state, TASKS)
    time.sleep(SETTLE)
    waiting = measure(airflow, WINDOW)
    began, cpu = time.monotonic(), cpu_seconds(processes(airflow))
    ends = end(flows)
    ended = reach(airflow, dag_id, "success", ENDING)
    seconds = [
        datetime.fromisoformat(task["end_date"]).timestamp() - ends[task["map_index"]]
        for task in ended
    ]
    cpu = cpu_seconds(processes(airflow)) - cpu - waiting.cpu * (time.monotonic() - began) / 60
    airflow.api.ask("PATCH", f"/dags/{dag_id}/dagRuns/run", {"state": "failed"})
    time.sleep(SETTLE)
    return Result(measure(airflow, IDLE_WINDOW), waiting, seconds, cpu / len(ended))


def compare() -> tuple[Result, Result, Result]:
    """Measure the ways: tasks that wait, also in mailboxes, and tasks that are deferred."""
    waiting, mailed, deferred = ([threading.Event() for _ in range(ENDING)] for _ in range(3))
    flows = {"waiting": waiting, "mailboxes": mailed}

    def wait(run: Run) -> None:
        flows[run.inputs["dag"]][run.inputs["case"]].wait()

    settings = {"CORE__PARALLELISM": "8", "CORE__MAX_ACTIVE_TASKS_PER_DAG": "8"}
    with (
        temporary_home("bench") as home,
        serve(deferred) as url,
        LocalS3() as s3,
        LocalService(journal=home / "runs") as service,
    ):
        # An end that comes before the scheduler has seen the task wait is found when the task next
        # looks.
        service.callbacks.add(inputs={"dag": "warm_up"}, delay=SPREAD)
        for dag_id, case in itertools.product(flows, range(ENDING)):
            service.callbacks.add(inputs={"dag": dag_id, "case": case}, result=wait)
        dags = DAGS.format(tasks=TASKS, warm_up=WARM_UP, url=url)
        with undisturbed_airflow(home, dags, settings=settings) as airflow:
            airflow.api.add_connection("workflow_automation_default", service.airflow_connection())
            airflow.api.add_connection("aws_default", s3.connection)
            mailboxes = {"callback_base_url": f"s3://aws_default@{BUCKET}/callbacks"}
            airflow.api.add_connection("mailboxes", service.airflow_connection(extra=mailboxes))
            run_dag(airflow.api, "warm_up", "run")
            found = run(airflow, "waiting", "awaiting_input", waiting)
            airflow.launch(TRIGGERER)
            found_mailed = run(airflow, "mailboxes", "deferred", mailed)
            return found, found_mailed, run(airflow, "deferred", "deferred", deferred)


def cells(cost: Cost, idle: Cost) -> Iterator[str]:
    """Write what Airflow uses, with how much that is beyond idling in parentheses."""
    for name, value, base in zip(cost._fields, cost, idle, strict=True):
        digits = ".1f" if name == "cpu" else ",.0f"
        beyond = "" if cost is idle else f" ({value - base:+{digits}})"
        yield f"{value:{digits}}{beyond}"


def main() -> None:
    """Print the table."""
    waiting, mailed, deferred = compare()
    rows = []
    for title, result, what in (
        ("idle", waiting, "wait"),
        ("idle, with a triggerer", mailed, "wait in mailboxes"),
        ("idle, with a triggerer", deferred, "are deferred"),
    ):
        rows.append([title, *cells(result.idle, waiting.idle), "", "", ""])
        times = statistics.median(result.seconds), max(result.seconds)
        continuing = [f"{result.cpu:.1f}", *(f"{seconds:.0f}" for seconds in times)]
        rows.append([f"{TASKS} tasks {what}", *cells(result.waiting, waiting.idle), *continuing])
    costs = ["processes", "memory, MiB", "queries a minute", "CPU s a minute"]
    ends = ["CPU s to continue", "end to success, s: median", "worst"]
    report(["", *costs, *ends], rows)


if __name__ == "__main__":
    main()
