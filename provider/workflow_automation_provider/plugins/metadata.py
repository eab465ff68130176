"""
What a run that calls Airflow reads and changes in the metadata database.

**Find.** The token has the id of the task instance that made it: two queries by primary key find the task, also
if a retry has changed its id since, and one its entries. :func:`is_known` makes no other, takes no lock, and is all that a
stranger gets.

**Lock.** The DAG run, the task instance, and the start that gave out the token: in the order in which Airflow locks them
when it parks a task and when a task is cleared. After that the entries are read again, in a statement of its own: one that
has waited for a lock may not see what was written meanwhile. To close a start, its task writes it once more, and so waits
for what is decided here. SQLite has no locks for rows; there, one transaction writes at a time.

**Wake.** A parked task is not resumed from here: until the scheduler has handled its executor's message that the task
has left the worker, Airflow takes a task that is queued again for one that was lost, and fails it. Its timeout is
lowered instead, and the scheduler, which looks for timeouts after it has read such messages, resumes it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import insert, inspect, or_, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import lazyload

from workflow_automation_provider.execution.callback import Ended, Running, digest_of, task_of
from workflow_automation_provider.execution.ledger import (
    START,
    START_KEY,
    End,
    Spoken,
    Start,
    entry_of,
    frozen_key,
    place_of,
    run_key,
    word_key,
)
from workflow_automation_provider.plugins.decision import Seen, Verdict, decide

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy.orm import Session

    from workflow_automation_provider.execution.callback import Said

COORDINATES = ("dag_id", "run_id", "task_id", "map_index", "region_id", "region_index")
"""Where a task instance is, and its entries: a mapped task has either a map_index or, from Airflow 3.4 on, a region."""

# The scheduler has handled the executor's message about the parked task by then.
_WAKE_AFTER = timedelta(seconds=5)

_TASKS: dict[str | None, Literal["runs", "restarts", "parked", "green"]] = {
    TaskInstanceState.RUNNING: "runs",
    TaskInstanceState.RESTARTING: "restarts",
    TaskInstanceState.AWAITING_INPUT: "parked",
    TaskInstanceState.SUCCESS: "green",
}


class UnavailableError(Exception):
    """Airflow cannot respond to a callback now, but may later. Never says what was to be stored."""


def missing() -> str | None:
    """Return why this Airflow cannot take callbacks, None if it can."""
    needed: list[tuple[Any, tuple[str, ...]]] = [
        (TaskInstance, ("id", "state", "max_tries", "trigger_timeout")),
        (Store, ("id", "key", "value", "updated_at", "dag_id", "run_id", "task_id")),
        (TaskInstanceState, ("AWAITING_INPUT", "RESTARTING")),
    ]
    for owner, names in needed:
        if lacking := [name for name in names if not hasattr(owner, name)]:
            return f"This version of Airflow is not supported: {owner.__name__} has no {', '.join(lacking)}."
    return None


def is_known(token: str) -> bool:
    """
    Tell whether a task has given out this token.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with _transaction() as session:
        task = _find(session, task_of(token))
        return task is not None and _entries(session, task, digest_of(token)).giver is not None


def respond(token: str, said: Said) -> tuple[Verdict, End | None]:
    """
    Decide what to say to a run, and store what it says.

    :param said: what it sends
    :return: that, and the end that its start has
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    digest = digest_of(token)
    if isinstance(said, Running):
        # Mostly, there is nothing to record but the word.
        with _transaction(writes=True) as session:
            task = _find(session, task_of(token))
            if task is None:
                return Verdict.STOP, None
            verdict, before, after = _decide(session, task, digest, said)
            if after == before:
                _write_word(session, task, digest, said, verdict)
                return verdict, after.end
    with _transaction(writes=True) as session:
        task = _find(session, task_of(token))
        if task is None or not _lock(session, task, digest):
            return Verdict.STOP, None
        verdict, before, after = _decide(session, task, digest, said)
        if after != before:
            _write(session, task, run_key(digest), entry_of(after))
        _write_word(session, task, digest, said, verdict)
        if isinstance(said, Ended) and verdict in (Verdict.END, Verdict.SAME_END):
            _wake(task.ti)
        return verdict, after.end


@dataclass(slots=True)
class _Task:
    """
    A task instance.

    :param ti: its current try
    :param at: where it and its entries are
    """

    ti: TaskInstance
    at: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entries:
    """
    What the entries of a task instance say of a token.

    :param giver: the start that gave it out, None if there is none
    :param last: the last start
    """

    giver: Start | None
    last: Start | None
    spoken: Spoken
    is_frozen: bool


def _find(session: Session, ti_id: UUID) -> _Task | None:
    """Return the task instance that has this id, or had it in an earlier try; None if there is none."""
    columns = inspect(Store).column_attrs.keys()
    # Airflow 3.4 keeps the earlier tries beside the current one, and hides them from all but get().
    models: list[Any] = [TaskInstance]
    with contextlib.suppress(ImportError):
        from airflow.models.taskinstancehistory import TaskInstanceHistory

        models.append(TaskInstanceHistory)
    for model in models:
        if (ti := session.get(model, ti_id, options=[lazyload("*")])) is not None:
            at = {name: getattr(ti, name) for name in COORDINATES if name in columns}
            current = _current(session, at)
            return None if current is None else _Task(current, at)
    return None


def _current(session: Session, at: Mapping[str, Any], *, lock: bool = False) -> TaskInstance | None:
    query = select(TaskInstance).filter_by(**at).options(lazyload("*"))
    if lock:
        query = query.with_for_update(of=TaskInstance)
    query = query.execution_options(populate_existing=True)
    # Twice, as its next try, which is another row on Airflow 3.4, may begin while the lock is waited for.
    found: TaskInstance | None = session.scalar(query) or session.scalar(query)
    return found


def _lock(session: Session, task: _Task, digest: str) -> bool:
    """Lock what a decision rests on; return False if it is gone."""
    dag_run = select(DagRun.id).filter_by(dag_id=task.at["dag_id"], run_id=task.at["run_id"])
    if session.scalar(dag_run.with_for_update(read=True, key_share=True)) is None:
        return False
    ti = _current(session, task.at, lock=True)
    giver = _entries(session, task, digest).giver
    if ti is None or giver is None:
        return False
    task.ti = ti
    key = f"{START}{giver.try_number}/{giver.number}"
    return session.scalar(select(Store.id).filter_by(**task.at, key=key).with_for_update()) is not None


def _entries(session: Session, task: _Task, digest: str) -> _Entries:
    said = Store.key.in_([run_key(digest), frozen_key(digest)])
    query = select(Store.key, Store.value).filter_by(**task.at)
    query = query.where(or_(said, Store.key.startswith(START, autoescape=True)))
    entries = {entry.key: _object(entry.value) for entry in session.execute(query)}
    starts = [
        Start.of(place_of(place), value)
        for key, value in entries.items()
        # A start by name has no token.
        if (place := START_KEY.fullmatch(key)) and place[3] is None
    ]
    return _Entries(
        giver=next((start for start in starts if start.token == digest and start.run is None), None),
        last=max(starts, key=lambda start: start.place, default=None),
        spoken=Spoken.of(entries.get(run_key(digest))),
        is_frozen=frozen_key(digest) in entries,
    )


def _object(value: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(value)
        return found if isinstance(found, dict) else {}
    return {}


def _decide(session: Session, task: _Task, digest: str, said: Said) -> tuple[Verdict, Spoken, Spoken]:
    """Return what to say, and what the run had said before and has said after that."""
    found = _entries(session, task, digest)
    last = found.last
    if found.giver is None or last is None:
        return Verdict.STOP, found.spoken, found.spoken
    is_last, state = last.token == digest, task.ti.state
    seen = Seen(
        spoken=found.spoken,
        is_last=is_last,
        is_current=is_last and last.max_tries == task.ti.max_tries,
        is_frozen=found.is_frozen,
        waits=last.waits,
        entered=last.run["run_id"] if is_last and last.run else None,
        task=_TASKS.get(state) or ("ended" if state in State.finished else "idle"),
    )
    verdict, after = decide(said, seen, datetime.now(UTC))
    return verdict, found.spoken, after


def _wake(ti: TaskInstance) -> None:
    """Have the scheduler's next sweep of timeouts resume a task, if it is parked."""
    soon = datetime.now(UTC) + _WAKE_AFTER
    if ti.state == TaskInstanceState.AWAITING_INPUT and (
        ti.trigger_timeout is None or ti.trigger_timeout > soon
    ):
        ti.trigger_timeout = soon


def _write_word(session: Session, task: _Task, digest: str, said: Said, verdict: Verdict) -> None:
    """Keep the last word of a run that works."""
    if isinstance(said, Running) and verdict is Verdict.GO_ON:
        word = {"at": datetime.now(UTC).isoformat(), "message": said.message, "progress": said.progress}
        known = {name: value for name, value in word.items() if value is not None}
        _write(session, task, word_key(digest), known)


def _write(session: Session, task: _Task, key: str, value: Mapping[str, Any]) -> None:
    values = {"value": json.dumps(value), "updated_at": datetime.now(UTC)}
    change = update(Store).filter_by(**task.at, key=key).values(values)
    if session.execute(change.execution_options(synchronize_session=False)).rowcount:  # type: ignore[attr-defined]
        return
    dag_run = select(DagRun.id).filter_by(dag_id=task.at["dag_id"], run_id=task.at["run_id"])
    # At once, while waiting for locks is bounded.
    session.execute(insert(Store).values(dag_run_id=session.scalar(dag_run), key=key, **values, **task.at))


@contextlib.contextmanager
def _transaction(*, writes: bool = False) -> Iterator[Session]:
    """
    Open a session, and commit it at the end.

    :param writes: whether it may wait for locks, for a short time
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    try:
        with create_session() as session, _bounded(session) if writes else contextlib.nullcontext():
            yield session
    except SQLAlchemyError as error:
        # The error's text has the statement's parameters, and with them what was said.
        words = type(error).__name__
        if isinstance(error, OperationalError):
            words = str(error.orig).partition("\n")[0]
        elif isinstance(error, DBAPIError):
            words = type(error.orig).__name__
        raise UnavailableError(words) from None


@contextlib.contextmanager
def _bounded(session: Session) -> Iterator[None]:
    """Wait for others' locks for a moment, not forever; on SQLite, take its one lock for writing."""
    name = session.get_bind().dialect.name
    if name == "sqlite":
        session.execute(text("BEGIN IMMEDIATE"))
    elif name == "postgresql":
        session.execute(text("SET LOCAL lock_timeout = '500ms'"))
    elif name == "mysql":
        # Whole seconds only, and it outlives the session in the pool.
        before = session.scalar(text("SELECT @@SESSION.innodb_lock_wait_timeout"))
        session.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
        try:
            yield
        finally:
            session.execute(text(f"SET SESSION innodb_lock_wait_timeout = {int(before)}"))
        return
    yield
