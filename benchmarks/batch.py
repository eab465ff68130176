"""
Measure what starting many runs costs, beside bare httpx: ``make bench-batch``.

One Airflow on PostgreSQL runs them in turn, one at a time, against a service that only responds, at
once or after 50 ms, with and without TLS; and with TLS over a network with a round trip of 40 ms. The time is taken
inside of the task, around ``execute``. Each request has a connection of its own, but for the last
row.

Then a batch that waits collects the ends of its runs, without Airflow: ``ends.py``.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_launcher.airflow import temporary_home
from common import SCHEMES, certified, pick, read_times, report, run_dag, say, undisturbed_airflow
from distance import far_away
from ends import Given, measure
from quick_service import quick_service

if TYPE_CHECKING:
    from airflow_launcher.api import AirflowApi

LATENCIES = {"0 ms": 0.0, "50 ms": 0.05}
ITEMS, MOST, ROUNDS = pick((3_000, 100_000, 2), (100, 1_000, 1))
TITLES = {
    "batch_16": "TriggerFlowBatchOperator",
    "httpx": "bare httpx, 16 threads, no entries",
}
ROUND_TRIP = 0.04
ENDS, LARGE_ENDS = pick((10_000, 10_000), (1_000, 100))
FAR_TITLES = {
    "batch_16": "TriggerFlowBatchOperator",
    "batch_32": "… max_concurrency=32",
    "batch_64": "… max_concurrency=64",
    "httpx": "bare httpx, 16 threads, no entries",
    "httpx_kept": "… over connections that are kept",
}

DAGS = """
import json
from concurrent.futures import ThreadPoolExecutor
from airflow.sdk import DAG, task
from timed import TIMED
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

HEADERS = {"Content-Type": "application/json", "X-API-Key": "bench-key"}
THREADS = 16
ITEMS = "{{ dag_run.conf['items'] }}"

for number in (16, 32, 64):
    with DAG(f"batch_{number}", schedule=None):
        TriggerFlowBatchOperator(
            task_id="start", batch=ITEMS, output_path=f"{ITEMS}.out", max_concurrency=number,
            workflow_automation_conn_id="{{ dag_run.conf['service'] }}", **TIMED,
        )

def bare_httpx(dag_id, kept):
    with DAG(dag_id, schedule=None):
        @task(task_id="start", **TIMED)
        def bare(dag_run=None):
            import httpx

            def start(line):
                response = client.post(url, content=b'{"inputs":%b}' % line.strip(), headers=HEADERS)
                response.raise_for_status()
                return response.json()

            url = dag_run.conf["url"] + "/api/trigger"
            limits = httpx.Limits(max_connections=THREADS, max_keepalive_connections=kept)
            with httpx.Client(limits=limits, timeout=60) as client, ThreadPoolExecutor(THREADS) as pool, open(dag_run.conf["items"], "rb") as items:
                runs = list(pool.map(start, items))
            with open(dag_run.conf["items"] + ".out", "w") as out:
                out.writelines(json.dumps(run) + "\\n" for run in runs)

        bare()

bare_httpx("httpx", 0)
bare_httpx("httpx_kept", THREADS)
"""


def start(
    api: AirflowApi, home: Path, who: str, service: tuple[str, str], items: int
) -> tuple[float, float]:
    """
    Start runs in one way; return how many a second, and the peak memory of the task in MiB.

    :param service: the id of its connection, and its URL
    :param items: how many runs
    """
    run_id = f"{who}-{time.time_ns()}"
    path = home / f"{items}.jsonl"
    path.write_text(
        "".join(f'{{"customer": "Ada", "number": {number}}}\n' for number in range(items))
    )
    run_dag(api, who, run_id, {"service": service[0], "url": service[1], "items": str(path)})
    seconds, peak = read_times(home)[f"{run_id} start"]
    return items / seconds, peak


def run(scheme: str) -> dict[tuple[str, str], float]:
    """
    Measure against services that speak ``scheme``.

    Return the runs per second by contender and service: medians.
    """
    rates: dict[tuple[str, str], list[float]] = {}
    with temporary_home("bench") as home, ExitStack() as stack:
        certificate, variables = certified(home, scheme)
        urls = {
            f"service_{number}": stack.enter_context(quick_service(latency, certificate))
            for number, latency in enumerate(LATENCIES.values())
        }
        if scheme == "https":
            urls["far"] = stack.enter_context(far_away(urls["service_1"], ROUND_TRIP))

        airflow = stack.enter_context(undisturbed_airflow(home, DAGS, variables=variables))
        for name, url in urls.items():
            connection = {
                "conn_type": "workflow_automation",
                "host": f"{url}/api",
                "password": "bench-key",
            }
            airflow.api.add_connection(name, connection)
        quick = next(iter(urls.items()))
        few = start(airflow.api, home, "batch_16", quick, 100)[1]  # to warm up, too
        for _ in range(ROUNDS):
            for service in urls.items():
                titles = FAR_TITLES if service[0] == "far" else TITLES
                for who, title in titles.items():
                    rate, _ = start(airflow.api, home, who, service, ITEMS)
                    rates.setdefault((who, service[0]), []).append(rate)
                    say(f"{scheme} {service[0]} {rate:8.1f}/s  {title}")
        if scheme == "http":
            many = start(airflow.api, home, "batch_16", quick, MOST)[1]
            print(f"{MOST:,} items take {many - few:.0f} MiB more than 100.\n")
    return {who_where: statistics.median(found) for who_where, found in rates.items()}


def main() -> None:
    """Print the runs per second."""
    measured = {scheme: run(scheme) for scheme in SCHEMES}
    names = [f"service_{number}" for number in range(len(LATENCIES))]
    rows = [
        [title, *(f"{rates[who, name]:,.1f}" for rates in measured.values() for name in names)]
        for who, title in TITLES.items()
    ]
    report(["", *(f"{scheme}, {latency}" for scheme in SCHEMES for latency in LATENCIES)], rows)
    far = measured["https"]
    rows = [[title, f"{far[who, 'far']:,.1f}"] for who, title in FAR_TITLES.items()]
    report(["", f"https, 50 ms, round trip {ROUND_TRIP * 1000:.0f} ms"], rows)
    collect()


def collect() -> None:
    """Print what it takes to collect ends, of 1 KiB and of 60."""
    with temporary_home("bench") as home:
        small = measure(Given(ENDS, 1024, home), ROUNDS)
        large = measure(Given(LARGE_ENDS, 60 * 1024, home), 1)

    of_small = {
        who: statistics.median(one.seconds for one in found) for who, found in small.items()
    }
    of_large = {who: found[0] for who, found in large.items()}
    rows = []
    for who, title in (("batch", "TriggerFlowBatchOperator"), ("boto3", "boto3, 16 threads")):
        one = of_large[who]
        rows.append([title, f"{of_small[who]:.1f}", f"{one.seconds:.1f}", f"{one.cpu:.1f}"])
    report(["", "1 KiB, s", "60 KiB, s", "60 KiB, CPU s"], rows)
    ratio = of_small["batch"] / of_small["boto3"]
    more = of_large["batch"].peak - of_large["empty"].peak
    print(
        f"\n{ENDS:,} ends of 1 KiB: {ratio:.2f} of boto3. {LARGE_ENDS:,} of 60 KiB: {more:.0f} MiB."
    )


if __name__ == "__main__":
    main()
