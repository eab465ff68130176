"""
What the page **Flow runs** reads of Airflow's metadata database: of the page, only this module knows Airflow's models.

Live tasks are found by the index of their states, and of these, by the index of the store, those that have entries
of ours. All else is read by their keys: the number of queries does not depend on that of the tasks.
Nothing is written or locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance
from airflow.state import resolve_state_backend
from airflow.state.metastore import MetastoreBackend
from airflow.utils.state import State
from sqlalchemy import and_, case, exists, func, inspect, select

from workflow_automation_provider.plugins import metadata, metadata_session

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import Session

PREFIX = "workflow_automation_"
"""What the keys of our entries begin with."""

MAX_TASKS = 1000
"""How many live tasks are read: the newest ones."""

_MAX_VALUE = 64 * 1024
"""In characters; an entry that is larger is not read."""

_BATCH = f"{PREFIX}batch_"
# Entries of which the list needs no more than that they are there. A batch counts itself in its last entry.
_KEYS_ONLY = (f"{PREFIX}upload", f"{PREFIX}token/", f"{PREFIX}end/", f"{PREFIX}probe", f"{PREFIX}run", _BATCH)

# In the order of FlowTask's fields.
_COLUMNS = (
    "id",
    "dag_id",
    "run_id",
    "task_id",
    "map_index",
    "state",
    "try_number",
    "max_tries",
    "start_date",
    "end_date",
    "next_kwargs",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An entry of the task state store.

    :param at: when it was last written
    :param value: None if it is not known: not read, too large, or kept elsewhere (``[workers] state_store_backend``)
    """

    at: datetime
    value: dict[str, Any] | None = None


@dataclass(slots=True)
class FlowTask:
    """
    A task instance with entries of ours.

    :param parked: what it was parked with
    :param rendered: its rendered template fields
    """

    id: UUID
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str
    try_number: int
    max_tries: int
    started: datetime | None
    ended: datetime | None
    parked: Mapping[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)
    rendered: Mapping[str, Any] = field(default_factory=dict)


def missing() -> str | None:
    """Return why this Airflow cannot show the page, None if it can."""
    if lacking := [name for name in _COLUMNS if not hasattr(TaskInstance, name)]:
        return f"This version of Airflow is not supported: TaskInstance has no {', '.join(lacking)}."
    if (backend := resolve_state_backend()) is not MetastoreBackend:
        return (
            f"[state_store] backend is {backend.__name__}; flow runs can be read from MetastoreBackend only."
        )
    return None


def live_tasks(dag_ids: Collection[str]) -> tuple[list[FlowTask], bool]:
    """
    Return the live tasks of these DAGs that have entries of ours, and whether there are more of them.

    :raises UnavailableError: if the database cannot be read
    """
    live = _task_columns().where(
        TaskInstance.state.in_([state for state in State.unfinished if state]),
        TaskInstance.dag_id.in_(dag_ids),
        _has_entries(),
    )
    newest = TaskInstance.start_date.desc(), TaskInstance.id
    with metadata_session.transaction() as session:
        rows = session.execute(live.order_by(*newest).limit(MAX_TASKS + 1)).all()
        tasks = [_task(row) for row in rows[:MAX_TASKS]]
        _read_entries(session, tasks)
        _read_values(session, tasks, _KEYS_ONLY)
        _read_rendered(session, [task for task in tasks if not _names_target(task)])
    return tasks, len(rows) > MAX_TASKS


def task(dag_id: str, run_id: str, task_id: str, map_index: int) -> FlowTask | None:
    """
    Return a task instance with all its entries of ours, None if there is no such task instance.

    :raises UnavailableError: if the database cannot be read
    """
    one = _task_columns().where(
        TaskInstance.dag_id == dag_id,
        TaskInstance.run_id == run_id,
        TaskInstance.task_id == task_id,
        TaskInstance.map_index == map_index,
    )
    with metadata_session.transaction() as session:
        row = session.execute(one).first()
        if row is None:
            return None
        flow_task = _task(row)
        _read_entries(session, [flow_task])
        # The text of a batch's items is in its output.
        _read_values(session, [flow_task], (f"{PREFIX}upload", f"{PREFIX}probe", _BATCH))
        if flow_task.entries:
            _read_rendered(session, [flow_task])
    return flow_task


def _task_columns() -> Select[Any]:
    return select(*(getattr(TaskInstance, name) for name in _COLUMNS))


def _task(row: Any) -> FlowTask:
    values: list[Any] = [*row]
    if not isinstance(values[-1], dict):
        values[-1] = {}
    return FlowTask(*values)


def _same(model: Any) -> ColumnElement[bool]:
    """Return the condition under which a row of another table is about the task instance."""
    columns = inspect(model).column_attrs.keys()
    names = [name for name in metadata._COORDINATES if name in columns]
    return and_(*(getattr(model, name) == getattr(TaskInstance, name) for name in names))


def _has_entries() -> ColumnElement[bool]:
    return exists().where(_same(Store), Store.key.startswith(PREFIX, autoescape=True))


def _read_entries(session: Session, tasks: Collection[FlowTask]) -> None:
    """Read which entries the tasks have, without their values."""
    if not tasks:
        return
    by_id = {task.id: task for task in tasks}
    query = (
        select(TaskInstance.id, Store.key, Store.updated_at)
        .join(Store, _same(Store))
        .where(TaskInstance.id.in_(by_id), Store.key.startswith(PREFIX, autoescape=True))
        .order_by(Store.id)
    )
    for ti_id, key, at in session.execute(query):
        by_id[ti_id].entries[key] = Entry(at)


def _read_values(session: Session, tasks: Iterable[FlowTask], without: tuple[str, ...]) -> None:
    """
    Read the values of entries.

    :param without: what the keys begin with whose values are not needed; but the last of a batch is
    """
    by_id = {task.id: task for task in tasks}
    keys = {key for task in by_id.values() for key in task.entries if not key.startswith(without)}
    keys |= {last for task in by_id.values() if (last := _last_of_batch(task))}
    if not keys:
        return
    value = case((func.length(Store.value) <= _MAX_VALUE, Store.value))
    query = (
        select(TaskInstance.id, Store.key, value)
        .join(Store, _same(Store))
        .where(TaskInstance.id.in_(by_id), Store.key.in_(keys))
    )
    for ti_id, key, text in session.execute(query):
        entry = by_id[ti_id].entries.get(key)
        if entry and (not key.startswith(_BATCH) or key == _last_of_batch(by_id[ti_id])):
            by_id[ti_id].entries[key] = Entry(entry.at, metadata.json_object(text) or None)


def _last_of_batch(task: FlowTask) -> str | None:
    numbers = [key[len(_BATCH) :] for key in task.entries if key.startswith(_BATCH)]
    return f"{_BATCH}{max(map(int, numbers))}" if numbers and all(map(str.isdecimal, numbers)) else None


def _read_rendered(session: Session, tasks: Iterable[FlowTask]) -> None:
    by_id = {task.id: task for task in tasks}
    if by_id:
        by_try = hasattr(Rendered, "task_instance_id")  # Airflow 3.4+
        same = Rendered.task_instance_id == TaskInstance.id if by_try else _same(Rendered)
        query = (
            select(TaskInstance.id, Rendered.rendered_fields)
            .join(Rendered, same)
            .where(TaskInstance.id.in_(by_id))
        )
        for ti_id, fields in session.execute(query):
            by_id[ti_id].rendered = fields if isinstance(fields, dict) else {}


def _names_target(task: FlowTask) -> bool:
    return any("conn_id" in (entry.value or {}) for entry in task.entries.values())
