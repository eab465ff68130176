"""What Airflow does with the rows of one task instance, on 3.3 and 3.4."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from airflow import settings
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance, clear_task_instances
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.state import TaskScope, get_state_backend
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import lazyload

from waiting_tasks import make_dag_run

# There, each try is a row of its own, and a Clear deletes the entries.
IS_3_4 = hasattr(TaskInstance, "working_set")

_TI: Any = TaskInstance.__table__
_DAG_RUN: Any = DagRun.__table__
_CURRENT = [_TI.c.working_set.is_(True)] if IS_3_4 else []

_SCOPE: list[Any] = [TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id]
_SCOPE += [TaskInstance.region_index, TaskInstance.region_id] if IS_3_4 else []
_TRY: list[Any] = [
    *(TaskInstance.id, TaskInstance.map_index.label("map_index"), TaskInstance.state),
    *(TaskInstance.try_number, TaskInstance.max_tries),
    *(TaskInstance.next_method, TaskInstance.next_kwargs),
    *_SCOPE,
]
"""What a process is told of its task instance, without the rest of the row, which takes longer."""


def store_error() -> AirflowRuntimeError:
    """Return what the SDK raises where the execution API responds with an error."""
    return AirflowRuntimeError(
        ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 404})
    )


# What is read most often, each made once.
_RUN_ID: Any = bindparam("run_id")
_IN_USE = [TaskInstance.working_set.is_(True)] if IS_3_4 else []
_OF_TASK = [
    TaskInstance.run_id == _RUN_ID,
    TaskInstance.task_id == bindparam("task_id"),
    TaskInstance.map_index == bindparam("map_index"),
    *_IN_USE,
]
_THIS_TRY = select(*_TRY).where(*_OF_TASK)
_TRY_OF_PROCESS = select(*_TRY).where(TaskInstance.id == bindparam("ti_id"), *_IN_USE)
_OF_PROCESS = select(_TI.c.id).where(_TI.c.id == bindparam("ti_id"), *_CURRENT)
_IS_RUNNING = _OF_PROCESS.where(_TI.c.state == "running")
_OF_KEY = select(Store.value).where(Store.run_id == _RUN_ID, Store.key == bindparam("key"))
_ENTRY = _OF_KEY.where(_OF_PROCESS.exists())
_ENTRIES = select(Store.key, Store.value).where(Store.run_id == _RUN_ID)
_STATE = select(_TI.c.state).where(_TI.c.run_id == _RUN_ID, *_CURRENT)
_STATE_OF_DAG_RUN = select(_DAG_RUN.c.state).where(_DAG_RUN.c.run_id == _RUN_ID)
_OF_DAG_RUN = select(DagRun.start_date, DagRun.clear_number).where(DagRun.run_id == _RUN_ID)


def _read(query: Any, **values: Any) -> list[Any]:
    engine: Any = settings.engine
    with engine.connect() as connection:
        return [*connection.execute(query, values)]


_made: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
"""The rows of a DAG run and its task instances as Airflow has made them, by the id of the DAG."""


def _make_rows(dag: Any, session: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    of_run = {"run_id": make_dag_run(dag, session).run_id}
    session.flush()
    (dag_run,) = session.execute(select(_DAG_RUN).filter_by(**of_run)).mappings()
    tis = session.execute(select(_TI).filter_by(**of_run)).mappings()
    return {name: value for name, value in dag_run.items() if name != "id"}, [*map(dict, tis)]


def _copy_dag_run(dag: Any, session: Any) -> str:
    """Make a DAG run that is running, as a copy of the first of its DAG, which takes less time."""
    if dag.dag_id not in _made:
        _made[dag.dag_id] = _make_rows(dag, session)
    dag_run, tis = _made[dag.dag_id]
    run_id, now = f"test-{uuid4()}", datetime.now(UTC)
    times = {"run_after": now, "start_date": now}
    session.execute(insert(_DAG_RUN).values({**dag_run, **times, "run_id": run_id}))
    session.execute(insert(_TI), [{**ti, "run_id": run_id, "id": uuid4()} for ti in tis])
    return run_id


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
            self.run_id = _copy_dag_run(dag, session)

    def _of_this(self, query: Any) -> Any:
        """Have a query be of the current try."""
        query = query.filter_by(run_id=self.run_id, task_id=self._task_id, map_index=self.map_index)
        return query.filter_by(working_set=True) if IS_3_4 else query

    @contextmanager
    def _ti(self) -> Iterator[tuple[Any, Any]]:
        """Have Airflow's code change the task instance."""
        query = self._of_this(select(TaskInstance).options(lazyload("*")))
        self._state = []
        with create_session() as session:
            ti = session.scalars(query).one()
            ti.task = self._dag.get_task(self._task_id)
            yield session, ti

    @property
    def state(self) -> str | None:
        """The state of the task instance."""
        if not self._state:
            ((state,),) = _read(_STATE, run_id=self.run_id)
            self._state = [state]
        found: str | None = self._state[0]
        return found

    @property
    def ti(self) -> Any:
        """The current try, detached."""
        with self._ti() as (session, ti):
            session.expunge_all()
            return ti

    @property
    def current(self) -> Any:
        """What a process is told of the current try."""
        of_task = {"task_id": self._task_id, "map_index": self.map_index}
        (found,) = _read(_THIS_TRY, run_id=self.run_id, **of_task)
        return found

    @property
    def dag_run(self) -> Any:
        """What a process is told of the DAG run."""
        (found,) = _read(_OF_DAG_RUN, run_id=self.run_id)
        return found

    def change(self, **values: Any) -> None:
        """Change columns of the task instance."""
        self._state = []
        query = self._of_this(update(TaskInstance)).values(values)
        with create_session() as session:
            session.execute(query.execution_options(synchronize_session=False))

    def change_dag_run(self, **values: Any) -> None:
        """Change columns of the DAG run."""
        with create_session() as session:
            dag_run = session.scalars(select(DagRun).filter_by(run_id=self.run_id)).one()
            for name, value in values.items():
                setattr(dag_run, name, value)

    def begin(self) -> None:
        """Begin the next try, or continue the one that was suspended."""
        before = self.current
        number = before.try_number
        if before.state in (None, TaskInstanceState.UP_FOR_RETRY):
            number = max(number, 1) if IS_3_4 else number + 1
        self.change(state=TaskInstanceState.RUNNING, queued_by_job_id=1, try_number=number)
        ((state,),) = _read(_STATE_OF_DAG_RUN, run_id=self.run_id)
        if state == DagRunState.RUNNING:
            return
        with create_session() as session:
            dag_run = session.scalars(select(DagRun).filter_by(run_id=self.run_id)).one()
            dag_run.state = DagRunState.RUNNING
            dag_run.start_date = dag_run.start_date or datetime.now(UTC)

    def is_running(self, ti_id: UUID) -> bool:
        """Return whether Airflow accepts what a process reports of its task."""
        return bool(_read(_IS_RUNNING, ti_id=ti_id))

    def suspend(self, method: str, kwargs: dict[str, Any] | None, timeout: timedelta) -> None:
        self._go_on_later(TaskInstanceState.AWAITING_INPUT, method, kwargs, timeout)

    def defer(
        self, method: str, kwargs: dict[str, Any] | None, timeout: timedelta | None = None
    ) -> None:
        self._go_on_later(TaskInstanceState.DEFERRED, method, kwargs, timeout)

    def _go_on_later(
        self,
        state: TaskInstanceState,
        method: str,
        kwargs: dict[str, Any] | None,
        timeout: timedelta | None,
    ) -> None:
        until = None
        if timeout is not None:
            until = datetime.now(UTC) + timeout

        stored = json.loads(json.dumps(kwargs))
        self.change(state=state, next_method=method, next_kwargs=stored, trigger_timeout=until)

    def reschedule(self) -> None:
        self.change(state=TaskInstanceState.UP_FOR_RESCHEDULE)

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
        if self.state != TaskInstanceState.RESTARTING:
            return
        with self._ti() as (session, ti):
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
        found: str | None = self._backend.get(self.scope(self.current), key)
        return found

    def read(self, ti_id: UUID, key: str) -> str | None:
        """
        Get an entry as the execution API does, in less time.

        :return: None also if the task instance was given to another process, or is gone
        """
        found = _read(_ENTRY, run_id=self.run_id, key=key, ti_id=ti_id)
        return found[0].value if found else None

    def store(self, ti_id: UUID | None, operation: str, *values: str) -> None:
        """
        Set or delete an entry as the execution API does.

        :param ti_id: of the process that asks; None for one of which that was checked before
        :raises AirflowRuntimeError: if the task instance was given to another process, or is gone
        """
        found = [self.current] if ti_id is None else _read(_TRY_OF_PROCESS, ti_id=ti_id)
        if not found:
            raise store_error()
        (ti,) = found
        with create_session() as session:
            getattr(self._backend, operation)(self.scope(ti), *values, session=session)

    @property
    def entries(self) -> dict[str, str]:
        """All entries of the task instance, as text."""
        return dict(_read(_ENTRIES, run_id=self.run_id))

    def put(self, key: str, value: object) -> None:
        """Write an entry, as a person does under Storage."""
        self.store(None, "set", key, json.dumps(value))
