"""
Measure what starting a run costs, with and without a claim, beside the same request by HttpOperator: ``make bench-start``.

One DAG run has the tasks of all three in turn, one after the other, against the same local service. A task's duration is
Airflow's own, from ``start_date`` to ``end_date``; the time in ``execute`` is taken inside the task.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from airflow_launcher.airflow import temporary_home
from airflow_launcher.api import FINISHED, AirflowApi
from undisturbed import certified, undisturbed_airflow
from workflow_automation_provider.testing import DEMO_KEY, LocalService

STARTS = 20
WARM_UP = 2  # of each kind, not counted
AIM, CLAIM_AIM = 1.4, 1.05
TITLES = {
    "provider": "TriggerFlowOperator",
    "claim": "the same, with a claim",
    "http": "HttpOperator",
}

DAGS = """
import json, os, time
from airflow.providers.http.operators.http import HttpOperator
from airflow.sdk import DAG, chain
from workflow_automation_provider.operators.flows import TriggerFlowOperator

def before(context):
    global began
    began = time.perf_counter()

def after(context, result):
    seconds = time.perf_counter() - began
    with open(os.environ["BENCH_TIMES"], "a") as times:
        times.write(json.dumps([context["ti"].task_id, seconds]) + "\\n")

timed = {"pre_execute": before, "post_execute": after}
inputs = {"customer": "Ada", "limit": 10}
http = {
    "endpoint": "api/trigger",
    "data": json.dumps({"inputs": inputs}),
    "headers": {"Content-Type": "application/json", "X-API-Key": os.environ["BENCH_KEY"]},
    "response_filter": lambda response: response.json(),
}

with DAG("starts", schedule=None):
    tasks = []
    for number in range(STARTS):
        tasks += [
            TriggerFlowOperator(task_id=f"provider_{number}", inputs=inputs, **timed),
            TriggerFlowOperator(task_id=f"claim_{number}", inputs=inputs, on_unknown_start="claim", **timed),
            HttpOperator(task_id=f"http_{number}", **http, **timed),
        ]
    chain(*tasks)
"""


class Start(NamedTuple):
    """What one task took, in milliseconds."""

    task: float
    execute: float


Results = dict[str, list[Start]]


def measure(api: AirflowApi, execute: dict[str, float], starts: int) -> Results:
    """Return what the tasks of the DAG run took, without the first ones, which warm up."""

    def taken(task_id: str) -> Start:
        task = api.task("starts", "run", task_id)
        began, ended = (datetime.fromisoformat(task[date]) for date in ("start_date", "end_date"))
        return Start((ended - began).total_seconds() * 1000, execute[task_id] * 1000)

    numbers = range(WARM_UP, WARM_UP + starts)
    return {who: [taken(f"{who}_{number}") for number in numbers] for who in TITLES}


def run(scheme: str, starts: int) -> Results:
    """Measure against a service that speaks ``scheme``."""
    with temporary_home("bench") as home:
        times = home / "times"
        (home / "dags").mkdir()
        (home / "dags" / "starts.py").write_text(f"STARTS = {WARM_UP + starts}\n{DAGS}")
        certificate, variables = certified(home, scheme)
        variables |= {"BENCH_TIMES": str(times), "BENCH_KEY": DEMO_KEY.value}
        with (
            LocalService(
                certfile=str(certificate) if certificate else None, journal=home / "journal"
            ) as service,
            undisturbed_airflow(home, {}, variables=variables) as airflow,
        ):
            # The first step of each run that is given a URL.
            service.callbacks.add(None, started=0)
            api = airflow.api
            api.add_connection("workflow_automation_default", service.base_url, DEMO_KEY.value)
            http = {"connection_id": "http_default", "conn_type": "http", "host": service.url}
            api.ask("POST", "/connections", http)
            api.trigger("starts", "run")
            # Seldom: the api-server that is asked here also serves the tasks.
            while (state := api.dag_run("starts", "run")["state"]) not in FINISHED:
                time.sleep(2)
            if state != "success":
                raise SystemExit(f"The DAG run: {state}. Its logs are kept with KEEP=1")
            return measure(api, dict(map(json.loads, times.open())), starts)


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
        for who, title in TITLES.items():
            tasks, executes = zip(*results[who], strict=True)
            yield f"| {scheme} | {title} | {ratio(results, who):.2f} | {spread(tasks)} | {spread(executes)} |"


def main() -> None:
    """Print the table, and how far from the aim it is."""
    parser = argparse.ArgumentParser(description="Measure what starting a run costs, beside HttpOperator.")
    parser.add_argument("schemes", nargs="*", default=["http", "https"], help="http, https; both by default")
    parser.add_argument("--starts", type=int, default=STARTS, help="tasks of each kind")
    arguments = parser.parse_args()
    measured = {scheme: run(scheme, arguments.starts) for scheme in arguments.schemes}
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
