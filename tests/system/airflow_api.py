"""Airflow's REST API, as far as the tests need it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
from processes import wait_for

FINISHED = {"success", "failed", "upstream_failed", "skipped", "removed"}


class AirflowApi:
    """
    A client of the REST API.

    :param url: Airflow's address.
    :param user: who logs in.
    :param password: that user's password.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self._login = {"username": user, "password": password}

    def log_in(self) -> None:
        """Get a token."""
        token = self._http.post("/auth/token", json=self._login).json()["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, and return the reply."""
        reply = self._http.request(method, f"/api/v2{path}", json=body)
        if not reply.is_success:
            raise RuntimeError(f"{method} {path}: {reply.status_code} {reply.text[:500]}")
        return reply.json() if reply.content else None

    def healthy(self) -> bool:
        """Tell whether every part is."""
        parts = self.ask("GET", "/monitor/health")
        return all(parts[part]["status"] == "healthy" for part in ("scheduler", "dag_processor", "triggerer"))

    def add_connection(
        self, conn_id: str, host: str, key: str, port: int | None = None, **extra: Any
    ) -> None:
        """Add a connection of our type."""
        connection = {
            "connection_id": conn_id,
            "conn_type": "workflow_automation",
            "host": host,
            "password": key,
        }
        self.ask("POST", "/connections", {**connection, "port": port, "extra": json.dumps(extra)})

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> None:
        """Trigger a DAG run, as soon as the DAG is there."""
        now = datetime.now(UTC).isoformat()
        body = {"dag_run_id": run_id, "logical_date": now, "conf": dict(conf or {})}

        def triggered() -> bool:
            if self._http.patch(f"/api/v2/dags/{dag_id}", json={"is_paused": False}).status_code == 404:
                return False
            self.ask("POST", f"/dags/{dag_id}/dagRuns", body)
            return True

        wait_for(f"DAG {dag_id}", triggered, 90)

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return a DAG run."""
        found: dict[str, Any] = self.ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}")
        return found

    def dag_runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return all the runs of a DAG."""
        found: list[dict[str, Any]] = self.ask("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]
        return found

    def finished(self, dag_id: str, run_id: str, seconds: float = 120) -> str:
        """Wait for a DAG run's end, and return its state. Asks on while Airflow or its database restarts."""

        def look() -> str | None:
            try:
                state: str = self.dag_run(dag_id, run_id)["state"]
            except (RuntimeError, httpx.HTTPError):
                return None
            return state if state in FINISHED else None

        return wait_for(f"the end of {dag_id} {run_id}", look, seconds)

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return a task instance."""
        found: dict[str, Any] = self.ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return found

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return all task instances of a DAG run."""
        found: list[dict[str, Any]] = self.ask("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")[
            "task_instances"
        ]
        return found

    def running(self, dag_id: str, run_id: str, task_id: str) -> int:
        """Wait until a task runs, and return its process."""

        def look() -> int | None:
            task = self.task(dag_id, run_id, task_id)
            return task["pid"] if task["state"] == "running" else None

        return wait_for(f"{dag_id} {task_id} running", look) or 0

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return an XCom's value."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.ask("GET", f"{path}?deserialize=true")["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> str:
        """Return what a try logged, as the UI shows it."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}?full_content=true"
        return str(self.ask("GET", path))
