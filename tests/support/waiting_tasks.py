"""
Task instances that wait for a callback, in a real metadata database.

For Airflow 3.3 and later.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from entry_keys import START, message_key, report_key, revoked_key
from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import digest_of, new_token
from workflow_automation_provider.execution.record.entries import (
    RunReports,
    Start,
    entry_of,
    read_reports,
)

DAG_FILE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("{dag_id}", schedule=None):
    {tasks}
"""

TASKS = """EmptyOperator(task_id="wait", retries=2)
    EmptyOperator.partial(task_id="mapped").expand(doc=["a", "b", "c"])"""


def make_dag(airflow_home: Path, dag_id: str = "callbacks", tasks: str = TASKS) -> Any:
    """
    Make a DAG, and return it as the scheduler knows it.

    :param tasks: the lines that make its tasks
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session

    path = airflow_home / "dags" / f"{dag_id}.py"
    path.write_text(DAG_FILE.format(dag_id=dag_id, tasks=tasks))
    manager = DagBundlesManager()  # type: ignore[no-untyped-call]
    with create_session() as session:
        manager.sync_bundles_to_db(session=session)
    (bundle,) = manager.get_all_dag_bundles()
    bundle.initialize()
    sync_bag_to_db(
        BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name),
        bundle.name,
        bundle.version,
    )
    path.unlink()
    with create_session() as session:
        return DBDagBag().get_latest_version_of_dag(dag_id, session=session)


def make_dag_run(dag: Any, session: Any) -> Any:
    """Make a DAG run that is running."""
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    return dag.create_dagrun(
        run_id=f"test-{uuid4()}",
        run_after=datetime.now(UTC),
        run_type=DagRunType.MANUAL,
        triggered_by=DagRunTriggeredByType.TEST,
        state=DagRunState.RUNNING,
        session=session,
    )


class WaitingTask:
    """A task instance that waits for the callback of its run, as the operator leaves it."""

    def __init__(
        self, dag: Any, *, task_id: str = "wait", map_index: int = -1, **values: Any
    ) -> None:
        from airflow_rows import Rows

        self.rows = Rows(dag, task_id, map_index)
        self.task_id, self.run_id = task_id, self.rows.run_id
        self.change(**{"state": "awaiting_input", "try_number": 1, "max_tries": 2, **values})
        self.max_tries = self.ti.max_tries
        self._starts = 0
        self.give()

    @property
    def ti(self) -> Any:
        """The task instance, detached."""
        return self.rows.ti

    def enter(self, key: str, value: str = "{}") -> None:
        """Write an entry, as the execution API does."""
        self.rows.store(None, "set", key, value)

    def read(self, key: str) -> Any:
        """Return an entry, as the execution API does."""
        value = self.rows.get(key)
        return None if value is None else json.loads(value)

    def give(self, *, waits: bool = True, **fields: Any) -> str:
        """Give out a token, for a start that follows the others; return the URL with it."""
        self.token = new_token(self.ti.id)
        digest = digest_of(self.token)
        timeout = 3600 if waits else None
        self.write_start(**{"token_hash": digest, "completion_timeout": timeout, **fields})
        return self.url

    def write_start(self, **fields: Any) -> None:
        """Write a start after the others, as the task does."""
        place: dict[str, Any] = {"try_number": 1, "number": self._starts}
        self.start = Start(
            **{"at": datetime.now(UTC), "max_tries": self.max_tries, **place, **fields}
        )
        self._write(self.start)
        self._starts += 1

    def _write(self, start: Start) -> None:
        key = f"{START}{start.try_number}/{start.number}"
        self.rows.put(key, entry_of(start))

    def revoke(self) -> None:
        """Have no run claim the start, as the task does where it is in doubt."""
        self.rows.put(revoked_key(digest_of(self.token)), {"at": datetime.now(UTC).isoformat()})

    def close(self) -> RunReports:
        """Close the last start, and return what its run has reported."""
        self.revoke()
        self._write(self.start)
        return self.reports

    def adopt(self, run_id: str) -> RunReports:
        """
        Adopt the run that a person gave for the last start.

        And return what that has reported.
        """
        before = self.start
        self.write_start(
            run={"run_id": run_id},
            token_hash=before.token_hash,
            issuer=before.place,
            completion_timeout=before.completion_timeout,
        )
        self._write(before)
        return self.reports

    @property
    def url(self) -> str:
        return f"{CALLBACK_PATH}?token={self.token}"

    @property
    def reports(self) -> RunReports:
        """What the run has reported, and was told."""
        token = digest_of(self.token)
        return read_reports(token, self.read(report_key(token)))

    @property
    def last_message(self) -> Any:
        """The last message of the run, None if there is none."""
        return self.read(message_key(digest_of(self.token)))

    def clear(self) -> None:
        """Clear it, as a person does."""
        self.rows.clear(keep=True)
        self.max_tries = self.ti.max_tries

    def change(self, **values: Any) -> None:
        """Change columns of its row."""
        self.rows.change(**values)

    def change_dag_run(self, state: str) -> None:
        """Change the state of its DAG run."""
        self.rows.change_dag_run(state=state)

    def seconds_left(self) -> float:
        left: float = (self.ti.trigger_timeout - datetime.now(UTC)).total_seconds()
        return left
