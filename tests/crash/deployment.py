"""A real Airflow of the tests' own: api-server, scheduler with LocalExecutor and dag-processor, on SQLite."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from airflow_api import AirflowApi
from airflow_settings import airflow_environment
from gate import Gate
from processes import Program, end, free_port, inhabitants, wait_for

# When this scheduler fails a task that sends no heartbeats, it closes its database session halfway, and ends.
CANNOT_MISS_HEARTBEATS = version("apache-airflow") == "3.4.0b2"

_COMPONENTS = (["api-server"], ["scheduler", "--skip-serve-logs"], ["dag-processor"])


class Deployment:
    """
    Airflow's processes, with a gate before the api-server.

    :param dags: the folder of the DAG files.
    :param connections: connection ids, and the connections as JSON values.
    """

    def __init__(self, dags: Path, connections: Mapping[str, Mapping[str, Any]]) -> None:
        self.dags = dags
        self.home = Path(tempfile.mkdtemp(prefix="workflow-automation-crash-"))
        port = free_port()
        self.gate = Gate(f"http://127.0.0.1:{port}")
        self.api = AirflowApi(self.gate.url)
        self._database = self.home / "airflow.db"
        self.env = {
            **airflow_environment(
                self.home,
                port=port,
                CORE__DAGS_FOLDER=str(dags),
                CORE__EXECUTOR="LocalExecutor",
                # A worker that was killed keeps its slot for good; the pool bounds what runs at once.
                CORE__PARALLELISM="200",
                CORE__DEFAULT_POOL_TASK_SLOT_COUNT="40",
                CORE__MAX_ACTIVE_TASKS_PER_DAG="200",
                CORE__MAX_ACTIVE_RUNS_PER_DAG="200",
                CORE__DAGS_ARE_PAUSED_AT_CREATION="False",
                CORE__EXECUTION_API_SERVER_URL=f"{self.gate.url}/execution/",
                CORE__FERNET_KEY="",
                CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="True",
                DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{self._database}",
                DATABASE__SQL_ALCHEMY_CONNECT_ARGS="sqlite_settings.CONNECT_ARGS",
                # Longer than Airflow gives a cleared task to end (5 s), however loaded the machine.
                SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT="600" if CANNOT_MISS_HEARTBEATS else "15",
                WORKERS__EXECUTION_API_TIMEOUT="60",
            ),
            "PYTHONPATH": str(Path(__file__).parent),
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
        }
        self._components = [
            Program(command[0], [sys.executable, "-m", "airflow", *command], self.home, self.env)
            for command in _COMPONENTS
        ]

    def start(self) -> None:
        """Start everything; when this returns, DAG runs can be triggered."""
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        subprocess.run(
            migrate, cwd=self.home, env=self.env, check=True, timeout=300, stdout=subprocess.DEVNULL
        )
        with contextlib.closing(sqlite3.connect(self._database)) as database:
            # Kept in the file: readers no longer block the writer.
            database.execute("PRAGMA journal_mode=WAL")
        self.gate.start()
        for component in self._components:
            component.start()
        wait_for("Airflow", self._answers, 300)
        self.api.log_in()

    def stop(self) -> None:
        """Stop everything, orphans too; nothing in the home is worth a slow farewell."""
        # Airflow's children rewrite argv and environ, and orphans have another parent: but all work in its home.
        while leftovers := inhabitants(self.home):
            end(leftovers)
        self.gate.stop()
        self.api.close()
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.home, ignore_errors=True)

    def _answers(self) -> bool:
        for component in self._components:
            if not component.runs:
                raise RuntimeError(f"Airflow ended while it was started:\n{component.tail()}")
        # The execution API is built at its first request, and takes longer than a task would wait for it.
        return self.api.answers("/api/v2/version") and self.api.answers("/execution/health")

    def records(self, dag_id: str, run_id: str) -> dict[int, dict[str, Any]]:
        """Return the start records of a DAG run's task, by map index."""
        with contextlib.closing(sqlite3.connect(self._database)) as database:
            columns = {name for _, name, *_ in database.execute("PRAGMA table_info(task_state_store)")}
            # Airflow 3.4 renamed it.
            index = "map_index" if "map_index" in columns else "region_index"
            query = f"SELECT {index}, value FROM task_state_store WHERE dag_id = ? AND run_id = ? AND task_id = 'trigger'"
            return {index: json.loads(value) for index, value in database.execute(query, (dag_id, run_id))}

    def reschedules(self, dag_id: str, run_id: str) -> dict[int, list[float]]:
        """Return the waits, in seconds, for which each try of a DAG run's task was rescheduled."""
        query = """
            SELECT try_number, (julianday(reschedule_date) - julianday(task_reschedule.end_date)) * 86400
            FROM task_reschedule JOIN task_instance ON task_instance.id = ti_id
            WHERE dag_id = ? AND run_id = ? AND task_id = 'trigger' ORDER BY task_reschedule.id
        """
        waits: dict[int, list[float]] = {}
        with contextlib.closing(sqlite3.connect(self._database)) as database:
            for try_number, seconds in database.execute(query, (dag_id, run_id)):
                waits.setdefault(try_number, []).append(seconds)
        return waits

    def log(self, dag_id: str, run_id: str, *, map_index: int = -1) -> str:
        """Return the logs of all the tries of a DAG run's task."""
        return "".join(self.logs(dag_id, run_id, map_index=map_index))

    def logs(self, dag_id: str, run_id: str, *, map_index: int = -1) -> list[str]:
        """Return the log of each try of a DAG run's task."""
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / "task_id=trigger"
        if map_index >= 0:
            folder /= f"map_index={map_index}"
        return [path.read_text(errors="replace") for path in sorted(folder.glob("attempt=*.log"))]
