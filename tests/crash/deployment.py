"""
The Airflow of the crash tests.

On SQLite, with a gate before the api-server, and what they read in its home.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow import __version__ as airflow_version

from airflow_launcher.airflow import (
    API_SERVER,
    DAG_PROCESSOR,
    SCHEDULER,
    TRIGGERER,
    Airflow,
)
from airflow_launcher.processes import free_port
from gate import Gate
from real_airflow import OLD_HEARTBEAT, QUICK_RECOVERY

if TYPE_CHECKING:
    from gate import Try
    from s3_bucket import Bucket
    from store_proxy import StoreProxy

Blow = Literal["task", "supervisor", "both"]

ENDS_AT_MISSED_HEARTBEATS = airflow_version == "3.4.0b2"
"""
Whether a missed heartbeat ends the scheduler.

It cannot insert the next try. Its executor notices a killed supervisor.
"""


class Deployment(Airflow):
    """
    Airflow's processes, with a gate before the api-server, which has several workers.

    It is below a path.

    :param home: the folder for all that it writes
    :param connections: connection ids, and the connections as JSON values
    """

    bucket: Bucket
    """Where the runs of batches write their ends."""
    store: StoreProxy
    """Through which all requests to it go."""

    def __init__(self, home: Path, connections: Mapping[str, Mapping[str, Any]]) -> None:
        port = free_port()
        self.gate = Gate(f"http://127.0.0.1:{port}")
        self._one_triggerer = threading.Lock()
        super().__init__(
            home,
            Path(__file__).parent / "dags",
            connections=connections,
            port=port,
            url=f"{self.gate.url}/some/prefix",
            components=(API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER),
            settings={
                "API__WORKERS": "2",
                # How soon what another triggerer has left is taken over.
                "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
                "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
                **QUICK_RECOVERY,
                # A worker that was killed keeps its slot for good; the pool bounds what runs at
                # once.
                "CORE__PARALLELISM": "200",
                "CORE__DEFAULT_POOL_TASK_SLOT_COUNT": "40",
                "CORE__MAX_ACTIVE_TASKS_PER_DAG": "200",
                "CORE__MAX_ACTIVE_RUNS_PER_DAG": "200",
                "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
                # So slow may the task state store be before a task takes it that a request is
                # repeated.
                "WORKERS__EXECUTION_API_RETRY_WAIT_MIN": "30",
            },
        )

    def start(self) -> None:
        """Start everything; when this returns, DAG runs can be triggered."""
        self.gate.start()
        super().start()

    def stop(self) -> None:
        """Stop everything, orphans too."""
        super().stop()
        self.gate.stop()

    def kill(self, blow: Blow, found: Try) -> None:
        """Kill processes of a try; Airflow misses the heartbeats of its supervisor at once."""
        os.kill(found.pid if blow == "task" else found.supervisor, signal.SIGKILL)
        if blow == "both":
            with contextlib.suppress(ProcessLookupError):  # it may end as its supervisor does
                os.kill(found.pid, signal.SIGKILL)
        if blow != "task" and not ENDS_AT_MISSED_HEARTBEATS:
            self.miss_heartbeats(found.pid)

    @contextlib.contextmanager
    def without_triggerer(self) -> Iterator[None]:
        """Kill the triggerer, and what it has started; start another one in the end."""
        with self._one_triggerer:
            for process in self.programs[TRIGGERER.name].family():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

            yield
            program = self.program(TRIGGERER.name, *TRIGGERER.command)
            program.start()
            self.programs[TRIGGERER.name] = program

    def miss_heartbeats(self, pid: int) -> None:
        """
        Have Airflow miss the heartbeats of a task's process now.

        Those of a supervisor that was killed or frozen.
        """
        runs = "pid = ? AND state IN ('running', 'restarting')"
        self.update("task_instance", "last_heartbeat_at", runs, OLD_HEARTBEAT, pid)

    def put_off_check(self, run_id: str) -> bool:
        """
        Let the suspended task of a DAG run sleep for an hour if nobody wakes it.

        Tell whether it is suspended.
        """
        later = (datetime.now(UTC) + timedelta(hours=1)).replace(tzinfo=None).isoformat(" ")
        suspended = "run_id = ? AND state = 'awaiting_input' AND task_id = 'trigger'"
        return self.update("task_instance", "trigger_timeout", suspended, later, run_id) > 0

    def update(self, table: str, column: str, where: str, *values: object) -> int:
        """
        Change a column of Airflow's database, and return in how many rows.

        :param values: the value, and those that the condition has
        """
        statement = f"UPDATE {table} SET {column} = ? WHERE {where}"
        with (
            contextlib.closing(sqlite3.connect(self.home / "airflow.db", timeout=60)) as database,
            database,
        ):
            return database.execute(statement, values).rowcount

    def batches(self, dag_id: str, run_id: str) -> dict[int, list[dict[str, Any]]]:
        """
        Return the entries of a DAG run's batches, in the order in which they were written.

        By map index.
        """
        with contextlib.closing(sqlite3.connect(self.home / "airflow.db")) as database:
            columns = {
                name for _, name, *_ in database.execute("PRAGMA table_info(task_state_store)")
            }
            # Airflow 3.4 renamed it.
            index = "map_index" if "map_index" in columns else "region_index"
            # The keys end with numbers of the same length. A kill may leave the probe behind.
            query = (
                f"SELECT {index}, value FROM task_state_store WHERE dag_id = ? AND run_id = ? "
                "AND task_id = 'trigger' AND instr(key, '_probe') = 0 ORDER BY key"
            )
            found: dict[int, list[dict[str, Any]]] = {}
            for number, value in database.execute(query, (dag_id, run_id)):
                found.setdefault(number, []).append(json.loads(value))
        return found

    def log(self, dag_id: str, run_id: str, *, map_index: int = -1) -> str:
        """Return the logs of all the tries of a DAG run's task."""
        return "".join(self.logs(dag_id, run_id, map_index=map_index).values())

    def logs(self, dag_id: str, run_id: str, *, map_index: int = -1) -> dict[int, str]:
        """
        Return the logs of a DAG run's task, by the number of the try.

        One that was soon killed has none. Those of triggers are left out.
        """
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / "task_id=trigger"
        if map_index >= 0:
            folder /= f"map_index={map_index}"
        return {
            int(path.stem.removeprefix("attempt=")): path.read_text(errors="replace")
            for path in sorted(folder.glob("attempt=*.log"))
            if ".trigger." not in path.name
        }
