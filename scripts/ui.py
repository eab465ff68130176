"""Run Airflow's UI with the example DAGs, the connection and a local service, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from airflow_launcher.airflow import PASSWORD, USER, VERSION, Airflow
from airflow_launcher.components import DAG_PROCESSOR, SCHEDULER, TRIGGERER, Component
from airflow_launcher.connections import connection_to
from airflow_launcher.ports import free_port, is_free
from airflow_launcher.waiting import wait_for
from local_airflow import (
    CONN_ID,
    DAGS,
    HOMES,
    SETTINGS,
    SIGNALS,
    begin,
    lose_responses,
    prepare,
    script_callbacks,
    shown,
)
from local_flows import ROLE, LocalFlows
from local_flows import USER as FLOW_USER
from local_s3 import LocalS3
from workflow_automation_provider.testing import DEMO_KEY, JournalError, Key, LocalService

STOP_TIMEOUT = 5
# Seconds from the start of a run to its last step.
DELAY = 15
KEYS = {
    CONN_ID: DEMO_KEY,
    **{f"workflow_automation_{name}": Key(f"{name}-key", f"{name}-flow") for name in ("orders", "invoices")},
}
POOL = {"name": "workflow_automation", "slots": 2, "description": "Requests to the service at a time"}
OBJECTS = {"orders/monday.csv": b"order\n1001\n", "orders/tuesday.csv": b"order\n1002\n"}


def make_airflow(port: int, execution_port: int) -> Airflow:
    """
    Return the Airflow to start, but for its scheduler.

    :param port: where the UI listens
    :param execution_port: where the tasks report to. With SQLite, one process for both now and then blocks
        itself: the UI waits for the database while it keeps a task's transaction from ending.
    """
    return Airflow(
        HOMES / "ui",
        DAGS,
        components=[
            Component("ui", ["api-server", "--apps", "core"]),
            Component("execution-api", ["api-server", "--apps", "execution", "--port", str(execution_port)]),
            DAG_PROCESSOR,
            TRIGGERER,
        ],
        settings={
            **SETTINGS,
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{execution_port}/execution/",
            "CORE__PARALLELISM": "4",
            "CORE__TEST_CONNECTION": "Enabled",
        },
        port=port,
        users={FLOW_USER: ROLE},
    )


def set_connection(airflow: Airflow, conn_id: str, connection: dict[str, Any]) -> None:
    """Add a connection, or set the address of the one from an earlier start."""
    body = {
        "connection_id": conn_id,
        "description": "A local service of make ui",
        # The Test button of Airflow to 3.3.2 sends 0 for a port that is not set, and is refused: another address.
        "port": 0,
        **connection,
        "extra": json.dumps(connection["extra"]),
    }
    if airflow.api.answers(f"/api/v2/connections/{conn_id}"):
        mask = "update_mask=host&update_mask=port&update_mask=extra"
        airflow.api.ask("PATCH", f"/connections/{conn_id}?{mask}", body)
    else:
        airflow.api.ask("POST", "/connections", body)


def pause_scheduled(airflow: Airflow) -> None:
    """Pause the examples with a schedule, which would run before anybody asks for it, and no others."""
    names = {path.stem for path in DAGS.glob("*.py")}

    def parsed() -> list[dict[str, Any]] | None:
        dags: list[dict[str, Any]] = airflow.api.ask("GET", "/dags?limit=100")["dags"]
        return dags if names <= {Path(dag["fileloc"]).stem for dag in dags} else None

    for dag in wait_for("the examples", parsed):
        is_paused = {"is_paused": dag["next_dagrun_run_after"] is not None}
        airflow.api.ask("PATCH", f"/dags/{dag['dag_id']}", is_paused)


def set_up(airflow: Airflow, service: LocalService, s3: LocalS3) -> None:
    """Make what the examples need: connections, a pool, and objects in S3."""
    for conn_id, key in KEYS.items():
        set_connection(airflow, conn_id, connection_to(service.base_url, key))
    set_connection(airflow, "aws_default", s3.connection)
    if not airflow.api.answers(f"/api/v2/pools/{POOL['name']}"):
        airflow.api.ask("POST", "/pools", POOL)
    for name, content in OBJECTS.items():
        s3.put(name, content)


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
    begin()
    ui_port, service_port = chosen_port("UI_PORT", 8081), chosen_port("SERVICE_PORT", 8090)
    if ui_port == service_port:
        sys.exit("UI_PORT and SERVICE_PORT are the same.")
    airflow = make_airflow(ui_port, free_port())
    prepare(airflow)
    with (
        LocalService(KEYS.values(), port=service_port, journal=airflow.home / "service.jsonl") as service,
        LocalS3("reports") as s3,
    ):
        flows = LocalFlows(service, s3, airflow.url, DELAY)
        script_callbacks(service, DELAY)
        lose_responses(service)
        try:
            print(f"Starting Airflow {VERSION} (about 30 s) …")
            airflow.start()
            set_up(airflow, service, s3)
            pause_scheduled(airflow)
            airflow.launch(SCHEDULER)
            announce(airflow, service)
            while True:
                airflow.check()
                flows.play()
                time.sleep(1)
        finally:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            print("\nStopping Airflow …")
            airflow.stop(STOP_TIMEOUT)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
    except JournalError:
        sys.exit("make ui runs already, on other ports.")
    except (RuntimeError, TimeoutError) as error:
        sys.exit(str(error))
