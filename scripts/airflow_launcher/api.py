"""Airflow's REST API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from airflow_launcher.processes import wait_for

FINISHED = {"success", "failed", "upstream_failed", "skipped", "removed"}


class AirflowApi:
    """
    A client of the REST API.

    :param url: Airflow's address
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def answers(self, path: str) -> bool:
        """Tell whether a path, or an address, is there yet."""
        try:
            return self._http.get(path).is_success
        except httpx.HTTPError:
            return False

    def log_in(self, user: str | None = None, password: str | None = None) -> None:
        """
        Get a token, and send it with every request.

        Where everybody is an admin, nobody has a name.
        """
        login = {"username": user, "password": password}
        response = (
            self._http.post("/auth/token", json=login) if user else self._http.get("/auth/token")
        )
        response.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {response.json()['access_token']}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """
        Send a request, and return the response's JSON.

        :raises RuntimeError: if the response is an error
        """
        response = self._http.request(method, f"/api/v2{path}", json=body)
        if not response.is_success:
            raise RuntimeError(f"{method} {path}: {response.status_code} {response.text[:500]}")
        found: dict[str, Any] = response.json() if response.content else {}
        return found

    def healthy(self, parts: Iterable[str]) -> bool:
        """
        Tell whether Airflow answers, and finds parts of it healthy.

        :param parts: of ``scheduler``, ``dag_processor`` and ``triggerer``
        """
        try:
            health = self.ask("GET", "/monitor/health")
        except (httpx.HTTPError, RuntimeError):
            return False
        return all(health[part]["status"] == "healthy" for part in parts)

    def add_connection(self, conn_id: str, connection: Mapping[str, Any]) -> None:
        """Add a connection, given as a JSON value."""
        extra = json.dumps(connection.get("extra", {}))
        self.ask("POST", "/connections", {**connection, "connection_id": conn_id, "extra": extra})

    def unpause(self, dag_id: str) -> None:
        """Let a DAG be run, as soon as it is there."""
        path = f"/api/v2/dags/{dag_id}"
        wait_for(
            f"DAG {dag_id}", lambda: self._http.patch(path, json={"is_paused": False}).is_success
        )

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> None:
        """Trigger a DAG run, as soon as the DAG is there."""
        now = datetime.now(UTC).isoformat()
        body = {"dag_run_id": run_id, "logical_date": now, "conf": dict(conf or {})}

        def triggered() -> bool:
            response = self._http.post(f"/api/v2/dags/{dag_id}/dagRuns", json=body)
            # SQLite may be busy with another process: Airflow then did nothing, and says so.
            locked = response.status_code == 503 and "Database is locked" in response.text
            if response.status_code == 404 or locked:
                return False
            assert response.is_success, response.text
            return True

        wait_for(f"DAG {dag_id}", triggered)

    def clear(self, dag_id: str, run_id: str, task_id: str, **options: bool) -> None:
        """Clear a task of a DAG run, as the button does, with more of the request's options."""
        asked = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "only_failed": False,
        }
        self.ask("POST", f"/dags/{dag_id}/clearTaskInstances", {**asked, **options})

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark a task instance as failed or success, as a person does."""
        self.ask("PATCH", _path(dag_id, run_id, task_id, map_index), {"new_state": state})

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return a DAG run."""
        return self.ask("GET", _path(dag_id, run_id))

    def dag_runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return all the runs of a DAG."""
        found: list[dict[str, Any]] = self.ask("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]
        return found

    def finished(self, dag_id: str, run_id: str, seconds: float = 300, pause: float = 0.5) -> str:
        """
        Wait for a DAG run's end, and return its state.

        Asks on while Airflow or its database restarts.
        """

        def look() -> str | None:
            try:
                state: str = self.dag_run(dag_id, run_id)["state"]
            except (RuntimeError, httpx.HTTPError):
                return None
            return state if state in FINISHED else None

        return wait_for(f"the end of {dag_id} {run_id}", look, seconds, pause)

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Return a task instance."""
        return self.ask("GET", _path(dag_id, run_id, task_id))

    def tries(
        self, dag_id: str, run_id: str, task_id: str, map_index: int = -1
    ) -> list[dict[str, Any]]:
        """Return the tries of a task instance, oldest first."""
        found = self.ask("GET", f"{_path(dag_id, run_id, task_id, map_index)}/tries")
        return sorted(found["task_instances"], key=lambda one: one["try_number"])

    def xcom(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        key: str = "return_value",
        *,
        map_index: int = -1,
    ) -> Any:
        """Return an XCom's value."""
        path = f"{_path(dag_id, run_id, task_id)}/xcomEntries/{key}?map_index={map_index}"
        return self.ask("GET", path)["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int) -> str:
        """Return what a try logged, as the UI shows it."""
        path = f"{_path(dag_id, run_id, task_id)}/logs/{try_number}?full_content=true"
        return str(self.ask("GET", path))


def _path(dag_id: str, run_id: str, task_id: str = "", map_index: int = -1) -> str:
    path = f"/dags/{dag_id}/dagRuns/{run_id}" + (f"/taskInstances/{task_id}" if task_id else "")
    return f"{path}/{map_index}" if map_index >= 0 else path
