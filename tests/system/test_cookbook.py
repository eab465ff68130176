"""
The requests of docs/cookbook.md do what the page says.

Its DAGs are run by tests/integration/test_example_dags.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pytest

import workflow_automation_provider
from airflow_launcher.processes import wait_for
from code_blocks import read_code_blocks
from stack import JWT_SECRET

if TYPE_CHECKING:
    from services import Service
    from stack import Stack

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
LOG_IN, NEXT_DAG, GIVE_RUN = (
    block.text for block in read_code_blocks(PAGE, "sh") if block.text.startswith("curl ")
)


class Shell:
    """Runs the requests of the page, with the variables in them."""

    def __init__(self, airflow: str) -> None:
        self._airflow = airflow

    def __call__(self, text: str, **variables: str) -> list[tuple[int, Any]]:
        """Return the status and the JSON of each response."""
        environment = {**os.environ, "NO_PROXY": "127.0.0.1", "AIRFLOW": self._airflow, **variables}
        text = text.replace("curl ", "curl -sS -w '\\n%{http_code}\\n' ")
        done = subprocess.run(
            ["sh", "-c", text], env=environment, capture_output=True, text=True, check=True
        )
        lines = done.stdout.splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=True)
        return [(int(status), json.loads(body) if body else None) for body, status in pairs]

    def token(self, user: str) -> str:
        ((status, body),) = self(LOG_IN.replace('"flow"', f'"{user}"'), PASSWORD=user)
        assert status == 201
        return str(body["access_token"])


@pytest.fixture(scope="module")
def shell(stack: Stack) -> Shell:
    return Shell(stack.url)


@pytest.fixture(scope="module")
def flow(shell: Shell) -> str:
    """The token of a user for the flow alone."""
    return shell.token("flow")


def test_a_failed_task_is_given_its_run(
    stack: Stack, service: Service, shell: Shell, flow: str
) -> None:
    at = dag_id, run_id = "workflow_automation_trigger_upload", "in-doubt"
    dag = {"DAG_ID": dag_id, "DAG_RUN_ID": run_id}
    before = len(service.journal.runs())
    service.control.add_fault("drop_after")
    stack.api.unpause(dag_id)
    stack.api.trigger(*at)
    assert stack.api.finished(*at) == "failed"
    (run,) = service.journal.runs()[before:]

    request = GIVE_RUN.replace("1001", str(run.run_id))
    with pytest.raises(subprocess.CalledProcessError):  # and clears nothing
        shell(request, TOKEN="of nobody", **dag)
    responses = shell(request, TOKEN=flow, **dag)
    assert [status for status, _ in responses] == [204, 200], responses

    wait_for("the success", lambda: stack.api.dag_run(*at)["state"] == "success")
    assert len(service.journal.runs()) == before + 1
    assert service.journal.uploads()[-1].run_id == str(run.run_id)
    link = f"https://service.example/runs/{run.run_id}"
    announced = stack.api.xcom(*at, "announce")
    assert announced == f"Run {run.run_id} is at {link}, with 1 file(s)"


def test_the_next_dag_runs_once(stack: Stack, shell: Shell, flow: str) -> None:
    dag_id = "workflow_automation_next_dag"
    stack.api.unpause(dag_id)
    seen = set()

    def send(text: str = NEXT_DAG, token: str = flow) -> int:
        ((status, _),) = shell(text, TOKEN=token, DAG_RUN_ID="report-1")
        seen.add(str(status))
        return status

    assert [send(), send()] == [200, 409]
    assert (
        send(NEXT_DAG.replace('"orders.csv"', '"../orders.csv"').replace("$DAG_RUN_ID", "report-2"))
        == 400
    )
    claims = jwt.decode(flow, options={"verify_signature": False})
    (hours,) = re.findall(r"by default for (\d+) hours", PAGE.read_text())
    assert claims["exp"] - claims["iat"] == int(hours) * 60 * 60
    expired = {**claims, "exp": int(time.time()) - 60, "iat": claims["iat"] - 24 * 60 * 60}
    assert send(token=jwt.encode(expired, JWT_SECRET, algorithm="HS512")) == 401
    assert send(token="of nobody") == 403
    assert send(NEXT_DAG.replace(dag_id, "no_such_dag")) == 404
    assert send(token=shell.token("viewer")) == 403
    (responses,) = re.findall(r"^It ends on 200.+?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    # On all others, the flow fails.
    assert seen - {"403", "404"} == set(re.findall(r"\b\d{3}\b", responses))
    assert stack.api.finished(dag_id, "report-1") == "success"
    assert stack.api.xcom(dag_id, "report-1", "announce") == "1250 rows are in orders.csv"
    assert [run["dag_run_id"] for run in stack.api.dag_runs(dag_id)] == ["report-1"]


def test_what_the_role_may_do(shell: Shell, flow: str) -> None:
    # The user has this role.
    assert re.findall(r"[Tt]he role `(\w+)`", PAGE.read_text()) == ["user"]
    connections = 'curl "$AIRFLOW/api/v2/connections" -H "Authorization: Bearer $TOKEN"'
    pause = (
        'curl -X PATCH "$AIRFLOW/api/v2/dags/workflow_automation_next_dag" -H "Authorization: Bearer $TOKEN" '
        "-H 'Content-Type: application/json' -d '{\"is_paused\": true}'"
    )
    assert shell(connections, TOKEN=flow)[0][0] == 403
    assert shell(pause, TOKEN=flow)[0][0] == 200


def test_without_the_pool_nothing_runs(stack: Stack) -> None:
    dag_id = "workflow_automation_nightly"
    stack.api.unpause(dag_id)
    stack.api.trigger(dag_id, "no-pool")
    said = "Tasks using non-existent pool 'workflow_automation' will not be scheduled"
    outputs = [*(stack.home / "outputs").glob("scheduler*.out")]
    wait_for(
        "the warning", lambda: any(said in path.read_text(errors="replace") for path in outputs)
    )
    tasks = stack.api.ask("GET", f"/dags/{dag_id}/dagRuns/no-pool/taskInstances")["task_instances"]
    assert {task["state"] for task in tasks} <= {"scheduled", None}
    stack.api.ask("PATCH", f"/dags/{dag_id}", {"is_paused": True})


def test_the_examples_are_imported_with_the_wheel(stack: Stack) -> None:
    """The tests of its sources run them all."""
    assert "site-packages" in (workflow_automation_provider.__file__ or "")
    assert not stack.api.ask("GET", "/importErrors")["import_errors"]
