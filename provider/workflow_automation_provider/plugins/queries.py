"""
The tasks that have starts, with their entries, read from the metadata database.

Nothing is written or locked, and more tasks take no more queries.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import and_, func, select

from workflow_automation_provider.execution.batch.batch_record import BATCH
from workflow_automation_provider.execution.errors import clear_drops_state
from workflow_automation_provider.execution.record.entries import PREFIX
from workflow_automation_provider.plugins.callback_store import COORDINATES, json_value
from workflow_automation_provider.plugins.run_view import RunView, run_views
from workflow_automation_provider.plugins.task_starts import TaskNow

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

MAX_TASKS = 5000
"""How many tasks are read: the newest."""

MAX_ENTRIES = 1000
"""How many entries of one task are read for the page of all runs: the newest."""

COLUMNS = (
    "id",
    *COORDINATES,
    "map_index",
    "rendered_map_index",
    "state",
    "try_number",
    "max_tries",
    "start_date",
    "end_date",
)
_place = attrgetter(*COORDINATES)
_IS_OURS = Store.key.startswith(PREFIX, autoescape=True)
_IS_OF_TASK = and_(*(getattr(Store, name) == getattr(TaskInstance, name) for name in COORDINATES))

_OURS = select(Store.id).where(_IS_OF_TASK, _IS_OURS).correlate(TaskInstance).limit(1)
# Not exists(): PostgreSQL may take that for a join, and begin with all entries. Where 100,000 tasks
# have failed, it then takes half a minute in place of a second.
HAS_OURS = _OURS.scalar_subquery().is_not(None)
"""Whether a task has an entry of this package."""


class Task(NamedTuple):
    """
    A task instance with its entries.

    :param row: its columns
    :param entries: the values of its entries, None where one cannot be read; of a batch, only the
        last
    """

    row: Any
    entries: dict[str, Any]

    @property
    def now(self) -> TaskNow:
        """What Airflow says of it."""
        row = self.row
        return TaskNow(
            state=row.state,
            try_number=row.try_number,
            max_tries=row.max_tries,
            ended_at=row.end_date,
            drops_state=clear_drops_state(),
        )

    @property
    def runs(self) -> list[RunView]:
        """Its starts, and its batch."""
        return run_views(self.row, self.now, self.entries)


def read(*conditions: Any, max_entries: int | None = None) -> tuple[list[Task], bool]:
    """
    Return the newest tasks, and whether there is more that was not read.

    :param conditions: which tasks
    :param max_entries: how many entries of each are read at most, None for all
    """
    with create_session() as session:
        rows = session.execute(_tasks_query(conditions).limit(MAX_TASKS + 1)).all()
        tasks = {_place(row): Task(row, {}) for row in rows[:MAX_TASKS]}
        _read_starts(session, tasks, max_entries)
        _read_batches(session, tasks)

    found = list(tasks.values())
    has_more = len(rows) > MAX_TASKS or any(len(task.entries) == max_entries for task in found)
    return found, has_more


def _tasks_query(conditions: Iterable[Any]) -> Select[Any]:
    # A batch's last entry says enough: it is the end of what an index has of the task.
    of_batch = Store.key.startswith(BATCH, autoescape=True)
    entries = select(Store.id).where(Store.dag_run_id == DagRun.id, _IS_OF_TASK, of_batch)
    last_of_batch = entries.order_by(Store.key.desc()).limit(1).scalar_subquery()

    date = func.coalesce(DagRun.logical_date, DagRun.run_after)
    columns = [getattr(TaskInstance, name) for name in COLUMNS]
    columns += [date.label("date"), last_of_batch.label("batch")]
    same_run = and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id)
    query = select(*columns).join(DagRun, same_run).where(*conditions)
    return query.order_by(TaskInstance.start_date.desc(), TaskInstance.id)


def _entries_query(*conditions: Any) -> Select[Any]:
    query = select(*_place(Store), Store.key, Store.value).join(TaskInstance, _IS_OF_TASK)
    return query.where(*conditions)


def _read_starts(
    session: Session, tasks: Mapping[Any, Task], max_entries: int | None = None
) -> None:
    """Add the entries of tasks without a batch: a start is older than the rest of its entries."""
    ids = [task.row.id for task in tasks.values() if not task.row.batch]
    query = _entries_query(TaskInstance.id.in_(ids), _IS_OURS)
    if max_entries:
        of_task = func.row_number().over(partition_by=_place(Store), order_by=Store.id.desc())
        numbered = query.add_columns(of_task.label("number")).subquery()
        query = select(numbered).where(numbered.c.number <= max_entries)

    for entry in session.execute(query):
        tasks[_place(entry)].entries[entry.key] = json_value(entry.value)


def _read_batches(session: Session, tasks: Mapping[Any, Task]) -> None:
    """Add the last entry of each batch."""
    ids = [task.row.batch for task in tasks.values() if task.row.batch]
    for entry in session.execute(_entries_query(Store.id.in_(ids))):
        tasks[_place(entry)].entries[BATCH] = json_value(entry.value)


# Items of a batch ---------------------------------------------------------------------------------


class Items(NamedTuple):
    """
    The items of a batch that have no run that is known.

    :param first: the first of them, as entries have them
    :param others: how many more there are
    """

    first: tuple[Mapping[str, Any], ...] = ()
    others: int = 0


def items_without_run(task: Task, limit: int) -> Items:
    """
    Return the items of a batch that are unknown, unidentified or rejected.

    :param limit: how many at most
    """
    row = task.row
    if not row.batch:
        return Items()
    is_sent = row.state == TaskInstanceState.RUNNING
    return _items_without_run(_place(row), row.batch, row.max_tries, is_sent, limit)


# An entry never changes, so the same last one means the same items.
@functools.lru_cache(maxsize=64)
def _items_without_run(
    place: tuple[Any, ...], last_id: int, max_tries: int, is_sent: bool, limit: int
) -> Items:
    """
    Read the items from all the entries of a batch.

    :param last_id: the id of its last entry
    :param is_sent: whether its items are being sent: an open item is then not unknown
    """
    is_of_task = [
        getattr(Store, name) == value for name, value in zip(COORDINATES, place, strict=True)
    ]
    is_of_batch = Store.key.startswith(BATCH, autoescape=True)
    is_known = Store.id <= last_id
    query = select(Store.value).where(*is_of_task, is_of_batch, is_known)

    items: dict[int, dict[str, Any]] = {}
    with create_session() as session:
        for value in session.scalars(query.order_by(Store.key).execution_options(yield_per=100)):
            # A person may have damaged one.
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                entry = json_value(value)
                if entry.get("max_tries") == max_tries:
                    _add_items(items, entry)

    found = sorted(index for index, item in items.items() if "why" in item or not is_sent)
    first = tuple({"index": index, **items[index]} for index in found[:limit])
    return Items(first, len(found) - len(first))


def _add_items(items: dict[int, dict[str, Any]], entry: Mapping[str, Any]) -> None:
    """Add the items without a run of an entry, and remove those that have one by now."""
    for index in entry.get("opened", {}):
        items[int(index)] = {"status": "unknown"}

    for index, key in entry.get("keys", {}).items():
        items[int(index)]["key"] = key

    for index, item in entry.get("results", {}).items():
        opened = items.pop(int(index), {})
        if item["status"] in ("rejected", "unknown", "unidentified"):
            items[int(index)] = opened | item
