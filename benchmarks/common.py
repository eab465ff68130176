"""
What the benchmarks share: their size, their Airflow, and how they print what they measured.

What takes memory is imported by the functions that need it, for some benchmarks measure their own
processes.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import psutil

    from airflow_launcher.airflow import Airflow
    from airflow_launcher.api import AirflowApi

MIB = 1024 * 1024
SMALL = "--small" in sys.argv
SCHEMES = ("http", "https")

Size = TypeVar("Size")


def pick(usual: Size, small: Size) -> Size:
    """
    Return one of two sizes.

    The second with ``--small``, which shows that a benchmark works, and measures nothing.
    """
    return small if SMALL else usual


def certified(home: Path, scheme: str) -> tuple[Path | None, dict[str, str]]:
    """
    Return a service's certificate, if any, and the environment variables for tasks to trust it.

    They trust the usual authorities too: to load those is part of what a request over TLS costs.
    """
    import certifi
    import trustme

    if scheme == "http":
        return None, {}
    authority, certificate, trusted = trustme.CA(), home / "service.pem", home / "trusted.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trusted.write_bytes(Path(certifi.where()).read_bytes() + authority.cert_pem.bytes())
    return certificate, {"SSL_CERT_FILE": str(trusted), "REQUESTS_CA_BUNDLE": str(trusted)}


def undisturbed_airflow(
    home: Path,
    dags: str,
    *,
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Airflow:
    """
    Return an Airflow with LocalExecutor on PostgreSQL, which does nothing beside its tasks.

    :param home: the folder for all that it writes
    :param dags: the DAG file; it can import the modules beside this one
    :param settings: more of Airflow's settings, by the names of their variables without
        ``AIRFLOW__``
    :param variables: more environment variables for its tasks
    """
    from airflow_launcher.airflow import Airflow
    from airflow_launcher.databases import PostgreSQL

    (home / "dags").mkdir()
    (home / "dags" / "bench.py").write_text(dags)
    common = {
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        # Longer than the benchmark: it would add work at some tasks and not at others.
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "600",
    }
    settings = {**common, **(settings or {})}
    found = Airflow(home, home / "dags", database=PostgreSQL(home), settings=settings)
    found.env |= {"PYTHONPATH": str(Path(__file__).parent), "BENCH_TIMES": str(home / "times")}
    found.env |= variables or {}
    return found


def run_dag(
    api: AirflowApi, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None
) -> None:
    """
    Run a DAG.

    :raises SystemExit: if it does not succeed
    """
    api.trigger(dag_id, run_id, conf)
    # Seldom: the api-server that is asked here also serves the tasks.
    if (state := api.finished(dag_id, run_id, 3600, pause=2)) != "success":
        raise SystemExit(f"{dag_id} {run_id}: {state}. With KEEP=1 its logs are kept.")


def read_times(home: Path) -> dict[str, tuple[float, float]]:
    """
    Return what the tasks of ``timed`` took.

    The seconds in ``execute`` and the peak memory in MiB, by their names.
    """
    return {
        name: (seconds, peak) for name, seconds, peak in map(json.loads, (home / "times").open())
    }


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of processes, and of their children that have ended."""
    return float(sum(sum(process.cpu_times()[:4]) for process in processes))


def say(what: str) -> None:
    """Tell how far it is."""
    print(what, file=sys.stderr)


def report(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> None:
    """
    Print a table as Markdown, and what it was measured on.

    :param texts: how many of the first columns are no numbers
    """
    rule = ["---" if column < texts else "---:" for column in range(len(heads))]
    for row in (heads, rule, *rows):
        print(f"| {' | '.join(row)} |")
    load = os.getloadavg()[1]
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load average {load:.1f}.")
