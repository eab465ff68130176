"""What Airflow does with the rows of one task instance, on 3.3 and 3.4."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance, clear_task_instances
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.state import TaskScope, get_state_backend
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import select
from sqlalchemy.orm import lazyload

from waiting_tasks import make_dag_run

# There, each try is a row of its own, and a Clear deletes the entries.
IS_3_4 = hasattr(TaskInstance, "working_set")

_TI: Any = TaskInstance.__table__
_CURRENT = [_TI.c.working_set.is_(True)] if IS_3_4 else []


def store_error() -> AirflowRuntimeError:
    """Return what the SDK raises where the execution API responds with an error."""
    return AirflowRuntimeError(
        ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 404})
    )


class Rows:
    """
    The rows of a task instance.

    :param dag: as the scheduler knows it
    """

    def __init__(self, dag: Any, task_id: str, map_index: int = -1) -> None:
        self._dag = dag
        self._task_id = task_id
        self.map_index = map_index
        self._backend = get_state_backend()
        self._state: list[Any] = []  # as last read, until something changes it
        with create_session() as session:
            dag_run = make_dag_run(dag, session)
            dag_run.start_date = datetime.now(UTC)
            self.run_id = dag_run.run_id

    @contextmanager
    def _ti(self) -> Iterator[tuple[Any, Any]]:
        query = select(TaskInstance).options(lazyload("*"))
        query = query.filter_by(run_id=self.run_id, task_id=self._task_id, map_index=self.map_index)
        if IS_3_4:
            query = query.filter_by(working_set=True)
        self._state = []
        with create_session() as session:
            ti = session.scalars(query).one()
            ti.task = self._dag.get_task(self._task_id)
            yield session, ti

    @property
    def state(self) -> str | None:
        """The state of the task instance."""
        if not self._state:
            query = select(_TI.c.state).where(_TI.c.run_id == self.run_id, *_CURRENT)
            with create_session() as session:
                self._state = [session.connection().execute(query).scalar_one()]
        found: str | None = self._state[0]
        return found

    @property
    def ti(self) -> Any:
        """The current try, detached."""
        with self._ti() as (session, ti):
            session.expunge_all()
            return ti

    @property
    def dag_run(self) -> Any:
        """The DAG run, detached."""
        with create_session() as session:
            found = session.scalars(
                select(DagRun).options(lazyload("*")).filter_by(run_id=self.run_id)
            ).one()
            session.expunge_all()
            return found

    def change(self, **values: Any) -> None:
        """Change columns of the task instance."""
        with self._ti() as (_, ti):
            for name, value in values.items():
                setattr(ti, name, value)

    def change_dag_run(self, **values: Any) -> None:
        """Change columns of the DAG run."""
        with create_session() as session:
            dag_run = session.scalars(select(DagRun).filter_by(run_id=self.run_id)).one()
            for name, value in values.items():
                setattr(dag_run, name, value)

    def begin(self) -> None:
        """Begin the next try, or continue the one that was suspended."""
        with self._ti() as (session, ti):
            if ti.state in (None, TaskInstanceState.UP_FOR_RETRY):
                ti.try_number = max(ti.try_number, 1) if IS_3_4 else ti.try_number + 1
            ti.state, ti.queued_by_job_id = TaskInstanceState.RUNNING, 1
            dag_run = session.scalars(select(DagRun).filter_by(run_id=self.run_id)).one()
            dag_run.state = DagRunState.RUNNING
            dag_run.start_date = dag_run.start_date or datetime.now(UTC)

    def is_running(self, ti_id: UUID) -> bool:
        """Return whether Airflow accepts what a process reports of its task."""
        query = select(_TI.c.id).where(_TI.c.id == ti_id, _TI.c.state == "running", *_CURRENT)
        with create_session() as session:
            return session.connection().execute(query).first() is not None

    def suspend(self, method: str, kwargs: dict[str, Any] | None, timeout: timedelta) -> None:
        with self._ti() as (_, ti):
            ti.state = TaskInstanceState.AWAITING_INPUT
            ti.next_method, ti.next_kwargs = method, json.loads(json.dumps(kwargs))
            ti.trigger_timeout = datetime.now(UTC) + timeout

    def defer(self, method: str, kwargs: dict[str, Any] | None) -> None:
        with self._ti() as (_, ti):
            ti.state = TaskInstanceState.DEFERRED
            ti.next_method, ti.next_kwargs = method, json.loads(json.dumps(kwargs))

    def reschedule(self) -> None:
        with self._ti() as (_, ti):
            ti.state = TaskInstanceState.UP_FOR_RESCHEDULE

    def end(self, state: str) -> None:
        """End the task: *success*, *failed*, or whether it is retried."""
        with self._ti() as (session, ti):
            if state == "retry" and ti.is_eligible_to_retry():
                ti.clear_next_method_args()
                if IS_3_4:
                    ti.state = TaskInstanceState.UP_FOR_RETRY
                    ti.prepare_db_for_next_try(session)
                    return
                ti.prepare_db_for_next_try(session)
                ti.state = TaskInstanceState.UP_FOR_RETRY
                return
            ti.state = TaskInstanceState.SUCCESS if state == "success" else TaskInstanceState.FAILED
            self._end_dag_run(session, ti.state)

    def release(self, *, was_killed: bool) -> None:
        """
        Go on with a task that was cleared while it was running, once its process has ended.

        :param was_killed: whether Airflow missed its heartbeats
        """
        with self._ti() as (session, ti):
            if ti.state != TaskInstanceState.RESTARTING:
                return
            if IS_3_4:
                ti.complete_restart(session=session)
            elif was_killed:
                ti.clear_next_method_args()
                ti.state = TaskInstanceState.UP_FOR_RETRY
            else:
                ti.max_tries = ti.try_number + ti.task.retries
                ti.state = None

    def clear(self, *, keep: bool) -> None:
        """
        Clear the task, as a person does.

        :param keep: whether its entries are kept, as 3.3 always does
        """
        with self._ti() as (session, ti):
            if IS_3_4 and not keep:
                get_state_backend().clear(self.scope(ti), session=session)
            clear_task_instances([ti], session)

    def mark(self, state: str) -> None:
        """Mark the task as *success* or *failed*, as a person does."""
        with self._ti() as (session, ti):
            ti.set_state(TaskInstanceState(state), session=session)
            self._end_dag_run(session, state)

    def _end_dag_run(self, session: Any, state: str) -> None:
        dag_run = session.scalars(select(DagRun).filter_by(run_id=self.run_id)).one()
        dag_run.state = DagRunState(state)

    @staticmethod
    def scope(ti: Any) -> TaskScope:
        """Return where the entries of a task instance are."""
        if IS_3_4:
            names = {"map_index": ti.region_index, "region_id": ti.region_id}
        else:
            names = {"map_index": ti.map_index}
        return TaskScope(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, **names)

    def get(self, key: str) -> str | None:
        """Get an entry as the execution API does."""
        found: str | None = self._backend.get(self.scope(self.ti), key)
        return found

    def read(self, ti_id: UUID, key: str) -> str | None:
        """
        Get an entry as the execution API does, in less time.

        :return: None also if the task instance was given to another process, or is gone
        """
        of_process = select(_TI.c.id).where(_TI.c.id == ti_id, *_CURRENT)
        entry = select(Store.value).where(Store.run_id == self.run_id, Store.key == key)
        with create_session() as session:
            found: str | None = (
                session.connection().execute(entry.where(of_process.exists())).scalar()
            )
            return found

    def store(self, ti_id: UUID | None, operation: str, *values: str) -> None:
        """
        Set or delete an entry as the execution API does.

        :param ti_id: of the process that asks; None for one of which that was checked before
        :raises AirflowRuntimeError: if the task instance was given to another process, or is gone
        """
        with create_session() as session:
            ti = session.get(TaskInstance, ti_id or self.ti.id, options=[lazyload("*")])
            if ti is None or (IS_3_4 and not ti.working_set):
                raise store_error()
            getattr(self._backend, operation)(self.scope(ti), *values, session=session)

    @property
    def entries(self) -> dict[str, str]:
        """All entries of the task instance, as text."""
        query = select(Store.key, Store.value).where(Store.run_id == self.run_id)
        with create_session() as session:
            return dict(session.execute(query).all())

    def put(self, key: str, value: object) -> None:
        """Write an entry, as a person does under Storage."""
        self.store(None, "set", key, json.dumps(value))
