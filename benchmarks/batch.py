"""
Measure what starting many runs costs, beside bare httpx: ``make bench-batch``.

One Airflow on PostgreSQL runs them in turn, one at a time, against a service that only responds, at once or after 50
ms, with and without TLS. The time is taken inside of the task, around ``execute``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from airflow_launcher.airflow import temporary_home
from airflow_launcher.api import FINISHED, AirflowApi
from airflow_launcher.processes import free_port, wait_for
from undisturbed import certified, undisturbed_airflow

THREADS, KEY = 16, "bench-key"
LATENCIES = {"quick": 0.0, "slow": 0.05}
ITEMS, MOST = 10_000, 100_000
TITLES = {"batch": "TriggerFlowBatchOperator", "httpx": f"bare httpx, {THREADS} threads"}

DAGS = """
import json, os, resource, time
from concurrent.futures import ThreadPoolExecutor
from airflow.sdk import DAG, task
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

HEADERS = {"Content-Type": "application/json", "X-API-Key": os.environ["BENCH_KEY"]}
CONN_ID = "{{ dag_run.conf['service'] }}"

def tell(context, seconds):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open(os.environ["BENCH_TIMES"], "a") as times:
        times.write(json.dumps([context["dag_run"].dag_id, context["dag_run"].run_id, seconds, peak]) + "\\n")

def before(context):
    global began
    began = time.perf_counter()

def after(context, result):
    tell(context, time.perf_counter() - began)

with DAG("batch", schedule=None):
    TriggerFlowBatchOperator(
        task_id="start", batch="{{ dag_run.conf['items'] }}", output_path="{{ dag_run.conf['items'] }}.out",
        max_concurrency=THREADS, workflow_automation_conn_id=CONN_ID, pre_execute=before, post_execute=after,
    )

with DAG("httpx", schedule=None):
    @task(task_id="start", pre_execute=before, post_execute=after)
    def bare(dag_run=None):
        import httpx

        def start(line):
            response = client.post(url, content=b'{"inputs":%b}' % line.strip(), headers=HEADERS)
            response.raise_for_status()
            return response.json()

        url = dag_run.conf["url"] + "/api/trigger"
        limits = httpx.Limits(max_connections=THREADS, max_keepalive_connections=THREADS)
        with httpx.Client(limits=limits) as client, ThreadPoolExecutor(THREADS) as pool, open(dag_run.conf["items"], "rb") as items:
            runs = list(pool.map(start, items))
        with open(dag_run.conf["items"] + ".out", "w") as out:
            out.writelines(json.dumps(run) + "\\n" for run in runs)

    bare()
"""


class Measured(NamedTuple):
    """
    What one DAG run took.

    :param rate: items in a second
    :param peak: the largest resident memory of the task in MiB
    """

    rate: float
    peak: float


Results = dict[tuple[str, str], list[Measured]]


@contextmanager
def services(certificate: Path | None, trusted: str | None) -> Iterator[dict[str, str]]:
    """Start a service for each latency, in a process of its own; yield their URLs."""
    with ExitStack() as stack:
        urls = {}
        for name, latency in LATENCIES.items():
            port = free_port()
            command = [sys.executable, str(Path(__file__).with_name("quick_service.py")), "--port", str(port)]
            command += ["--latency", str(latency), *(["--certfile", str(certificate)] if certificate else [])]
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.kill)
            urls[name] = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"

            def answers(url: str = urls[name]) -> bool:
                try:
                    verify = httpx.create_ssl_context(trusted) if trusted else True
                    return httpx.post(url, verify=verify, trust_env=False).status_code == 201
                except httpx.TransportError:
                    return False

            wait_for("the service", answers, 20)
        yield urls


class Bench:
    """One Airflow, and the services that its tasks reach."""

    def __init__(self, api: AirflowApi, home: Path, urls: Mapping[str, str]) -> None:
        self._api = api
        self._home = home
        self._urls = urls
        self._runs = 0

    def measure(self, who: str, service: str, items: int) -> Measured:
        """Start ``items`` runs in one way."""
        self._runs += 1
        run_id = f"{self._runs}_{service}_{items}"
        path = self._home / f"{items}.jsonl"
        if not path.exists():
            path.write_text(
                "".join(f'{{"customer": "Ada", "number": {number}}}\n' for number in range(items))
            )
        conf = {"service": service, "url": self._urls[service], "items": str(path)}
        self._api.trigger(who, run_id, conf)
        # Seldom: the api-server that is asked here also serves the tasks.
        while self._api.dag_run(who, run_id)["state"] not in FINISHED:
            time.sleep(1)
        if (state := self._api.finished(who, run_id)) != "success":
            raise SystemExit(f"{who} {run_id}: {state}\n{self._api.log(who, run_id, 'start', 1)}")
        for dag_id, found, seconds, peak in map(json.loads, (self._home / "times").open()):
            if (dag_id, found) == (who, run_id):
                return Measured(items / seconds, peak)
        raise SystemExit(f"{who} {run_id} has told no time")


def run(scheme: str, items: int, rounds: int, most: int) -> Results:
    """Measure against services that speak ``scheme``."""
    results: Results = {}
    with temporary_home("bench") as home, ExitStack() as stack:
        certificate, variables = certified(home, scheme)
        urls = stack.enter_context(services(certificate, variables.get("SSL_CERT_FILE")))
        (home / "dags").mkdir()
        (home / "dags" / "bench.py").write_text(f"THREADS = {THREADS}\n{DAGS}")
        variables |= {"BENCH_TIMES": str(home / "times"), "BENCH_KEY": KEY}
        running = stack.enter_context(undisturbed_airflow(home, {}, variables=variables))
        for name, url in urls.items():
            running.api.add_connection(name, f"{url}/api", KEY)
        bench = Bench(running.api, home, urls)
        bench.measure("batch", "quick", 100)  # to warm up
        for _ in range(rounds):
            for service in LATENCIES:
                for who, title in TITLES.items():
                    found = bench.measure(who, service, items)
                    results.setdefault((who, service), []).append(found)
                    print(f"{scheme} {service:5} {found.rate:8.1f}/s  {title}", file=sys.stderr)
        if most:
            few, many = (bench.measure("batch", "quick", number).peak for number in (100, most))
            print(f"{most:,} items take {many - few:.0f} MiB more than 100.")
    return results


def table(measured: Mapping[str, Results]) -> Iterator[str]:
    """Write the runs per second as Markdown: medians."""
    columns = [(scheme, service) for scheme in measured for service in LATENCIES]
    heads = (f"{scheme}, {LATENCIES[service] * 1000:.0f} ms" for scheme, service in columns)
    yield f"| | {' | '.join(heads)} |\n| --- |{' ---: |' * len(columns)}"
    for who, title in TITLES.items():
        found = (measured[scheme][who, service] for scheme, service in columns)
        rates = (f"{statistics.median(one.rate for one in each):,.1f}" for each in found)
        yield f"| {title} | {' | '.join(rates)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what starting many runs costs.")
    parser.add_argument("schemes", nargs="*", default=["http", "https"], help="http, https; both by default")
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--most", type=int, default=MOST, help="items to measure the memory with; 0 for not")
    arguments = parser.parse_args()
    measured = {
        scheme: run(scheme, arguments.items, arguments.rounds, arguments.most if number == 0 else 0)
        for number, scheme in enumerate(arguments.schemes)
    }
    print("\n".join(table(measured)))
    print(
        f"\nPython {platform.python_version()}, {os.cpu_count()} cores; medians of {arguments.rounds} rounds."
    )


if __name__ == "__main__":
    main()
