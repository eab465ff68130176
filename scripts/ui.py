"""Run Airflow's UI with the example DAGs, the connection and a local service, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_launcher.airflow import PASSWORD, USER, Airflow
from airflow_launcher.processes import is_free
from local_airflow import local_airflow

if TYPE_CHECKING:
    from local_s3 import LocalS3
    from workflow_automation_provider.testing import LocalService, Run

DELAY = timedelta(seconds=15)  # from the start of a run to its last step
REPORT = {"rows": 1250, "file": "orders.csv"}


def chosen_port(variable: str, default: int) -> int:
    """
    Return the port that an environment variable names.

    By default, it is the first free one from a port on.
    """
    if not (chosen := os.environ.get(variable)):
        return next(filter(is_free, range(default, 65536)))
    if not is_free(int(chosen)):
        sys.exit(f"Port {chosen} is taken. Choose another: make ui {variable}=…")
    return int(chosen)


def announce(airflow: Airflow, service: LocalService) -> None:
    """Print where everything is, and what to begin with."""
    print(f"""
Airflow   {airflow.url}   user {USER}, password {PASSWORD}
Service   {service.url}   shows the runs it started
DAGs      example_dags: a new file is found within a minute
Logs      {airflow.home}/outputs, those of tasks in {airflow.home}/logs

Begin with workflow_automation_trigger_upload: under Dags, open it and press Trigger. Its task trigger has the button Open run.
Then workflow_automation_wait and …_claim; the others are recipes. Where two DAGs belong together, unpause the second one.
All DAGs are paused, and Trigger unpauses one. With a schedule, that alone starts a run, for the last time of the schedule.
The connections are under Admin → Connections.
Browse → Flow runs shows what is live; the tab Flow run of a task, its conversation with the run.
A run ends 15 s after its start; what waits for it goes on up to 60 s after.
Ctrl-C stops everything.""")


def play(run: Run, s3: LocalS3, airflow: Airflow) -> None:
    """Do what some flows of the examples do as their last step: write a file, or start a DAG."""
    if url := run.inputs.get("result_file"):
        scheme, _, path = url.partition("://")
        report = json.dumps(REPORT).encode()
        if scheme == "s3":
            s3.put(path.partition("/")[2], report)
        else:
            Path(path).write_bytes(report)
    elif dag_run_id := run.inputs.get("dag_run_id"):
        body = {"dag_run_id": dag_run_id, "logical_date": None, "conf": REPORT}
        airflow.api.log_in(USER, PASSWORD)  # that of the start expires
        try:
            airflow.api.ask("POST", "/dags/workflow_automation_next_dag/dagRuns", body)
        except RuntimeError as error:
            print(f"A flow could not start its DAG: {error}")


def play_all(airflow: Airflow, service: LocalService, s3: LocalS3) -> None:
    """Play the last steps of the runs that are to come, each when it is due, for ever."""
    played = len(service.runs)
    while True:
        airflow.check()
        for run in service.runs[played:]:
            if datetime.fromisoformat(run.at) > datetime.now(UTC) - DELAY:
                break
            play(run, s3, airflow)
            played += 1
        time.sleep(1)


def main() -> None:
    """Run until interrupted."""
    ports = chosen_port("UI_PORT", 8081), chosen_port("SERVICE_PORT", 8090)
    with local_airflow("ui", DELAY.total_seconds(), *ports) as (airflow, service, s3):
        announce(airflow, service)
        with contextlib.suppress(KeyboardInterrupt):
            play_all(airflow, service, s3)


if __name__ == "__main__":
    main()
