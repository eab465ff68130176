"""The Airflow of the benchmarks that run tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import certifi
import trustme

from airflow_launcher.airflow import Airflow
from airflow_launcher.databases import PostgreSQL


def certified(home: Path, scheme: str) -> tuple[Path | None, dict[str, str]]:
    """
    Return a service's certificate, if it is to have one, and the environment variables with which tasks trust it.

    They trust the usual authorities too: to load those is part of what a request over TLS costs.
    """
    if scheme == "http":
        return None, {}
    authority, certificate, trusted = trustme.CA(), home / "service.pem", home / "trusted.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trusted.write_bytes(Path(certifi.where()).read_bytes() + authority.cert_pem.bytes())
    return certificate, {"SSL_CERT_FILE": str(trusted), "REQUESTS_CA_BUNDLE": str(trusted)}


def undisturbed_airflow(
    home: Path,
    settings: Mapping[str, str],
    *,
    variables: Mapping[str, str] | None = None,
    connections: Mapping[str, Mapping[str, Any]] | None = None,
) -> Airflow:
    """
    Return an Airflow with LocalExecutor on PostgreSQL, which does nothing beside its tasks.

    :param home: the folder for all that it writes; its DAG files are in ``dags``
    :param settings: more of Airflow's settings, by the names of their variables without ``AIRFLOW__``
    :param variables: more environment variables for its tasks
    :param connections: Airflow connections as JSON values, by connection id
    """
    common = {
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        # Longer than the benchmark: it would add work at some tasks and not at others.
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "600",
    }
    found = Airflow(
        home,
        home / "dags",
        database=PostgreSQL(home),
        connections=connections,
        settings={**common, **settings},
    )
    found.env |= variables or {}
    return found
