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
from airflow_launcher.api import AirflowApi
from airflow_launcher.processes import is_free
from local_airflow import FLOW_USER, local_airflow, script_flows, shown
from workflow_automation_provider.testing import JournalError, LocalService

if TYPE_CHECKING:
    from local_s3 import LocalS3
    from workflow_automation_provider.testing import Run

# Seconds from the start of a run to its last step.
DELAY = 15
REPORT = {"rows": 1250, "file": "orders.csv"}


class LocalFlows:
    """
    Play what the flows of the examples do as their last step, besides calling back.

    :param service: the service, whose runs they are
    :param s3: where they write objects
    :param airflow: Airflow's address, for those that start a DAG
    """

    def __init__(self, service: LocalService, s3: LocalS3, airflow: str) -> None:
        self._service, self._s3, self._airflow = service, s3, airflow
        self._played = len(service.runs)

        def write_object(run: Run) -> None:
            s3.put(run.inputs["key"], b"customer,total\nAda,19.99\nGrace,240.00\n")

        service.callbacks.add(result=write_object, inputs={"bucket": s3.bucket}, delay=DELAY)

    def play(self) -> None:
        """Do the last step of the runs that are old enough."""
        due = datetime.now(UTC) - timedelta(seconds=DELAY)
        for run in self._service.runs[self._played :]:
            if datetime.fromisoformat(run.at) > due:
                break
            self._played += 1
            if "result_file" in run.inputs:
                self._write_file(run.inputs["result_file"])
            elif "dag_run_id" in run.inputs:
                self._start_dag(run.inputs["dag_run_id"])

    def _write_file(self, url: str) -> None:
        scheme, _, path = url.partition("://")
        report = json.dumps(REPORT).encode()
        if scheme == "s3":
            self._s3.put(path.partition("/")[2], report)
        else:
            # Whoever waits for the file must not see half of it.
            half = Path(f"{path}.part")
            half.write_bytes(report)
            half.rename(path)

    def _start_dag(self, dag_run_id: str) -> None:
        body = {"dag_run_id": dag_run_id, "logical_date": None, "conf": REPORT}
        with contextlib.closing(AirflowApi(self._airflow)) as api:
            api.log_in(FLOW_USER, FLOW_USER)
            try:
                api.ask("POST", "/dags/workflow_automation_next_dag/dagRuns", body)
            except RuntimeError as error:
                print(f"A flow could not start its DAG: {error}")


def chosen_port(variable: str, default: int) -> int:
    """
    Return the port that an environment variable names, or else the first free one from a default on.

    :raises SystemExit: if the variable names no port, or one that is taken
    """
    text = os.environ.get(variable)
    if not text:
        port = next(filter(is_free, range(default, 65536)))
        if port != default:
            print(f"Port {default} is taken, so {variable} is {port}.")
        return port
    if not (text.isdecimal() and 0 < int(text) < 65536):
        sys.exit(f"{variable}={text} is not a port.")
    if not is_free(int(text)):
        sys.exit(f"Port {text} is taken. Choose another: make ui {variable}=…")
    return int(text)


def announce(airflow: Airflow, service: LocalService) -> None:
    """Print where everything is, and what to begin with."""
    print(f"""
Airflow   {airflow.url}   user {USER}, password {PASSWORD}
Service   {service.url}   shows the runs it started
Logs      {shown(airflow.home / "outputs")}, those of tasks in {shown(airflow.home / "logs")}

Begin with workflow_automation_trigger: under Dags, open it and press Trigger. Its task has the button Open run.
Then workflow_automation_trigger_upload, …_wait and …_claim; the others are recipes.
The connections are under Admin → Connections.
Browse → Flow runs shows what is live; the tab Flow run of a task, its conversation with the run.
workflow_automation_wait and workflow_automation_s3 continue when their run calls back, up to 40 s after its start.
workflow_automation_wait_for_file continues when it finds its file, up to 60 s after its start.
workflow_automation_next_dag_start has its run start workflow_automation_next_dag after 15 s.
workflow_automation_notifier fails, and its callback starts a run.
workflow_automation_claim never gets a response: its run claims the start, and the task returns it.
Ctrl-C stops everything.""")


def main() -> None:
    """Run until interrupted."""
    ui_port, service_port = chosen_port("UI_PORT", 8081), chosen_port("SERVICE_PORT", 8090)
    if ui_port == service_port:
        sys.exit("UI_PORT and SERVICE_PORT are the same.")
    with local_airflow("ui", ui_port, service_port) as (airflow, service, s3):
        flows = LocalFlows(service, s3, airflow.url)
        script_flows(service, DELAY)
        announce(airflow, service)
        while True:
            airflow.check()
            flows.play()
            time.sleep(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
    except JournalError:
        sys.exit("make ui runs already, on other ports.")
    except (RuntimeError, TimeoutError) as error:
        sys.exit(str(error))
