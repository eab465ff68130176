"""Task instances that wait for a callback, in a real metadata database; for Airflow 3.3 and later."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from workflow_automation_provider.execution.callback import (
    PATH,
    claim_key,
    digest_of,
    end_key,
    new_token,
    receipt_key,
    token_key,
    token_keys,
    word_key,
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


class WaitingTask:
    """A task instance that waits for the callback of its run, as the operator leaves it."""

    def __init__(self, dag: Any, *, task_id: str = "wait", map_index: int = -1, **values: Any) -> None:
        from airflow.utils.session import create_session
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        self.task_id = task_id
        self.map_index = map_index
        with create_session() as session:
            dag_run = dag.create_dagrun(
                run_id=f"test-{uuid4()}",
                run_after=datetime.now(UTC),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                session=session,
            )
            self.run_id = dag_run.run_id
        self.change(**{"state": "awaiting_input", "max_tries": 2, **values})
        with create_session() as session:
            ti = self._ti(session)
            self.max_tries, self.token = ti.max_tries, new_token(ti.id)
        self.enter("workflow_automation_wait")
        self.open()

    def _ti(self, session: Any) -> Any:
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import select

        return session.scalars(
            select(TaskInstance).where(
                TaskInstance.run_id == self.run_id,
                TaskInstance.task_id == self.task_id,
                TaskInstance.map_index == self.map_index,
            )
        ).one()

    @property
    def ti(self) -> Any:
        from airflow.utils.session import create_session

        with create_session() as session:
            ti = self._ti(session)
            session.expunge_all()
            return ti

    @property
    def scope(self) -> Any:
        from airflow.state import TaskScope

        names = {"region_id"} & set(TaskScope.__dataclass_fields__)
        ti = self.ti
        return TaskScope(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=ti.map_index,
            **{name: getattr(ti, name) for name in names},
        )

    def enter(self, key: str, value: str = "{}") -> None:
        """Write an entry, as the execution API does."""
        from airflow.state import get_state_backend

        get_state_backend().set(self.scope, key, value)

    def delete(self, key: str) -> None:
        """Delete an entry, as the execution API does."""
        from airflow.state import get_state_backend

        get_state_backend().delete(self.scope, key)

    def read(self, key: str) -> Any:
        """Return an entry, as the execution API does."""
        from airflow.state import get_state_backend

        value = get_state_backend().get(self.scope, key)
        return None if value is None else json.loads(value)

    @property
    def key(self) -> str:
        return token_key(digest_of(self.token), self.max_tries)

    def open(self) -> None:
        """Let an answer count."""
        self.enter(self.key)

    def reopen(self) -> None:
        """Let what its run says count again, once its token was deleted."""
        self.enter(token_keys(digest_of(self.token), self.max_tries)[1])

    def close(self) -> None:
        """Let no answer count any more."""
        self.delete(self.key)

    @property
    def url(self) -> str:
        return f"{PATH}?token={self.token}"

    def renew(self) -> None:
        """Give out another token, for another send."""
        self.token = new_token(self.ti.id)
        self.open()

    @property
    def claim(self) -> Any:
        """The claim of a run, None if there is none."""
        return self.read(claim_key(self.max_tries))

    @property
    def word(self) -> Any:
        """The last word of the run, None if there is none."""
        return self.read(word_key(digest_of(self.token)))

    def clear(self) -> None:
        """Clear it, as a person does."""
        from airflow.models.taskinstance import clear_task_instances
        from airflow.utils.session import create_session

        with create_session() as session:
            clear_task_instances([self._ti(session)], session)
        self.max_tries = self.ti.max_tries

    @property
    def row(self) -> Any:
        """The flow's answer, None if there is none."""
        return self.read(end_key(digest_of(self.token)))

    @property
    def receipt(self) -> Any:
        """What the endpoint keeps of an answer."""
        return self.read(receipt_key(digest_of(self.token)))

    def redact(self) -> None:
        """Take over the answer, which had a secret in it."""
        self.close()
        self.delete(end_key(digest_of(self.token)))

    def change(self, **values: Any) -> None:
        from airflow.utils.session import create_session

        with create_session() as session:
            ti = self._ti(session)
            for name, value in values.items():
                setattr(ti, name, value)

    def seconds_left(self) -> float:
        left: float = (self.ti.trigger_timeout - datetime.now(UTC)).total_seconds()
        return left
