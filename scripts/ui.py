"""Run Airflow's UI with the example DAGs, the connection and a local service, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import time

from airflow_launcher.airflow import PASSWORD, USER, VERSION, Airflow
from airflow_launcher.components import DAG_PROCESSOR, SCHEDULER, TRIGGERER, Component
from airflow_launcher.ports import free_port, is_free
from local_airflow import CONN_ID, DAGS, HOMES, SETTINGS, SIGNALS, begin, prepare, script_callbacks, shown
from workflow_automation_provider.testing import DEMO_FLOW_ID, DEMO_KEY, JournalError, LocalService

STOP_TIMEOUT = 5


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
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{execution_port}/execution/",
            "CORE__PARALLELISM": "4",
            "CORE__TEST_CONNECTION": "Enabled",
        },
        port=port,
    )


def set_connection(airflow: Airflow, base_url: str) -> None:
    """Add the connection, or point the one of an earlier start at the service."""
    if airflow.api.answers(f"/api/v2/connections/{CONN_ID}"):
        moved = {"connection_id": CONN_ID, "conn_type": "workflow_automation", "host": base_url}
        airflow.api.ask("PATCH", f"/connections/{CONN_ID}?update_mask=host", moved)
    else:
        airflow.api.add_connection(
            CONN_ID,
            base_url,
            DEMO_KEY.value,
            description="The local service of make ui",
            flow_id=DEMO_FLOW_ID,
        )


def chosen_port(variable: str, default: int) -> int:
    """
    Return the port that an environment variable names.

    :raises SystemExit: if it is no port, or taken
    """
    text = os.environ.get(variable) or str(default)
    if not (text.isdecimal() and 0 < int(text) < 65536):
        sys.exit(f"{variable}={text} is not a port.")
    if not is_free(int(text)):
        sys.exit(f"Port {text} is taken. Choose another: make ui {variable}=…")
    return int(text)


def main() -> None:
    """Run until interrupted."""
    begin()
    if VERSION.startswith("2."):
        sys.exit("make ui needs Airflow 3.")
    ui_port, service_port = chosen_port("UI_PORT", 8080), chosen_port("SERVICE_PORT", 8090)
    if ui_port == service_port:
        sys.exit("UI_PORT and SERVICE_PORT are the same.")
    airflow = make_airflow(ui_port, free_port())
    prepare(airflow)
    with LocalService(port=service_port, journal=airflow.home / "service.jsonl") as service:
        script_callbacks(service, delay=15)
        # The run of workflow_automation_ask is started, but its task gets no response.
        service.faults.add("drop_after", inputs={"report": "invoices"}, times=None)
        try:
            print(f"Starting Airflow {VERSION} (about 30 s) …")
            airflow.start()
            set_connection(airflow, service.base_url)
            # Only now, because an example with a schedule runs at once.
            airflow.launch(SCHEDULER)
            print(f"""
Airflow   {airflow.url}   user {USER}, password {PASSWORD}
Service   {service.url}   shows the runs it started
Logs      {shown(airflow.home / "outputs")}, those of tasks in {shown(airflow.home / "logs")}

Under Dags, choose an example and press Trigger; the connection is under Admin → Connections.
workflow_automation_wait continues when its run calls back, up to 40 s after its start.
workflow_automation_ask never gets a response: it asks under Required Actions. The service shows the run.
Ctrl-C stops everything.""")
            while True:
                airflow.check()
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
