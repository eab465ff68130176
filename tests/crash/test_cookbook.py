"""The commands and requests of docs/cookbook.md do what the page says; its DAGs are run by test_example_dags.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import jwt
import pytest
from packaging.version import Version

from airflow_launcher.airflow import Airflow, temporary_home
from airflow_launcher.processes import inhabitants, wait_for
from code_blocks import read_code_blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cookbook.md"
AIRFLOW = Version(version("apache-airflow")).release[:2]
SHELL = [block.text for block in read_code_blocks(PAGE, "sh")]
COMMANDS = [text for text in SHELL if text.startswith("airflow ")]
JWT_SECRET = "a secret of the test, long enough for HS512, which wants 64 bytes"
REQUESTS = [text for text in SHELL if text.startswith("curl ")]


def test_each_command_is_tested():
    assert (len(COMMANDS), len(REQUESTS)) == (2, 5)
    assert len(COMMANDS) + len(REQUESTS) == len(SHELL)


def run_airflow(*arguments):
    from airflow.cli import cli_parser

    parsed = cli_parser.get_parser().parse_args(arguments)
    parsed.func(parsed)


def test_the_pool(airflow_home):
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    run_airflow(*shlex.split(COMMANDS[0])[1:])
    try:
        with create_session() as session:
            pool = session.query(Pool).filter_by(pool="workflow_automation").one()
            assert (pool.slots, pool.description) == (2, "Requests to the service at a time")
    finally:
        run_airflow("pools", "delete", "workflow_automation")


def test_a_connection_is_replaced(airflow_home, tmp_path, monkeypatch):
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    (content,) = read_code_blocks(PAGE, "json")
    monkeypatch.chdir(tmp_path)
    Path("connections.json").write_text(content.text)
    old = [
        "--conn-type",
        "workflow_automation",
        "--conn-host",
        "https://old.example",
        "--conn-password",
        "OLD",
    ]
    run_airflow("connections", "add", "workflow_automation_default", *old)
    try:
        run_airflow(*shlex.split(COMMANDS[1])[1:])
        with create_session() as session:
            found = session.query(Connection).filter_by(conn_id="workflow_automation_default").one()
            assert (found.host, found.password) == ("https://service.example/api", "NEW-KEY")
            assert found.extra_dejson == {"flow_id": "FLOW", "key_expires_on": "2027-12-31"}
    finally:
        run_airflow("connections", "delete", "workflow_automation_default")


# Requests to Airflow --------------------------------------------------------------------------------------


class Shell:
    """Runs the requests of the page, with the variables in them."""

    def __init__(self, airflow):
        self.airflow = airflow

    def __call__(self, text, **variables):
        """Return the status and the JSON of each response."""
        environment = {**os.environ, "NO_PROXY": "127.0.0.1", "AIRFLOW": self.airflow.url, **variables}
        text = text.replace("curl ", "curl -sS -w '\\n%{http_code}\\n' ")
        done = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=True)
        return [(int(status), json.loads(body) if body else None) for body, status in pairs]

    def token(self, user):
        ((status, body),) = self(REQUESTS[0].replace('"flow"', f'"{user}"'), PASSWORD=user)
        assert status == 201
        return body["access_token"]


@pytest.fixture
def airflow(workflow_automation_service):
    connection = workflow_automation_service.airflow_connection()
    with temporary_home("cookbook") as home:
        with Airflow(
            home,
            ROOT / "example_dags",
            connections={"workflow_automation_default": connection},
            settings={"API_AUTH__JWT_SECRET": JWT_SECRET},
            users={"flow": "user", "operator": "op", "viewer": "viewer"},
        ) as airflow:
            yield airflow
        assert not inhabitants(home)


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_requests_of_the_page(airflow, workflow_automation_service):
    """All of them in one Airflow, because it takes half a minute to start."""
    shell = Shell(airflow)
    flow, operator = shell.token("flow"), shell.token("operator")
    a_failed_task_is_given_its_run(airflow, shell, flow, workflow_automation_service)
    the_next_dag_runs_once(airflow, shell, flow)
    an_event_needs_more_rights_and_is_not_idempotent(airflow, shell, flow, operator)
    what_the_roles_may_do(airflow, shell, flow, operator)
    without_the_pool_nothing_runs(airflow)


def a_failed_task_is_given_its_run(airflow, shell, token, service):
    dag_id, dag_run_id = "workflow_automation_trigger_upload", "in-doubt"
    service.faults.add("drop_after")
    airflow.api.unpause(dag_id)
    airflow.api.trigger(dag_id, dag_run_id)
    assert airflow.api.finished(dag_id, dag_run_id) == "failed"
    assert [run.run_id for run in service.runs] == ["1001"]

    request = REQUESTS[4]
    if AIRFLOW >= (3, 4):
        request = request.replace('"only_failed": false', '"only_failed": false, "keep_task_state": true')
    with pytest.raises(subprocess.CalledProcessError):  # and clears nothing
        shell(request, TOKEN="of nobody", DAG_ID=dag_id, DAG_RUN_ID=dag_run_id)
    responses = shell(request, TOKEN=token, DAG_ID=dag_id, DAG_RUN_ID=dag_run_id)
    assert [status for status, _ in responses] == [204, 200], responses

    def succeeded():
        return airflow.api.dag_run(dag_id, dag_run_id)["state"] == "success"

    wait_for("the DAG run's success", succeeded)
    assert [run.run_id for run in service.runs] == ["1001"]
    assert [upload.run_id for upload in service.uploads] == ["1001"]
    announced = airflow.api.xcom(dag_id, dag_run_id, "announce")
    assert announced == "Run 1001 is at https://service.example/runs/1001, with 1 file(s)"


def the_next_dag_runs_once(airflow, shell, token):
    dag_id = "workflow_automation_next_dag"
    airflow.api.unpause(dag_id)
    request = REQUESTS[1]

    seen = set()

    def send(text=request, token=token):
        ((status, body),) = shell(text, TOKEN=token, DAG_RUN_ID="report-1")
        seen.add(str(status))
        return status, body

    assert send()[0] == 200
    assert send()[0] == 409
    assert (
        send(request.replace('"orders.csv"', '"../orders.csv"').replace("$DAG_RUN_ID", "report-2"))[0] == 400
    )
    claims = jwt.decode(token, options={"verify_signature": False})
    (hours,) = re.findall(r"by default for (\d+) hours", PAGE.read_text())
    assert claims["exp"] - claims["iat"] == int(hours) * 60 * 60
    expired = {**claims, "exp": int(time.time()) - 60, "iat": claims["iat"] - 24 * 60 * 60}
    assert send(token=jwt.encode(expired, JWT_SECRET, algorithm="HS512"))[0] == 401
    assert send(token="of nobody")[0] == 403
    assert send(request.replace(dag_id, "no_such_dag"))[0] == 404
    assert send(token=shell.token("viewer"))[0] == 403
    (responses,) = re.findall(r"^It ends on 200.+?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    # On all others, the flow fails.
    assert seen - {"403", "404"} == set(re.findall(r"\b\d{3}\b", responses))
    assert airflow.api.finished(dag_id, "report-1") == "success"
    assert airflow.api.xcom(dag_id, "report-1", "announce") == "1250 rows are in orders.csv"
    assert [run["dag_run_id"] for run in airflow.api.dag_runs(dag_id)] == ["report-1"]


def an_event_needs_more_rights_and_is_not_idempotent(airflow, shell, flow, operator):
    dag_id = "workflow_automation_assets_continue"
    airflow.api.unpause(dag_id)

    def assets():
        ((status, body),) = shell(REQUESTS[2], TOKEN=flow)
        assert status == 200
        return body["assets"]

    (asset,) = wait_for("the asset", assets)
    variables = {"ASSET_ID": str(asset["id"])}
    assert [status for status, _ in shell(REQUESTS[3], TOKEN=flow, **variables)] == [403]

    def lines():
        runs = [run for run in airflow.api.dag_runs(dag_id) if run["state"] == "success"]
        return [line for run in runs for line in airflow.api.xcom(dag_id, run["dag_run_id"], "announce")]

    sent = set()
    for count in (1, 2):
        ((status, body),) = shell(REQUESTS[3], TOKEN=operator, **variables)
        assert status == 200
        assert body["extra"]["from_rest_api"] is True
        sent.add(body["id"])
        # One after the other: Airflow may create one DAG run for both.
        wait_for(f"{count} of 2 events", lambda: len(lines()) == len(sent))
    assert len(sent) == 2
    assert lines() == ["Run 1001 of FLOW: https://service.example/runs/1001"] * 2


def what_the_roles_may_do(airflow, shell, flow, operator):
    # "flow" and "operator" have these roles.
    assert re.findall(r"[Tt]he role `(\w+)`", PAGE.read_text()) == ["user", "op"]
    connections = 'curl "$AIRFLOW/api/v2/connections" -H "Authorization: Bearer $TOKEN"'
    pause = (
        'curl -X PATCH "$AIRFLOW/api/v2/dags/workflow_automation_next_dag" -H "Authorization: Bearer $TOKEN" '
        "-H 'Content-Type: application/json' -d '{\"is_paused\": true}'"
    )
    assert [shell(connections, TOKEN=token)[0][0] for token in (flow, operator)] == [403, 200]
    assert shell(pause, TOKEN=flow)[0][0] == 200


def without_the_pool_nothing_runs(airflow):
    dag_id = "workflow_automation_nightly"
    airflow.api.unpause(dag_id)
    airflow.api.trigger(dag_id, "no-pool")
    said = "Tasks using non-existent pool 'workflow_automation' will not be scheduled"
    output = airflow.home / "outputs" / "scheduler.out"
    wait_for("the scheduler's warning", lambda: said in output.read_text(errors="replace"))
    path = f"/dags/{dag_id}/dagRuns/no-pool/taskInstances"
    states = {task["state"] for task in airflow.api.ask("GET", path)["task_instances"]}
    assert states <= {"scheduled", None}, states
