"""
A whole deployment of Airflow.

PostgreSQL, Redis, two schedulers, two Celery workers, and a triggerer.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, text

from airflow_launcher.airflow import (
    API_SERVER,
    DAG_PROCESSOR,
    SCHEDULER,
    TRIGGERER,
    Airflow,
    Component,
)
from airflow_launcher.databases import PostgreSQL
from airflow_launcher.processes import Program, free_port, wait_for
from real_airflow import OLD_HEARTBEAT, QUICK_RECOVERY, executions_seen

HERE = Path(__file__).parent
WORKERS = ("worker-1", "worker-2")
USERS = {"flow": "user", "viewer": "viewer"}  # their roles
JWT_SECRET = "a secret of the tests, long enough for HS512, which wants 64 bytes"


def query(url: str, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Run a statement in a database, and return its rows."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        done = connection.execute(text(statement), values)
        return [tuple(row) for row in done] if done.returns_rows else []


class Redis:
    """
    A Redis server of our own.

    :param home: the folder for its output
    """

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self.program = Program("redis", [*command, "--loglevel", "debug"], home, os.environ)

    @property
    def url(self) -> str:
        """The address for Celery."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it."""
        self.program.start()
        wait_for("Redis", self._ready)

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(5) == b"+PONG"
        except OSError:
            return False


class Stack(Airflow):
    """
    Airflow with its databases.

    Every logger at DEBUG, and heartbeats that soon find what was killed.

    What ends is started again, as systemd or Kubernetes does.

    :param home: the folder for all that it writes
    """

    def __init__(self, home: Path) -> None:
        self.lineage = home / "lineage.jsonl"
        self.postgresql = PostgreSQL(home)
        self.redis = Redis(home)
        workers = [
            Component(
                name,
                [
                    "celery",
                    "worker",
                    "-H",
                    name,
                    "-c",
                    "5",
                    "-s",
                    "--pid",
                    str(home / f"{name}.pid"),
                ],
            )
            for name in WORKERS
        ]
        super().__init__(
            home,
            home / "dags",
            components=[
                API_SERVER,
                SCHEDULER,
                SCHEDULER._replace(name="scheduler-2"),
                DAG_PROCESSOR,
                TRIGGERER,
                *workers,
            ],
            database=self.postgresql,
            users=USERS,
            settings={
                **QUICK_RECOVERY,
                "API_AUTH__JWT_SECRET": JWT_SECRET,
                "CORE__EXECUTOR": "CeleryExecutor",
                "CORE__TEST_CONNECTION": "Enabled",
                "CELERY__BROKER_URL": self.redis.url,
                "CELERY__RESULT_BACKEND": f"db+{self.postgresql.url}",
                "LOGGING__LOGGING_LEVEL": "DEBUG",
                "LOGGING__CELERY_LOGGING_LEVEL": "DEBUG",
                "LOGGING__NAMESPACE_LEVELS": "httpx=DEBUG httpcore=DEBUG",
                "OPENLINEAGE__TRANSPORT": json.dumps(
                    {"type": "file", "log_file_path": str(self.lineage), "append": True}
                ),
                "DAG_PROCESSOR__REFRESH_INTERVAL": "30",
            },
        )
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._stopping = threading.Event()
        self.kept_alive: list[str] = []

    def start(self) -> None:
        """Start everything; when this returns, DAG runs can be triggered."""
        for dags in (HERE / "dags", HERE.parents[1] / "example_dags"):
            shutil.copytree(dags, self.dags, dirs_exist_ok=True)
        self.redis.start()
        super().start()
        self._keeper.start()
        wait_for(
            "the workers",
            lambda: all("ready." in worker.output.read_text() for worker in self.workers),
        )

    def stop(self) -> None:
        """Stop everything; orphans too."""
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        super().stop()

    @property
    def workers(self) -> list[Program]:
        """The Celery workers."""
        return [self.programs[name] for name in WORKERS]

    def kill_workers(self) -> None:
        """
        Kill the whole trees of the workers.

        Airflow misses the heartbeats of their tasks at once.
        """
        family = [process.pid for worker in self.workers for process in worker.family()]
        for worker in self.workers:
            worker.kill()
        old = "UPDATE task_instance SET last_heartbeat_at = :at WHERE pid = ANY(:pids) AND state = 'running'"
        self.query(old, at=OLD_HEARTBEAT, pids=family)

    def query(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in the metadata database, and return its rows."""
        return query(self.postgresql.url, statement, **values)

    def is_suspended(self, dag_id: str, run_id: str) -> bool:
        """Tell whether the task of a DAG run waits; it then does not look by itself for an hour."""
        later = "UPDATE task_instance SET trigger_timeout = now() + interval '1 hour' WHERE run_id = :run_id "
        if not self.query(
            later + "AND task_id = 'trigger' AND state = 'awaiting_input' RETURNING id",
            run_id=run_id,
        ):
            return False
        # On Airflow 3.3, an answer is lost that comes before the scheduler has seen this.
        executions = self.api.log(dag_id, run_id, "trigger", 1).count(
            "Pausing task as AWAITING_INPUT"
        )
        return 0 < executions <= executions_seen(self.home, run_id)

    def _keep(self) -> None:
        while not self._stopping.wait(1):
            for program in self.programs.values():
                if not program.runs:
                    self.kept_alive.append(f"{time.strftime('%X')} {program.name}")
                    (self.home / f"{program.name}.pid").unlink(missing_ok=True)
                    program.start()
