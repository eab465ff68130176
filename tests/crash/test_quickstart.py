"""
docs/quickstart.md from the first command to the last, in a folder of its own.

With Airflow as the page starts it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.version import Version

from airflow_launcher.airflow import temporary_home
from airflow_launcher.api import AirflowApi
from airflow_launcher.processes import Program, free_port, inhabitants, wait_for
from code_blocks import read_code_blocks
from entry_keys import ADOPTED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
_, SERVICE, AIRFLOW, TRIGGER, LOSE, CLAIM = (block.text for block in read_code_blocks(PAGE, "sh"))
(DAG,) = (block.text for block in read_code_blocks(PAGE, "python"))
UPLOAD, WAIT = "quickstart_upload", "quickstart_wait"

RELEASE = Version(version("apache-airflow")).release[:2]


class Reader:
    """
    Somebody who follows the page, with other ports, because those of the page may be taken.

    :param home: a folder of their own
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ports = {port: str(free_port()) for port in ("8070", "8080")}
        airflow = self._ports["8080"]
        self._env = {
            **os.environ,
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
            ),
            "NO_PROXY": "127.0.0.1",
            "AIRFLOW__API__PORT": airflow,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{airflow}/execution/",
            # A loaded machine takes longer.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MIN": "30",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        }
        self.service, self.airflow = (f"http://127.0.0.1:{port}" for port in self._ports.values())

    def _adapted(self, text: str) -> str:
        for port, other in self._ports.items():
            text = text.replace(f":{port}", f":{other}")
        return text

    def program(self, name: str, text: str) -> Program:
        """Return what a terminal of the page runs, to be started."""
        text = self._adapted(text).strip()
        before, _, last = text.rpartition("\n")
        return Program(name, ["sh", "-c", f"{before}\nexec {last}"], self._home, self._env)

    def run(self, text: str) -> None:
        """Run commands of the page in a third terminal, with the variables of the second."""
        variables = "\n".join(line for line in AIRFLOW.splitlines() if line.startswith("export "))
        command = ["sh", "-e", "-c", self._adapted(f"{variables}\n{text}")]
        subprocess.run(command, cwd=self._home / "cwd", env=self._env, check=True)

    def received(self, what: str) -> list[dict[str, Any]]:
        """Return the *runs* or *uploads* that the service received."""
        found = httpx.get(f"{self.service}/_control/journal", trust_env=False).json()[what]
        return [*found]


@pytest.fixture
def reader() -> Iterator[Reader]:
    """The reader after step 4: the service and Airflow run."""
    with temporary_home("quickstart") as home:
        reader = Reader(home)
        path = home / "cwd" / DAG.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(parents=True)
        path.write_text(DAG)
        with contextlib.ExitStack() as stack:
            port = reader.service.rpartition(":")[2]
            service = reader.program("service", f"{SERVICE.strip()} --port {port}")
            service.start()
            stack.callback(service.stop)
            airflow = reader.program("standalone", AIRFLOW)
            airflow.start()
            stack.callback(airflow.stop, signal.SIGINT)
            yield reader
        assert not inhabitants(home)


def test_the_page(reader: Reader) -> None:
    api = AirflowApi(reader.airflow)

    def logged_in() -> bool:
        try:
            api.log_in()
            return {UPLOAD, WAIT} <= {dag["dag_id"] for dag in api.ask("GET", "/dags")["dags"]}
        except (httpx.HTTPError, RuntimeError):
            return False

    wait_for("Airflow and its DAGs", logged_in)
    # The execution API is built when it is first asked.
    httpx.get(f"{reader.airflow}/execution/health", trust_env=False, timeout=60)

    reader.run(TRIGGER)
    assert [finished(api, dag_id) for dag_id in (UPLOAD, WAIT)] == [["success"], ["success"]]
    assert sorted(run["run_id"] for run in reader.received("runs")) == ["1001", "1002"]
    (upload,) = reader.received("uploads")
    assert [file["name"] for file in upload["files"]] == ["quickstart.py"]
    (line,) = re.findall(r"`(The flow counted .+?)`", PAGE.read_text())
    assert line in api.log(WAIT, api.dag_runs(WAIT)[0]["dag_run_id"], "announce", 1)

    reader.run(LOSE)
    assert sorted(finished(api, UPLOAD, 2)) == ["failed", "success"]
    (lost,) = (run["dag_run_id"] for run in api.dag_runs(UPLOAD) if run["state"] == "failed")
    assert api.task(UPLOAD, lost, "trigger")["try_number"] == 1
    assert "[start-unknown]" in api.log(UPLOAD, lost, "trigger", 1)
    (run_id,) = {run["run_id"] for run in reader.received("runs")} - {"1001", "1002"}
    (named,) = re.findall(r"Airflow does not know: `(\d+)`", PAGE.read_text())
    assert run_id == named
    path = f"/dags/{UPLOAD}/dagRuns/{lost}/taskInstances/trigger/state-store/{ADOPTED}"
    api.ask("PUT", path, {"value": run_id})
    keep = {"keep_task_state": True} if RELEASE >= (3, 4) else {}
    api.clear(UPLOAD, lost, "trigger", include_downstream=True, **keep)
    wait_for("the success of the cleared task", lambda: finished(api, UPLOAD, 2) == ["success"] * 2)
    assert len(reader.received("runs")) == 3
    assert [upload["run_id"] for upload in reader.received("uploads")] == ["1001", run_id]

    reader.run(CLAIM)
    assert finished(api, WAIT, 2) == ["success"] * 2
    (named,) = re.findall(r"the task knows its run, `(\d+)`", PAGE.read_text())
    assert [run["run_id"] for run in reader.received("runs")][3:] == [named]


def finished(api: AirflowApi, dag_id: str, count: int = 1) -> list[str]:
    """Return the states of so many DAG runs, once all have ended."""

    def look() -> list[str] | None:
        try:
            states = [run["state"] for run in api.dag_runs(dag_id)]
        except (httpx.HTTPError, RuntimeError):
            return None
        return states if len(states) == count and {*states} <= {"success", "failed"} else None

    return wait_for(f"the end of {dag_id}", look)
