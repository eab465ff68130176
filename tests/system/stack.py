"""A whole deployment of Airflow: PostgreSQL, Redis, two Celery workers, and every other part in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from airflow_api import AirflowApi
from airflow_settings import airflow_environment
from cryptography.fernet import Fernet
from databases import PostgreSQL, Redis
from processes import Program, end, free_port, inhabitants, wait_for

HERE = Path(__file__).parent
USER, PASSWORD = "admin", "admin"


class Stack:
    """Airflow 3.3 with its databases; every logger at DEBUG, and heartbeats that soon find what was killed."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="workflow-automation-system-"))
        self.home.chmod(0o755)  # PostgreSQL's user has to pass
        self.lineage = self.home / "lineage.jsonl"
        self.postgresql = PostgreSQL(self.home)
        self.redis = Redis(self.home)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = AirflowApi(self.url)
        self.env = airflow_environment(
            self.home,
            port=self.port,
            CORE__EXECUTOR="CeleryExecutor",
            CORE__FERNET_KEY=Fernet.generate_key().decode(),
            CORE__SIMPLE_AUTH_MANAGER_USERS=f"{USER}:admin",
            CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(self.home / "passwords.json"),
            CORE__TEST_CONNECTION="Enabled",
            API__BASE_URL=self.url,
            DATABASE__SQL_ALCHEMY_CONN=self.postgresql.url,
            CELERY__BROKER_URL=self.redis.url,
            CELERY__RESULT_BACKEND=f"db+{self.postgresql.url}",
            LOGGING__LOGGING_LEVEL="DEBUG",
            LOGGING__CELERY_LOGGING_LEVEL="DEBUG",
            LOGGING__NAMESPACE_LEVELS="httpx=DEBUG httpcore=DEBUG",
            OPENLINEAGE__TRANSPORT=json.dumps(
                {"type": "file", "log_file_path": str(self.lineage), "append": True}
            ),
            DAG_PROCESSOR__REFRESH_INTERVAL="30",
        )
        self.workers = [
            self._airflow(
                f"worker-{n}",
                "celery",
                "worker",
                "-H",
                f"worker-{n}",
                "-c",
                "5",
                "-s",
                "--pid",
                f"worker-{n}.pid",
            )
            for n in (1, 2)
        ]
        self._parts = [
            self._airflow("api-server", "api-server"),
            self._airflow("scheduler", "scheduler", "--skip-serve-logs"),
            self._airflow("dag-processor", "dag-processor"),
            self._airflow("triggerer", "triggerer", "--skip-serve-logs"),
            *self.workers,
        ]
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._stopping = threading.Event()
        self.kept_alive: list[str] = []

    def start(self) -> None:
        """Start everything; when this returns, DAG runs can be triggered."""
        shutil.copytree(HERE / "dags", self.home / "dags")
        shutil.copytree(HERE.parents[1] / "example_dags", self.home / "dags", dirs_exist_ok=True)
        (self.home / "passwords.json").write_text(json.dumps({USER: PASSWORD}))
        self.postgresql.create()
        self.redis.start()
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        (self.home / "outputs" / "db-migrate.out").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr[-3000:]
        for part in self._parts:
            part.start()
        self._keeper.start()
        wait_for("the api-server", lambda: self.api.answers("/api/v2/version"), 120)
        # The execution API is built at its first request, and takes longer than a task would wait for it.
        wait_for("the execution API", lambda: self.api.answers("/execution/health"), 60)
        self.api.log_in(USER, PASSWORD)
        wait_for("a healthy Airflow", self.api.healthy, 120)
        wait_for(
            "the workers", lambda: all("ready." in worker.output.read_text() for worker in self.workers), 120
        )

    def stop(self) -> None:
        """Stop everything; orphans too."""
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        end([process for part in self._parts for process in part.family()])
        self.redis.stop()
        self.postgresql.stop()
        end(inhabitants(self.home))  # orphans, if there are any
        assert not inhabitants(self.home)
        self.api.close()

    def remove(self) -> None:
        """Remove all that it wrote."""
        shutil.rmtree(self.home, ignore_errors=True)

    def worker_of(self, pid: int) -> Program:
        """Return the worker that a task's process belongs to."""
        (worker,) = [worker for worker in self.workers if any(found.pid == pid for found in worker.family())]
        return worker

    def kill_worker_of(self, pid: int) -> None:
        """Kill the whole tree of the worker that a task's process belongs to."""
        self.worker_of(pid).kill()
        assert not psutil.pid_exists(pid)

    def _keep(self) -> None:
        """Start what has ended again, as systemd or Kubernetes does."""
        while not self._stopping.wait(1):
            for part in self._parts:
                if not part.runs:
                    self.kept_alive.append(f"{time.strftime('%X')} {part.name}")
                    (self.home / f"{part.name}.pid").unlink(missing_ok=True)
                    part.start()

    def _airflow(self, name: str, *command: str) -> Program:
        return Program(name, [sys.executable, "-m", "airflow", *command], self.home, self.env)
