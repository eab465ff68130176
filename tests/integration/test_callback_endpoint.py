"""The endpoint in Airflow's own API server, where its plugin mounts it."""

from __future__ import annotations

import os
from uuid import uuid4

import httpx

from airflow_launcher.airflow import API_SERVER, Airflow
from airflow_launcher.processes import free_port, wait_for
from waiting_tasks import WaitingTask, make_dag
from workflow_automation_provider.execution.callback import PATH, new_token

SUCCESS = {"status": "success", "result": {"rows": 3}}


class Server(Airflow):
    """An API server alone: nobody logs in to it."""

    def start(self):
        self.home.mkdir(parents=True)
        program = self.program(API_SERVER.name, *API_SERVER.command)
        program.start()
        self.programs[API_SERVER.name] = program
        wait_for("the API server", self.answers)

    def answers(self):
        self.check()
        return self.api.answers(f"{self.url}/api/v2/version")


def test_in_the_api_server(airflow_home, tmp_path):
    """With several workers, and below a path."""
    tasks = [WaitingTask(dag) for dag in [make_dag(airflow_home)] for _ in range(3)]
    tokens = [task.token for task in tasks]
    port = free_port()
    settings = {
        "API__WORKERS": "2",
        "DATABASE__SQL_ALCHEMY_CONN": os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"],
    }
    url = f"http://127.0.0.1:{port}/some/prefix"
    with Server(tmp_path / "server", tmp_path, settings=settings, port=port, url=url) as server:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
            found = [http.post(f"{PATH}?token={token}", json=SUCCESS) for token in tokens]
            unknown = http.post(f"{PATH}?token={new_token(uuid4())}", json=SUCCESS)
            put = http.put(f"{PATH}?token={tokens[0]}")
        output = server.programs[API_SERVER.name].output.read_text()
    assert [response.status_code for response in found] == [200] * len(tokens)
    assert unknown.status_code == 404
    assert set(unknown.json()) == {"detail"}
    assert put.status_code == 405
    assert all(task.spoken.end for task in tasks)
    assert PATH in output
    assert [token for token in tokens if token in output] == []
