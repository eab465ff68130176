"""
Measure what starting a run costs, with and without a claim.

Beside the same request by HttpOperator: ``make bench-start``.

One DAG run has the tasks of all three in turn, one after the other, against the same local service.
A task's duration is Airflow's own, from ``start_date`` to ``end_date``; the time in ``execute`` is
taken inside the task. The aim: at most 1.4 times the task of HttpOperator, and with a claim at most
1.05 times the task without one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from airflow_launcher.airflow import temporary_home
from common import SCHEMES, certified, pick, read_times, report, run_dag, undisturbed_airflow
from workflow_automation_provider.testing import DEMO_KEY, LocalService

STARTS = pick(20, 3)
WARM_UP = 2  # of each kind, not counted
TITLES = {
    "provider": "TriggerFlowOperator",
    "claim": "the same, with a claim",
    "http": "HttpOperator",
}

DAGS = f"""
import json
from airflow.providers.http.operators.http import HttpOperator
from airflow.sdk import DAG, chain
from timed import TIMED
from workflow_automation_provider.operators.flows import TriggerFlowOperator

inputs = {{"customer": "Ada", "limit": 10}}
http = {{
    "endpoint": "api/trigger",
    "data": json.dumps({{"inputs": inputs}}),
    "headers": {{"Content-Type": "application/json", "X-API-Key": {DEMO_KEY.value!r}}},
    "response_filter": lambda response: response.json(),
}}

with DAG("starts", schedule=None):
    tasks = []
    for number in range({WARM_UP + STARTS}):
        tasks += [
            TriggerFlowOperator(task_id=f"provider_{{number}}", inputs=inputs, **TIMED),
            TriggerFlowOperator(task_id=f"claim_{{number}}", inputs=inputs, on_unknown_start="claim", **TIMED),
            HttpOperator(task_id=f"http_{{number}}", **http, **TIMED),
        ]
    chain(*tasks)
"""

Milliseconds = list[float]


def run(scheme: str) -> dict[str, tuple[Milliseconds, Milliseconds]]:
    """
    Measure against a service that speaks ``scheme``.

    Return the times of the tasks, and those in ``execute``.
    """
    with temporary_home("bench") as home:
        certificate, variables = certified(home, scheme)
        with (
            LocalService(certfile=certificate, journal=home / "journal") as service,
            undisturbed_airflow(home, DAGS, variables=variables) as airflow,
        ):
            # So much later, the API server hears it beside the tasks of all three, and not beside
            # its own alone.
            service.callbacks.add(None, started=20)
            airflow.api.add_connection("workflow_automation_default", service.airflow_connection())
            airflow.api.add_connection("http_default", {"conn_type": "http", "host": service.url})
            run_dag(airflow.api, "starts", "run")
            execute = read_times(home)
            results = {}
            for who in TITLES:
                ids = [f"{who}_{number}" for number in range(WARM_UP, WARM_UP + STARTS)]
                tasks = [
                    airflow.api.task("starts", "run", task_id)["duration"] * 1000 for task_id in ids
                ]
                results[who] = tasks, [execute[f"run {task_id}"][0] * 1000 for task_id in ids]
            return results


def spread(column: Milliseconds) -> str:
    """Write a median with its quartiles."""
    low, middle, high = statistics.quantiles(column, n=4)
    return f"{middle:,.0f} ({low:,.0f}-{high:,.0f})"


def rows() -> Iterator[list[str]]:
    """Measure, and write the results."""
    for scheme in SCHEMES:
        results = run(scheme)
        theirs = statistics.median(results["http"][0])
        for who, (tasks, executes) in results.items():
            ratio = statistics.median(tasks) / theirs
            yield [scheme, TITLES[who], f"{ratio:.2f}", spread(tasks), spread(executes)]


if __name__ == "__main__":
    report(
        ["service", "operator", "HttpOperator = 1", "task, ms", "`execute`, ms"],
        rows(),
        texts=2,
    )
