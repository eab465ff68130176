"""Live tasks with entries of ours, written into PostgreSQL by hand: many at once, and what no flow says on demand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import create_engine, text

DIGEST = "d" * 64


class LiveEntries:
    """
    What is written into an Airflow's database.

    :param url: of the database
    """

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def run(self, statement: str, **values: Any) -> None:
        """Run a statement."""
        with self._engine.begin() as connection:
            connection.execute(text(statement), values)

    def set_state(self, dag_id: str, run_id: str, state: str, next_kwargs: object = None) -> None:
        """Have the only task of a DAG run be in a state."""
        self.run(
            "UPDATE task_instance SET state = :state, try_number = 1, start_date = now(), end_date = now(), max_tries = 0, "
            "next_kwargs = :next_kwargs WHERE dag_id = :dag_id AND run_id = :run_id",
            dag_id=dag_id,
            run_id=run_id,
            state=state,
            next_kwargs=json.dumps(next_kwargs),
        )

    def put(self, dag_id: str, dag_run_id: str, key: str, /, **value: object) -> None:
        """Write an entry of the only task of a DAG run."""
        self.run(
            "INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at) "
            "SELECT d.id, d.dag_id, d.run_id, t.task_id, t.map_index, :key, :value, now() "
            "FROM dag_run d JOIN task_instance t ON t.dag_id = d.dag_id AND t.run_id = d.run_id "
            "WHERE d.dag_id = :dag_id AND d.run_id = :run_id "
            "ON CONFLICT (dag_run_id, task_id, map_index, key) DO UPDATE SET value = :value, updated_at = now()",
            dag_id=dag_id,
            run_id=dag_run_id,
            key=f"workflow_automation_{key}",
            value=json.dumps(value),
        )


def ago(seconds: float) -> str:
    """Return a time in the past, as entries have it."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")
