"""What `make ui` shows to whoever clicks first."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

from airflow_launcher.airflow import PASSWORD, USER
from airflow_launcher.api import AirflowApi
from airflow_launcher.processes import Program, free_port, inhabitants, wait_for
from workflow_automation_provider.testing import Journal

PROJECT = Path(__file__).parents[2]
HOME = PROJECT / ".airflow" / "test"
# In another folder than that of whoever runs the tests, and make ui beside them.
START = f"import local_airflow, ui; from pathlib import Path; local_airflow.HOMES = Path({str(HOME)!r}); ui.main()"
CONNECTIONS = {
    "workflow_automation_default",
    "workflow_automation_orders",
    "workflow_automation_invoices",
    "workflow_automation_mailbox",
}


def press_test(api: AirflowApi, connection: dict[str, object]) -> tuple[bool, str]:
    """Send what the Test button of a connection's row sends."""
    names = ("conn_type", "connection_id", "description", "host", "login", "password", "schema")
    texts = {name: connection[name] or "" for name in names}
    body = {**texts, "extra": connection["extra"] or "{}", "port": connection["port"] or 0}
    response = api.ask("POST", "/connections/test", body)
    return response["status"], response["message"]


def first_named(printed: str) -> str:
    """Return the DAG to begin with."""
    found = re.search(r"Begin with (\w+)", printed)
    assert found, printed
    return found[1]


def test_connections_work_and_nothing_runs_before_a_click() -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    airflow, service = free_port(), free_port()
    ports = {"UI_PORT": str(airflow), "SERVICE_PORT": str(service)}
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "scripts"), **ports}
    program = Program("make-ui", [sys.executable, "-u", "-c", START], HOME, env)
    with contextlib.closing(AirflowApi(f"http://127.0.0.1:{airflow}")) as api:
        try:
            program.start()
            wait_for("what make ui prints", lambda: "Ctrl-C stops" in program.tail(40))
            api.log_in(USER, PASSWORD)
            # The scheduler has a look at each DAG that is not paused.
            wait_for("the scheduler", lambda: api.healthy(["scheduler"]))
            connections = api.ask("GET", "/connections")["connections"]
            tested = {found["connection_id"]: press_test(api, found) for found in connections}
            runs = api.ask("GET", "/dags/~/dagRuns")["dag_runs"]
            unpaused = api.ask("GET", "/dags?paused=false")["dags"]
            named = api.ask("GET", f"/dags/{first_named(program.tail(40))}")
        finally:
            program.stop()
            leftovers = inhabitants(HOME / "ui")
    assert tested.keys() >= {*CONNECTIONS, "aws_default"}
    assert [name for name, (works, _) in tested.items() if not works] == [], tested
    assert (runs, Journal(HOME / "ui" / "service.jsonl").runs()) == ([], [])
    # As those of a file that a person adds. Trigger unpauses the first one, and starts one run.
    assert unpaused == []
    assert named["next_dagrun_run_after"] is None
    assert not leftovers
    shutil.rmtree(HOME)
