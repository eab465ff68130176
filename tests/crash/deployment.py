"""A real Airflow of the tests' own: api-server, scheduler with LocalExecutor and dag-processor, on SQLite."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
from gate import Gate, alive

Found = TypeVar("Found")

_COMPONENTS = (["api-server"], ["scheduler", "--skip-serve-logs"], ["dag-processor"])
FINISHED = {"success", "failed", "upstream_failed", "skipped", "removed"}


def wait_for(what: str, look: Callable[[], Found], seconds: float = 180) -> Found:
    """Look until something is found, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {seconds:g} s for {what}")
        time.sleep(0.1)
    return found


def _is_locked(reply: httpx.Response) -> bool:
    """Tell whether SQLite was busy with another process: Airflow then did nothing, and says so."""
    return reply.status_code == 503 and "Database is locked" in reply.text


class Deployment:
    """
    Airflow's processes and its REST API.

    :param dags: the folder of the DAG files.
    :param connections: connection ids, and the connections as JSON values.
    :param settings: more environment variables, such as of the DAG files.
    """

    def __init__(
        self,
        dags: Path,
        connections: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.dags = dags
        self.home = Path(tempfile.mkdtemp(prefix="workflow-automation-crash-"))
        self.port = _free_port()
        url = f"http://127.0.0.1:{self.port}"
        self.gate = Gate(url)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._api = httpx.Client(base_url=f"{self.gate.url}/api/v2", timeout=60, trust_env=False)
        self._database = self.home / "airflow.db"
        self.env = {
            **{n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "PYTHONDONTWRITE"))},
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            # A worker that was killed keeps its slot for good; the pool bounds what runs at once.
            "AIRFLOW__CORE__PARALLELISM": "200",
            "AIRFLOW__CORE__DEFAULT_POOL_TASK_SLOT_COUNT": "40",
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "200",
            "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "200",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.gate.url}/execution/",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self._database}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "sqlite_settings.CONNECT_ARGS",
            "PYTHONPATH": str(Path(__file__).parent),
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
            **(settings or {}),
        }

    # Its life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything; when this returns, DAG runs can be triggered."""
        self._airflow("db", "migrate").wait(300)
        with sqlite3.connect(self._database) as database:
            database.execute(
                "PRAGMA journal_mode=WAL"
            )  # kept in the file: readers no longer block the writer
        self.gate.start()
        self._processes = [self._airflow(*command) for command in _COMPONENTS]
        root = self.gate.url
        wait_for("the api-server", lambda: self._ok(f"{root}/api/v2/version"), 300)
        # The execution API is built at its first request, and takes longer than a task would wait for it.
        wait_for("the execution API", lambda: self._ok(f"{root}/execution/health"), 180)
        token = self._api.get(f"{root}/auth/token").json()["access_token"]
        self._api.headers["Authorization"] = f"Bearer {token}"

    def stop(self) -> None:
        """Stop everything, orphans too; nothing in the home is worth a slow farewell."""
        # Airflow's children rewrite argv and environ, and orphans have another parent: but all work in its home.
        for _ in range(100):
            for pid in (leftovers := self.inhabitants()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._processes:
                process.poll()
            if not leftovers:
                break
            time.sleep(0.1)
        self.gate.stop()
        self._api.close()
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.home, ignore_errors=True)

    def inhabitants(self) -> list[int]:
        """Return all the processes that work in this Airflow's home."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and alive(int(entry.name)):
                with contextlib.suppress(OSError):
                    if (entry / "cwd").readlink().is_relative_to(self.home):
                        found.append(int(entry.name))
        return found

    def _airflow(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{command[0]}.out").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "airflow", *command],
                cwd=self.home,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ok(self, url: str) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                output = "".join(path.read_text(errors="replace")[-2000:] for path in self.home.glob("*.out"))
                raise RuntimeError(f"Airflow ended while it was started:\n{output}")
        try:
            return self._api.get(url).is_success
        except httpx.HTTPError:
            return False

    # Its REST API ----------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the REST API, and return the reply."""
        reply = self._api.request(method, path, json=body)
        if not reply.is_success:
            raise RuntimeError(f"{method} {path}: {reply.status_code} {reply.text[:500]}")
        return reply.json() if reply.content else None

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> None:
        """Trigger a DAG run, as soon as the DAG is there."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}

        def triggered() -> bool:
            reply = self._api.post(f"/dags/{dag_id}/dagRuns", json=body)
            if reply.status_code == 404 or _is_locked(reply):
                return False
            assert reply.is_success, reply.text
            return True

        wait_for(f"DAG {dag_id}", triggered)

    def task(self, dag_id: str, run_id: str, task_id: str = "trigger", map_index: int = -1) -> dict[str, Any]:
        """Return a task instance."""
        mapped = f"/{map_index}" if map_index >= 0 else ""
        found: dict[str, Any] = self.ask(
            "GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}{mapped}"
        )
        return found

    def finished(self, dag_id: str, run_id: str, seconds: float = 300) -> dict[str, Any]:
        """Wait for a task to end for good, and return its task instance."""

        def look() -> dict[str, Any] | None:
            found = self.task(dag_id, run_id)
            if found["state"] not in FINISHED:
                return None
            # The scheduler ends the DAG run a moment after its task, and refuses to delete it before.
            ended = self.ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"] in ("success", "failed")
            return found if ended else None

        return wait_for(f"the end of {dag_id} {run_id}", look, seconds)

    def tries(self, dag_id: str, run_id: str, task_id: str = "trigger") -> list[dict[str, Any]]:
        """Return the tries of a task instance, oldest first."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/tries"
        return sorted(self.ask("GET", path)["task_instances"], key=lambda found: found["try_number"])

    def xcom(self, dag_id: str, run_id: str, key: str = "return_value", task_id: str = "trigger") -> Any:
        """Return an XCom's value."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.ask("GET", f"{path}?deserialize=true")["value"]

    def clear(self, dag_id: str, run_id: str) -> None:
        """Clear a DAG run's task, as the button does."""
        self.ask(
            "POST",
            f"/dags/{dag_id}/clearTaskInstances",
            {"dry_run": False, "dag_run_id": run_id, "task_ids": ["trigger"], "only_failed": False},
        )

    def records(self, dag_id: str, run_id: str) -> dict[int, dict[str, Any]]:
        """Return the start records of a DAG run's task, by map index."""
        query = "SELECT map_index, value FROM task_state_store WHERE dag_id = ? AND run_id = ? AND task_id = 'trigger'"
        with contextlib.closing(sqlite3.connect(self._database)) as database:
            return {index: json.loads(value) for index, value in database.execute(query, (dag_id, run_id))}

    def log(self, dag_id: str, run_id: str, *, map_index: int = -1) -> str:
        """Return the logs of all the tries of a DAG run's task."""
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / "task_id=trigger"
        if map_index >= 0:
            folder /= f"map_index={map_index}"
        return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("attempt=*.log")))


def _free_port() -> int:
    # Below the ports that the system gives to clients: a poll for readiness could else connect to itself.
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("No port is free")
