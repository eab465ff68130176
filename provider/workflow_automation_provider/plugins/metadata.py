"""
What a callback changes in Airflow's metadata database: everything that knows Airflow's models is here.

**Find.** The hash of the token is part of a key in the task state store; no index begins with the key. First
the entries of tasks that are about to run, run or wait are looked through, by indexes: they are few. Only then
all others, which takes longer the more entries there are.

**Lock.** The task instance first, then its question under **Required Actions**, as Airflow does when it parks a
task, when a person answers and when a task is cleared: nobody waits for each other forever. SQLite has no locks
for rows; there, one transaction writes at a time.

**Store.** The entry's key must be that of the task instance's ``max_tries``, which a Clear changes.

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
from typing import TYPE_CHECKING, Any, cast

from workflow_automation_provider.execution.callback import (
    CALLBACK_USER,
    OPTIONS,
    Answer,
    CallbackRow,
    row_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

__all__ = [
    "Answered",
    "OpenQuestion",
    "Outcome",
    "UnavailableError",
    "missing",
    "open_questions",
    "respond",
    "resume",
    "settle",
]

# Where a task instance is, and where its entries are: a mapped task has either a map_index or, from Airflow
# 3.4 on, a region.
_COORDINATES = ("dag_id", "run_id", "task_id", "map_index", "region_id", "region_index")

# States of a task that a callback usually finds; a task may also have none for a moment.
_LIKELY_STATES = ("awaiting_input", "running", "scheduled", "queued", "up_for_retry")

# The scheduler has handled the executor's message about the parked task by then.
_WAKE_AFTER = timedelta(seconds=5)

# In milliseconds, on PostgreSQL. SQLite waits for its lock as long as its URL says.
_LOCK_TIMEOUT = 5000

# How often a task instance may be replaced by its next try while it is being locked.
_ATTEMPTS = 3


class Outcome(enum.Enum):
    """The outcome of a callback."""

    ACCEPTED = "accepted"
    """The task has the answer, or has been woken to read it."""
    STORED = "stored"
    """The answer is stored; the task is not parked, but may be about to park without having seen it."""
    UNKNOWN = "unknown"
    """No task waits for it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The task has another answer."""

    row: CallbackRow


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


def settle(digest: str, answer: Answer, *, anywhere: bool = False) -> Outcome | Answered:
    """
    Store an answer for the task that waits for it, and wake the task if it is parked.

    :param digest: the hash of the callback's token
    :param anywhere: look through the entries of all tasks, also of those that have ended; takes longer
    :return: the outcome, or the other answer that the task has
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with _transaction() as session:
        return _settle(session, digest, answer, anywhere=anywhere)


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


def _settle(session: Session, digest: str, answer: Answer, *, anywhere: bool) -> Outcome | Answered:
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.utils.state import State, TaskInstanceState
    from sqlalchemy import select

    found = _find(session, digest, anywhere=anywhere)  # without SQLite's lock: anybody may ask
    ti = None
    for _ in range(_ATTEMPTS):
        if found is None:
            return Outcome.UNKNOWN
        _limit_waiting(session)
        entry_id, ti_id = found
        if (ti := _lock(session, ti_id)) is not None:
            break
        session.rollback()
        found = _find(session, digest, anywhere=anywhere)
    if ti is None:
        raise UnavailableError("The task instance was replaced again and again.")
    entry = session.scalar(select(TaskStateStoreModel).where(TaskStateStoreModel.id == entry_id))
    if entry is None or entry.key != row_key(digest, ti.max_tries):
        return Outcome.UNKNOWN
    now = datetime.now(UTC)
    row = answer.row(now.isoformat(timespec="seconds"))
    earlier = _answer_in(entry.value)
    has_ended = ti.state in State.finished
    if ti.state == TaskInstanceState.RESTARTING or (has_ended and earlier is None):
        return Outcome.UNKNOWN
    if earlier is None:
        entry.value = json.dumps(row)
        entry.updated_at = now
    elif _comparable(earlier) != _comparable(row):
        return Answered(earlier)
    if ti.state == TaskInstanceState.AWAITING_INPUT:
        _wake(session, ti, answer, now)
        return Outcome.ACCEPTED
    return Outcome.ACCEPTED if has_ended else Outcome.STORED


def _find(session: Session, digest: str, *, anywhere: bool) -> tuple[int, UUID] | None:
    """Return the ids of the entry and of its task instance, None if there are none."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import String, cast, inspect, literal, select

    prefix = row_key(digest, None)
    columns = inspect(TaskStateStoreModel).column_attrs.keys()
    query = select(TaskStateStoreModel.id, TaskInstance.id).where(
        *(
            getattr(TaskStateStoreModel, name) == getattr(TaskInstance, name)
            for name in _COORDINATES
            if name in columns
        ),
        TaskStateStoreModel.key == literal(prefix) + cast(TaskInstance.max_tries, String),
    )
    if anywhere:
        query = query.where(TaskStateStoreModel.key.startswith(prefix, autoescape=True))
    else:
        query = query.where(TaskInstance.state.in_(_LIKELY_STATES))
    found = session.execute(query).first()
    return None if found is None else (found[0], found[1])


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


def _answer_in(value: str) -> CallbackRow | None:
    """Return the answer in an entry, None if there is none: a reference to another store is none."""
    try:
        row = json.loads(value)
    except ValueError:
        return None
    return cast("CallbackRow", row) if isinstance(row, dict) and "status" in row else None


def _comparable(row: CallbackRow) -> str:
    return json.dumps({**row, "at": None}, sort_keys=True)
