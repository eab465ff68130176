"""
A task that waits for the end of its run: each answer arrives once, whatever is killed or marked.

``tests/system/test_waits.py`` has many at once, on Celery, and kills of all else.
"""

from __future__ import annotations

import re
from uuid import uuid4

import httpx

from airflow_launcher.airflow import API_SERVER, Airflow
from airflow_launcher.processes import wait_for
from case import Case, Played, play
from entry_keys import RUN
from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import is_token, new_token


@play("waits")
def test_called_while_it_parks(case: Case) -> None:
    flow = case.held_flow()
    hold = case.hold("before", "PATCH", "/state")
    case.begin()
    wait_for("the suspend", hold.reached.is_set)
    flow.end()
    case.answers()
    hold.released.set()
    case.end_well()


@play("waits")
def test_killed_while_it_continues(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    case.suspended()
    hold = case.hold("after", "GET", f"/{RUN}")
    flow.end()
    wait_for("the task continues", hold.reached.is_set)
    case.kill()
    hold.released.set()
    case.end_well()


@play("waits")
def test_marked_as_success(case: Case) -> None:
    """By a person who knows the end: nobody was asked for it, and the next task has the run."""
    flow = case.held_flow()
    case.begin()
    case.suspended()
    assert (
        case.api.ask("GET", f"/dags/{case.dag_id}/dagRuns/{case.run_id}/hitlDetails")[
            "total_entries"
        ]
        == 0
    )
    case.mark("success")
    flow.end()
    assert case.answers() == [200]
    case.end("success", runs=1)
    assert [case.api.xcom(case.dag_id, case.run_id, "announce")] == case.runs


def test_others_get_nothing_and_no_token_is_in_the_log(deployment: Airflow, played: Played) -> None:
    url = f"{deployment.url}{CALLBACK_PATH}?token={new_token(uuid4())}"
    responses = [
        httpx.request(method, url, json={"status": "success"}) for method in ("POST", "PUT")
    ]
    assert [response.status_code for response in responses] == [404, 405]
    assert {*responses[0].json()} == {"detail"}
    log = deployment.programs[API_SERVER.name].output.read_text()
    assert CALLBACK_PATH in log
    assert [token for token in re.findall(r"token=([\w-]+)", log) if is_token(token)] == []
