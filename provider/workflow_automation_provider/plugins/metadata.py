"""
What a callback changes in Airflow's metadata database: everything that knows Airflow's models is here.

**Find.** The token has the id of the task instance that made it: two queries by primary key find the task, also
if a retry has changed its id since, and one by an index its entries. :func:`is_known` makes no other, takes no
lock, and is all that a stranger gets.

**Lock.** The DAG run, the task instance, the token's entry, and then the question under **Required Actions**: in
the order in which Airflow locks them when it parks a task, when a person answers and when a task is cleared, so
that nobody waits for each other forever. The task deletes the token's entry without a lock of its own: the
deletion waits for the answer, or the answer finds no entry. SQLite has no locks for rows; there, one transaction
writes at a time.

**Store.** The key of the token's entry must be that of the task instance's ``max_tries``, which a Clear changes.

**Wake.** A parked task is not resumed from here: until the scheduler has handled its executor's message that
the task has left the worker, Airflow takes a task that is queued again for one that was lost, and fails it.
Its timeout is lowered instead, and the scheduler, which looks for timeouts after it has read such messages,
resumes it. ``airflow dags test`` has no scheduler, and resumes whatever is *scheduled*.
"""

from __future__ import annotations

import contextlib
import enum
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.execution.callback import (
    CALLBACK_USER,
    OPTIONS,
    Answer,
    digest_of,
    end_key,
    receipt_key,
    task_of,
    token_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from airflow.models.hitl import HITLDetail
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

__all__ = [
    "Answered",
    "OpenQuestion",
    "Outcome",
    "UnavailableError",
    "is_known",
    "missing",
    "open_questions",
    "respond",
    "resume",
    "settle",
]

# Where a task instance is, and where its entries are: a mapped task has either a map_index or, from Airflow
# 3.4 on, a region.
_COORDINATES = ("dag_id", "run_id", "task_id", "map_index", "region_id", "region_index")

# The scheduler has handled the executor's message about the parked task by then.
_WAKE_AFTER = timedelta(seconds=5)

# In milliseconds, on PostgreSQL. SQLite waits for its lock as long as its URL says.
_LOCK_TIMEOUT = 3000


class Outcome(enum.Enum):
    """The outcome of a callback."""

    STORED = "stored"
    """The task has the answer."""
    UNKNOWN = "unknown"
    """No task waits for it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """
    The task has another answer.

    :param status: the other answer's
    :param at: when it came, as ISO 8601 text
    """

    status: str
    at: str


class UnavailableError(Exception):
    """The answer could not be stored, but may be later. Never says what was to be stored."""


def missing() -> str | None:
    """Return why this Airflow cannot take callbacks, None if it can."""
    try:
        from airflow.models.hitl import HITLDetail
        from airflow.models.task_state_store import TaskStateStoreModel
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.trigger import handle_event_submit  # noqa: F401
        from airflow.state import resolve_state_backend
        from airflow.state.metastore import MetastoreBackend
        from airflow.triggers.base import TriggerEvent  # noqa: F401
        from airflow.utils.state import TaskInstanceState
    except ImportError:
        return "Callbacks need Airflow 3.3 or newer, which can park a task and keeps its state."
    needed: list[tuple[Any, tuple[str, ...]]] = [
        (TaskInstance, ("id", "state", "max_tries", "trigger_timeout", "queued_by_job_id")),
        (TaskStateStoreModel, ("id", "key", "value", "updated_at", "dag_id", "run_id", "task_id")),
        (HITLDetail, ("ti_id", "options", "chosen_options", "params_input", "responded_at", "responded_by")),
        (TaskInstanceState, ("AWAITING_INPUT", "RESTARTING")),
    ]
    for owner, names in needed:
        if lacking := [name for name in names if not hasattr(owner, name)]:
            return f"This version of Airflow is not supported: {owner.__name__} has no {', '.join(lacking)}."
    if (backend := resolve_state_backend()) is not MetastoreBackend:
        return (
            f"[state_store] backend is {backend.__name__}, which is not supported; expected MetastoreBackend, "
            "which keeps the entries in the metadata database. [workers] state_store_backend may be any."
        )
    return None


def is_known(token: str) -> bool:
    """
    Tell whether a task has given out this token, and has not been cleared since.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with _transaction() as session:
        task = _find(session, token)
        return task is not None and (task.token is not None or task.receipt is not None)


def settle(token: str, answer: Answer) -> Outcome | Answered:
    """
    Store an answer for the task that waits for it, and wake the task if it is parked.

    :return: the outcome, or the other answer that the task has
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with _transaction() as session:
        _limit_waiting(session)
        task = _find(session, token, lock=True)
        return Outcome.UNKNOWN if task is None else _settle(session, task, token, answer)


@contextlib.contextmanager
def _transaction() -> Iterator[Session]:
    """
    Open a session, and commit it at the end.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    from airflow.utils.session import create_session
    from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

    try:
        with create_session() as session:
            yield session
    except SQLAlchemyError as error:
        # The error's text has the statement's parameters, and with them the answer.
        words = type(error).__name__
        if isinstance(error, OperationalError):
            words = str(error.orig).partition("\n")[0]
        elif isinstance(error, DBAPIError):
            words = type(error.orig).__name__
        raise UnavailableError(words) from None


@dataclass(frozen=True, slots=True)
class _Task:
    """
    The task instance that a token belongs to.

    :param ti: its current try
    :param at: where it and its entries are
    :param dag_run_id: of its DAG run; known only if it is locked
    :param token: the token's entry, None if the token does not count, or no longer
    :param receipt: what there is of an earlier answer, None if there was none since the last Clear
    """

    ti: TaskInstance
    at: dict[str, Any]
    dag_run_id: int | None
    token: TaskStateStoreModel | None
    receipt: dict[str, Any] | None


def _find(session: Session, token: str, *, lock: bool = False) -> _Task | None:
    """
    Return the task instance that a token belongs to, None if there is none.

    :param lock: the DAG run, the task instance and the token's entry, in this order
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    at = _coordinates(session, task_of(token))
    if at is None:
        return None
    dag_run_id = None
    if lock:
        dag_run = select(DagRun.id).where(DagRun.dag_id == at["dag_id"], DagRun.run_id == at["run_id"])
        # What is stored below refers to it: to lock it after the task instance could be a deadlock.
        dag_run_id = session.scalar(dag_run.with_for_update(read=True, key_share=True))
    task = select(TaskInstance).where(*_at(TaskInstance, at)).options(*_without_others())
    if lock:
        task = task.with_for_update(of=TaskInstance)
    task = task.execution_options(populate_existing=True)
    # Twice, as its next try, which is another row on Airflow 3.4, may begin while the lock is waited for.
    ti = session.scalar(task) or session.scalar(task)
    if ti is None:
        return None
    digest = digest_of(token)
    keys = [token_key(digest, ti.max_tries), receipt_key(digest)]
    query = select(TaskStateStoreModel).where(
        *_at(TaskStateStoreModel, at), TaskStateStoreModel.key.in_(keys)
    )
    if lock:
        query = query.with_for_update()
    entries = {entry.key: entry for entry in session.scalars(query)}
    receipt = json.loads(entries[keys[1]].value) if keys[1] in entries else None
    if keys[0] not in entries and receipt is not None and receipt["max_tries"] != ti.max_tries:
        receipt = None
    return _Task(ti, at, dag_run_id, entries.get(keys[0]), receipt)


def _coordinates(session: Session, ti_id: UUID) -> dict[str, Any] | None:
    """Return where the task instance is that has this id, or had it in an earlier try."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import inspect

    columns = inspect(TaskStateStoreModel).column_attrs.keys()
    # Airflow 3.4 keeps the earlier tries beside the current one, and hides them from all but get().
    models: list[Any] = [TaskInstance]
    with contextlib.suppress(ImportError):
        from airflow.models.taskinstancehistory import TaskInstanceHistory

        models.append(TaskInstanceHistory)
    for model in models:
        if (ti := session.get(model, ti_id, options=_without_others())) is not None:
            return {name: getattr(ti, name) for name in _COORDINATES if name in columns}
    return None


def _without_others() -> Sequence[Any]:
    """Return the options with which a query reads nothing but the rows that it asks for."""
    from sqlalchemy.orm import lazyload

    return [lazyload("*")]


def _at(model: Any, coordinates: dict[str, Any]) -> list[Any]:
    return [getattr(model, name) == value for name, value in coordinates.items()]


def _settle(session: Session, task: _Task, token: str, answer: Answer) -> Outcome | Answered:
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.utils.state import State, TaskInstanceState

    ti, receipt, now = task.ti, task.receipt, datetime.now(UTC)
    fingerprint = answer.fingerprint(token)
    if receipt is None:
        if task.token is None or ti.state in {*State.finished, TaskInstanceState.RESTARTING}:
            return Outcome.UNKNOWN
        at = now.isoformat(timespec="seconds")
        receipt = {
            "status": answer.status,
            "at": at,
            "fingerprint": fingerprint,
            "max_tries": ti.max_tries,
        }
        digest = digest_of(token)
        for key, value in ((end_key(digest), answer.row(at)), (receipt_key(digest), receipt)):
            session.add(
                TaskStateStoreModel(dag_run_id=task.dag_run_id, key=key, value=json.dumps(value), **task.at)
            )
    elif receipt["fingerprint"] != fingerprint:
        return Answered(receipt["status"], receipt["at"])
    if ti.state == TaskInstanceState.AWAITING_INPUT:
        _wake(session, ti, answer, now)
    return Outcome.STORED


def _limit_waiting(session: Session) -> None:
    """Wait for others' locks for seconds, not forever; on SQLite, take its one lock for writing."""
    from sqlalchemy import text

    match session.get_bind().dialect.name:
        case "sqlite":
            session.execute(text("BEGIN IMMEDIATE"))
        case "postgresql":
            session.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}ms'"))


def _lock(session: Session, ti_id: UUID) -> TaskInstance | None:
    """Return the task instance, None if its next try has replaced it."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    found: TaskInstance | None = session.scalar(
        select(TaskInstance)
        .where(TaskInstance.id == ti_id)
        .with_for_update(of=TaskInstance)
        .execution_options(populate_existing=True)
    )
    return found


def _wake(session: Session, ti: TaskInstance, answer: Answer, now: datetime) -> None:
    detail = _lock_question(session, ti.id)
    if detail is not None and detail.responded_at is None:
        option = OPTIONS[answer.status]
        detail.responded_at = now
        detail.responded_by = {"id": CALLBACK_USER, "name": "The flow's callback"}
        detail.chosen_options = [option] if option in detail.options else []
        detail.params_input = {}
    if ti.queued_by_job_id is None:
        _resume(session, ti, detail)
    elif ti.trigger_timeout is None or ti.trigger_timeout > now + _WAKE_AFTER:
        ti.trigger_timeout = now + _WAKE_AFTER


def _lock_question(session: Session, ti_id: UUID) -> HITLDetail | None:
    from airflow.models.hitl import HITLDetail
    from sqlalchemy import select

    found: HITLDetail | None = session.scalar(
        select(HITLDetail).where(HITLDetail.ti_id == ti_id).with_for_update(of=HITLDetail)
    )
    return found


def _resume(session: Session, ti: TaskInstance, detail: HITLDetail | None) -> None:
    """Resume a parked task that no scheduler knows of."""
    from airflow.models.trigger import handle_event_submit
    from airflow.triggers.base import TriggerEvent

    payload = {} if detail is None else detail.as_resume_event_payload()
    event = TriggerEvent(payload)  # type: ignore[no-untyped-call]
    handle_event_submit(event, task_instance=ti, session=session)


# For tests, which have no scheduler and nobody to answer ------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """
    A question under **Required Actions** that a task waits for.

    :param ti_id: of the task instance that asks
    :param map_index: -1 if the task is not mapped
    :param is_answered: whether it was answered, but the task is still parked
    """

    ti_id: UUID
    task_id: str
    map_index: int
    subject: str
    body: str
    options: Sequence[str]
    is_answered: bool


def open_questions() -> list[OpenQuestion]:
    """
    Return the questions of the tasks that are parked, oldest first.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    query = (
        select(HITLDetail, TaskInstance)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(TaskInstance.state == TaskInstanceState.AWAITING_INPUT)
        .order_by(HITLDetail.created_at)
    )
    with _transaction() as session:
        return [
            OpenQuestion(
                ti_id=ti.id,
                task_id=ti.task_id,
                map_index=ti.map_index,
                subject=detail.subject,
                body=detail.body or "",
                options=[*detail.options],
                is_answered=detail.responded_at is not None,
            )
            for detail, ti in session.execute(query)
        ]


def respond(ti_id: UUID, option: str, fields: dict[str, str], user: str) -> bool:
    """
    Answer a question as a person does, and resume the task if it is parked.

    :param fields: text fields that are filled in
    :param user: id of the person
    :return: whether the question was still open
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with _transaction() as session:
        _limit_waiting(session)
        ti, detail = _lock(session, ti_id), _lock_question(session, ti_id)
        if ti is None or detail is None or detail.responded_at is not None:
            return False
        detail.responded_at = datetime.now(UTC)
        detail.responded_by = {"id": user, "name": user}
        detail.chosen_options = [option]
        detail.params_input = fields
        if ti.state == "awaiting_input":
            _resume(session, ti, detail)
        return True


def resume(ti_id: UUID) -> None:
    """
    Resume a task whose question was answered, if it is parked.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with _transaction() as session:
        _limit_waiting(session)
        ti, detail = _lock(session, ti_id), _lock_question(session, ti_id)
        if ti is not None and ti.state == "awaiting_input" and detail is not None and detail.responded_at:
            _resume(session, ti, detail)
