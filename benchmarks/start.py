"""
Measure what starting a run costs, with and without a claim, beside the same request by HttpOperator: ``make bench-start``.

One scheduler runs all of them in turn, one task at a time, against the same local service. A task's duration is
Airflow's own, from ``start_date`` to ``end_date``; the time in ``execute`` is taken inside the task.

Then come starts whose response is lost: measured from the response to the run's first step, which claims, to the end
of the task.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from airflow_launcher.airflow import temporary_home
from airflow_launcher.api import FINISHED, AirflowApi
from undisturbed import certified, undisturbed_airflow
from workflow_automation_provider.testing import DEMO_KEY, LocalService

STARTS, ROUNDS = 20, 4
AIM, CLAIM_AIM = 1.4, 1.05
LOST = 40
FIRST_STEP = 1.0  # seconds after the start, so that the task waits for it

HEAD = """
import json, os, time
from airflow.sdk import DAG

def before(context):
    global began
    began = time.perf_counter()

def after(context, result):
    seconds = time.perf_counter() - began
    with open(os.environ["BENCH_TIMES"], "a") as times:
        times.write(json.dumps([context["dag_run"].dag_id, context["dag_run"].run_id, seconds]) + "\\n")

timed = {"pre_execute": before, "post_execute": after}
inputs = {"customer": "Ada", "limit": 10}
"""

PROVIDER = """
from workflow_automation_provider.operators.flows import TriggerFlowOperator

with DAG("NAME", schedule=None):
    TriggerFlowOperator(task_id="start", inputs=inputs, **timed)
"""
CLAIM = PROVIDER.replace("**timed", 'on_unknown_start="claim", **timed')
LOST_RESPONSE = CLAIM.replace("inputs=inputs", 'inputs={"lost": True}')

HTTP = """
from airflow.providers.http.operators.http import HttpOperator

with DAG("NAME", schedule=None):
    HttpOperator(
        task_id="start",
        endpoint="api/trigger",
        data=json.dumps({"inputs": inputs}),
        headers={"Content-Type": "application/json", "X-API-Key": os.environ["BENCH_KEY"]},
        response_filter=lambda response: response.json(),
        **timed,
    )
"""

CONTENDERS = {
    "provider": ("TriggerFlowOperator", PROVIDER),
    "claim": ("the same, with a claim", CLAIM),
    "http": ("HttpOperator", HTTP),
}


def write_dags(folder: Path) -> None:
    """Write a DAG file for each contender: it pays for its own imports."""
    folder.mkdir()
    for who, (_, text) in CONTENDERS.items():
        (folder / f"{who}.py").write_text(HEAD + text.replace("NAME", who))
    (folder / "lost.py").write_text(HEAD + LOST_RESPONSE.replace("NAME", "lost"))


class Start(NamedTuple):
    """What one task took, in milliseconds."""

    task: float
    execute: float


Results = dict[str, list[Start]]


def run_dags(api: AirflowApi, dag_runs: list[tuple[str, str]]) -> None:
    """Run DAG runs one after the other, in this order."""
    for dag_id, run_id in dag_runs:
        api.trigger(dag_id, run_id)
    # Seldom: the api-server that is asked here also serves the tasks.
    while api.dag_run(*dag_runs[-1])["state"] not in FINISHED:
        time.sleep(1)
    for dag_id, run_id in dag_runs:
        if (state := api.finished(dag_id, run_id)) != "success":
            raise SystemExit(f"{dag_id} {run_id}: {state}\n{api.log(dag_id, run_id, 'start', 1)}")


def measure(api: AirflowApi, times: Path, starts: int, rounds: int) -> Results:
    """Start runs with each operator, in turns."""
    run_dags(api, [(who, "warm_up") for who in CONTENDERS])
    for number in range(rounds):
        first, last = number * starts // rounds, (number + 1) * starts // rounds
        run_dags(api, [(who, f"start_{start}") for start in range(first, last) for who in CONTENDERS])
        print(f"Round {number + 1} of {rounds}", file=sys.stderr)

    execute = {(who, run_id): seconds for who, run_id, seconds in map(json.loads, times.open())}

    def taken(who: str, run_id: str) -> Start:
        task = api.task(who, run_id, "start")
        began, ended = (datetime.fromisoformat(task[date]) for date in ("start_date", "end_date"))
        return Start((ended - began).total_seconds() * 1000, execute[who, run_id] * 1000)

    return {who: [taken(who, f"start_{number}") for number in range(starts)] for who in CONTENDERS}


def continued(api: AirflowApi, service: LocalService) -> list[float]:
    """Lose the responses to starts; return the seconds from the claim of each run to the end of its task."""
    service.faults.add("drop_after", inputs={"lost": True}, times=LOST)
    run_dags(api, [("lost", f"start_{number}") for number in range(LOST)])
    claimed = {call.run_id: call.at for call in service.journal.callbacks()}

    def taken(run_id: str) -> float:
        ended = api.task("lost", run_id, "start")["end_date"]
        at = claimed[api.xcom("lost", run_id, "start")["run_id"]]
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(at)).total_seconds()

    return [taken(f"start_{number}") for number in range(LOST)]


def run(scheme: str, starts: int, rounds: int) -> Results:
    """Measure against a service that speaks ``scheme``."""
    with temporary_home("bench") as home:
        write_dags(home / "dags")
        certificate, variables = certified(home, scheme)
        variables |= {"BENCH_TIMES": str(home / "times"), "BENCH_KEY": DEMO_KEY.value}
        with (
            LocalService(
                certfile=str(certificate) if certificate else None, journal=home / "journal"
            ) as service,
            # One task at a time, so that none disturbs another.
            undisturbed_airflow(
                home, {"CORE__DEFAULT_POOL_TASK_SLOT_COUNT": "1"}, variables=variables
            ) as running,
        ):
            # The first step of each run that is given a URL.
            service.callbacks.add(None, started=FIRST_STEP, inputs={"lost": True})
            service.callbacks.add(None, started=0)
            running.api.add_connection("workflow_automation_default", service.base_url, DEMO_KEY.value)
            http = {"connection_id": "http_default", "conn_type": "http", "host": service.url}
            running.api.ask("POST", "/connections", http)
            measured = measure(running.api, home / "times", starts, rounds)
            seconds = continued(running.api, service)
            print(
                f"{scheme}: claim to the end of the task, after {LOST} lost responses: "
                f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s"
            )
            return measured


def spread(column: Sequence[float]) -> str:
    """Write a median with its quartiles."""
    low, middle, high = statistics.quantiles(column, n=4)
    return f"{middle:,.0f} ({low:,.0f}-{high:,.0f})"


def ratio(results: Results, who: str = "provider", to: str = "http") -> float:
    """Return the task duration of a contender, that of another being 1."""
    mine, other = (statistics.median(start.task for start in results[name]) for name in (who, to))
    return mine / other


def table(measured: dict[str, Results]) -> Iterator[str]:
    """Write the results as Markdown."""
    yield "| service | operator | task, HttpOperator = 1 | task, ms | `execute`, ms |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for scheme, results in measured.items():
        for who, (title, _) in CONTENDERS.items():
            tasks, executes = zip(*results[who], strict=True)
            yield f"| {scheme} | {title} | {ratio(results, who):.2f} | {spread(tasks)} | {spread(executes)} |"


def main() -> None:
    """Print the table, and how far from the aim it is."""
    parser = argparse.ArgumentParser(description="Measure what starting a run costs, beside HttpOperator.")
    parser.add_argument("schemes", nargs="*", default=["http", "https"], help="http, https; both by default")
    parser.add_argument("--starts", type=int, default=STARTS, help="tasks of each kind")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    measured = {scheme: run(scheme, arguments.starts, arguments.rounds) for scheme in arguments.schemes}
    print("\n".join(table(measured)))
    print(
        f"\nPython {platform.python_version()}, {os.cpu_count()} cores; medians of {arguments.starts}, with quartiles."
    )
    for aim, of, pair in (
        (AIM, "HttpOperator", ("provider", "http")),
        (CLAIM_AIM, "the same without a claim", ("claim", "provider")),
    ):
        found = ", ".join(f"{scheme} {ratio(results, *pair):.2f}" for scheme, results in measured.items())
        print(f"Aim: at most {aim} times the task of {of}. Measured: {found}")


if __name__ == "__main__":
    main()
