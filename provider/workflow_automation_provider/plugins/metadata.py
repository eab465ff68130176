"""
What a run that calls Airflow reads and changes in the metadata database.

**Find.** The token has the id of the task instance that made it: two queries by primary key find
the task, even if a retry has changed its id since, and one its entries. :func:`is_known` makes no
other query, takes no lock, and is all that a stranger gets.

**Lock.** The DAG run, the task instance, and the start that gave out the token: in the order in
which Airflow locks them when it suspends or clears a task. Then the entries are read again, in a
statement of its own: one that has waited for a lock may not see what was written meanwhile. To
revoke a token, its task writes the start again, and so waits for what is decided here. SQLite locks
no rows: one transaction writes at a time.

**Wake.** A task that waits is not resumed from here: until the scheduler has handled its executor's
message that the task has left the worker, Airflow takes a task that is queued again for one that
was lost, and fails it. Its timeout is lowered instead, to what is surely after that message, and
the scheduler's sweep of timeouts resumes it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from msgspec.structs import replace
from sqlalchemy import insert, or_, select, text, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import lazyload

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.callbacks.report import (
    Ended,
    Running,
    digest_of,
    task_of,
)
from workflow_automation_provider.execution.callbacks.wait import MIN_SLEEP
from workflow_automation_provider.execution.starts.entries import (
    START,
    START_KEY,
    End,
    Entry,
    Start,
    entry_of,
    message_key,
    place_of,
    read_message,
    read_start,
    revoked_key,
    run_key,
    start_key,
)
from workflow_automation_provider.execution.starts.ledger import facts_of
from workflow_automation_provider.plugins.decision import Seen, Verdict, decide

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

    from workflow_automation_provider.execution.callbacks.report import Report

_POSSIBLE_COORDINATES = ("dag_id", "run_id", "task_id", "map_index", "region_id", "region_index")
COORDINATES = tuple(name for name in _POSSIBLE_COORDINATES if hasattr(Store, name))
"""
The columns that identify a task instance.

Those of a mapped task differ by map_index or, from Airflow 3.4 on, by region.
"""


class UnavailableError(Exception):
    """Airflow cannot respond to a callback now, but may later. Never contains the body."""


def is_known(token: str) -> bool:
    """
    Return whether a task has given out this token.

    :raises UnavailableError: if the database is locked or cannot be reached, or a person has
        damaged a start
    """
    with _transaction() as session:
        ti = _find(session, token)
        return ti is not None and _read(session, ti, digest_of(token)) is not None


def respond(token: str, report: Report) -> tuple[Verdict, End | None]:
    """
    Decide what to say to a run, and store what it reports.

    :return: the verdict, and the end that the run has reported
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    digest, now = digest_of(token), datetime.now(UTC)
    with _locked(token) as (session, ti, seen):
        if seen is None:
            return Verdict.STOP, None

        verdict, after = decide(report, seen, now)
        if after != seen.reports:
            _write(session, ti, run_key(digest), after)

        if isinstance(report, Running) and verdict is Verdict.GO_ON:
            _change_message(
                session,
                ti,
                digest,
                at=now,
                message=report.message or "",
                progress=report.progress,
            )

        if isinstance(report, Ended) and verdict is Verdict.END:
            _wake(ti)
        if verdict is Verdict.STOP and _lacks_run_id(report, seen):
            why = "404: the end has no run_id, and the run has sent one before"
            _change_message(session, ti, digest, refused_at=now, refusal=why)

        return verdict, after.end


def _lacks_run_id(report: Report, seen: Seen) -> bool:
    """Return whether an end is refused because it does not say which run it is of."""
    is_nameless_end = isinstance(report, Ended) and report.run_id is None
    return is_nameless_end and bool(seen.reports.run_ids) and not seen.reports.stopped


def note_refusal(token: str, why: str) -> None:
    """
    Store that a call was refused for its form: the flow may not tell people.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    now = datetime.now(UTC)
    with _locked(token) as (session, ti, seen):
        if seen is not None:
            _change_message(session, ti, digest_of(token), refused_at=now, refusal=why)


@contextlib.contextmanager
def _locked(token: str) -> Iterator[tuple[Session, Any, Seen | None]]:
    """
    Open a session, and lock what a decision rests on.

    :return: the session; the task instance; and what is seen, None if that is gone
    """
    digest = digest_of(token)
    with _transaction(writes=True) as session:
        ti = _find(session, token)
        dag_run_goes_on = False
        if ti is not None:
            ti, dag_run_goes_on = _lock(session, ti, digest)

        found = None
        if ti is not None:
            # Again: what was read before the locks may have changed.
            found = _read(session, ti, digest, dag_run_goes_on=dag_run_goes_on)

        yield session, ti, found[1] if found else None


def _find(session: Session, token: str) -> TaskInstance | None:
    """Return the current try of the task instance that made a token; None if there is none."""
    ti_id, options = task_of(token), [lazyload("*")]
    ti: Any = session.get(TaskInstance, ti_id, options=options)
    # Airflow 3.4 keeps the earlier tries beside the current one, and hides them from all but get().
    with contextlib.suppress(ImportError):
        from airflow.models.taskinstancehistory import TaskInstanceHistory

        ti = ti or session.get(TaskInstanceHistory, ti_id, options=options)

    return ti and _current(session, _coordinates(ti))


def _coordinates(ti: Any) -> dict[str, Any]:
    """Return the columns and values that a task instance and its entries have in common."""
    return {name: getattr(ti, name) for name in COORDINATES}


def _current(
    session: Session, coordinates: Mapping[str, Any], *, lock: bool = False
) -> TaskInstance | None:
    """Return the current try of the task instance with these coordinates; None if there is none."""
    query = select(TaskInstance).filter_by(**coordinates).options(lazyload("*"))
    if lock:
        query = query.with_for_update(of=TaskInstance)
    query = query.execution_options(populate_existing=True)
    # Twice: while it waits for a lock, the next try may begin, which is another row on Airflow 3.4.
    found: TaskInstance | None = session.scalar(query) or session.scalar(query)
    return found


def _dag_run(ti: TaskInstance) -> Select[Any]:
    return select(DagRun.id).filter_by(dag_id=ti.dag_id, run_id=ti.run_id)


def _lock(session: Session, ti: TaskInstance, digest: str) -> tuple[TaskInstance | None, bool]:
    """
    Lock what a decision rests on.

    :return: the current try, None if any of that is gone, and whether its DAG run goes on
    """
    coordinates = _coordinates(ti)
    # By its primary key: InnoDB locks no more of a row than the index that it is found by.
    dag_run = select(DagRun.state).filter_by(id=_dag_run(ti).scalar_subquery())
    state = session.scalar(dag_run.with_for_update(read=True, key_share=True))
    if state is None:
        return None, False

    current = _current(session, coordinates, lock=True)
    if current is None:
        return None, False

    found = _read(session, current, digest)
    if found is None:
        return None, False

    start = select(Store.id).filter_by(**coordinates, key=found[0])
    if session.scalar(start.with_for_update()) is None:
        return None, False

    return current, state not in State.finished_dr_states


def _read(
    session: Session, ti: TaskInstance, digest: str, *, dag_run_goes_on: bool = False
) -> tuple[str, Seen] | None:
    """
    Return the key of the start that gave out a token, and what is seen of it; None if none did.

    :param dag_run_goes_on: whether the task's DAG run has not ended
    """
    is_of_token = Store.key.in_([run_key(digest), revoked_key(digest)])
    is_start = Store.key.startswith(START, autoescape=True)
    query = select(Store.key, Store.value).filter_by(**_coordinates(ti))
    query = query.where(or_(is_of_token, is_start))
    entries = {entry.key: json_value(entry.value) for entry in session.execute(query)}
    try:
        starts = _starts(entries)
        # A start that adopts a run has the token, too, but did not give it out.
        issuers = (start for start in starts if start.token == digest and start.run is None)
        issuer = next(issuers, None)
        if issuer is None:
            return None

        facts = facts_of(issuer, entries.get)
    except InvalidRequestError as error:
        raise UnavailableError(error.message) from None

    # A task instance that was deleted and made again begins at try 1, and may have the entries of
    # before.
    counting = [start for start in starts if start.try_number <= ti.try_number]
    last = max(counting, key=lambda start: start.place, default=issuer)
    is_last = last.token == digest
    adopted = None
    if is_last and last.run:
        adopted = last.run["run_id"]

    return start_key(issuer.place), Seen(
        reports=facts.reports,
        is_last=is_last,
        is_current=is_last and last.max_tries == ti.max_tries,
        is_revoked=revoked_key(digest) in entries,
        waits=last.waits,
        adopted=adopted,
        task=_state_of(ti, dag_run_goes_on=dag_run_goes_on),
    )


def _starts(entries: Mapping[str, object]) -> list[Start]:
    """
    Return the starts of the operator: one by name has no token.

    :raises InvalidRequestError: if a person has damaged one
    """
    starts: list[Start] = []
    for key, value in entries.items():
        match = START_KEY.fullmatch(key)
        if match and match[3] is None:
            starts.append(read_start(place_of(match), value))

    return starts


def _state_of(ti: TaskInstance, *, dag_run_goes_on: bool) -> str | None:
    """Return the task's state as :class:`~.decision.Seen` has it."""
    if ti.state == TaskInstanceState.REMOVED and dag_run_goes_on:
        # Its DAG lacks the task, perhaps only until the next deployment.
        return "restarting"
    if ti.state in State.finished and ti.state != TaskInstanceState.SUCCESS:
        return "ended"
    return ti.state


def json_value(text: str | None) -> Any:
    """Return the value of an entry; if it is no JSON, its text, which no entry of ours is."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        value = None

    if value is None:
        return text or ""
    return value


def _wake(ti: TaskInstance) -> None:
    """Have the scheduler's next sweep of timeouts resume a task, if it waits."""
    if ti.state != TaskInstanceState.AWAITING_INPUT:
        return
    # Its row was last updated when it was suspended.
    now = datetime.now(UTC)
    soon = max(ti.updated_at + MIN_SLEEP, now) if ti.updated_at else now + MIN_SLEEP
    ti.trigger_timeout = min(ti.trigger_timeout or soon, soon)


def _change_message(session: Session, ti: TaskInstance, digest: str, **fields: Any) -> None:
    """
    Change some fields of a run's :class:`LastMessage`.

    :param fields: those that change
    """
    key = message_key(digest)
    query = select(Store.value).filter_by(**_coordinates(ti), key=key)
    before = read_message(json_value(session.scalar(query)))
    _write(session, ti, key, replace(before, **fields))


def _write(session: Session, ti: TaskInstance, key: str, entry: Entry) -> None:
    values = {"value": json.dumps(entry_of(entry)), "updated_at": datetime.now(UTC)}
    change = update(Store).filter_by(**_coordinates(ti), key=key).values(values)
    change = change.execution_options(synchronize_session=False)
    is_changed = session.execute(change).rowcount != 0  # type: ignore[attr-defined]
    if is_changed:
        return

    # Not left to the commit: waiting for locks is bounded only here.
    dag_run_id = session.scalar(_dag_run(ti))
    new = insert(Store).values(dag_run_id=dag_run_id, key=key, **values, **_coordinates(ti))
    session.execute(new)


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
        # The error's text has the statement's parameters, which may be secret.
        cause = getattr(error, "orig", error)
        reason = type(cause).__name__
        if isinstance(error, OperationalError):
            reason = str(cause).partition("\n")[0]
        raise UnavailableError(reason) from None


@contextlib.contextmanager
def _bounded(session: Session) -> Iterator[None]:
    """
    Within the block, wait for the locks of others for a moment, not forever.

    SQLite has one lock for writing: take it now.
    """
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
