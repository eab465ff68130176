"""
What a run that calls Airflow reads and changes in the metadata database.

**Find.** The token has the id of the task instance that made it: two queries by primary key find
the task, even if a retry has changed its id since, and one its entries. :func:`find` makes no
other query, takes no lock, and is all that a stranger gets.

**Lock.** The DAG run, the task instance, and the start that gave out the token, which never
changes: in the order in which Airflow locks them when it suspends or clears a task. Then the
entries are read again, in a statement of its own: what was read before the locks may have changed,
and a statement that has waited for one may not see what was written meanwhile. To
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
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

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
from workflow_automation_provider.execution.record.callback import (
    MIN_SLEEP,
    Ended,
    Running,
    digest_of,
    task_of,
)
from workflow_automation_provider.execution.record.callback_decision import (
    Seen,
    Verdict,
    verdict_on,
)
from workflow_automation_provider.execution.record.entries import (
    START,
    START_KEY,
    Entry,
    LastMessage,
    Start,
    entry_of,
    message_key,
    place_of,
    read_message,
    read_start,
    report_key,
    revoked_key,
    start_key,
)
from workflow_automation_provider.execution.record.start_decision import known_start

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from workflow_automation_provider.execution.record.callback import Report

_POSSIBLE_COORDINATES = ("dag_id", "run_id", "task_id", "map_index", "region_id", "region_index")
COORDINATES = tuple(name for name in _POSSIBLE_COORDINATES if hasattr(Store, name))
"""
The columns that identify a task instance.

Those of a mapped task differ by map_index or, from Airflow 3.4 on, by region.
"""


class UnavailableError(Exception):
    """Airflow cannot respond to a callback now, but may later. Never contains the body."""


class IssuedToken(NamedTuple):
    """
    A token that a task has given out.

    :param digest: its hash
    :param task: the columns that identify the task instance
    :param start: the key of the start
    """

    digest: str
    task: Mapping[str, Any]
    start: str


class Locked(NamedTuple):
    """
    What a decision rests on, locked until the session ends.

    :param task: the current try
    :param message: the run's last message
    """

    session: Session
    token: IssuedToken
    dag_run_id: int
    task: TaskInstance
    seen: Seen
    message: LastMessage


def find(token: str) -> IssuedToken | None:
    """
    Return a token that a task has given out, None if none has.

    :raises UnavailableError: if the database is locked or cannot be reached, or a person has
        damaged a start
    """
    with _transaction() as session:
        ti = _find(session, token)
        if ti is None:
            return None

        digest = digest_of(token)
        task = {name: getattr(ti, name) for name in COORDINATES}
        issuer = _issuer(_starts(_entries(session, task, digest)), digest)
        if issuer is None:
            return None

        return IssuedToken(digest, task, start_key(issuer.place))


def respond(token: IssuedToken, report: Report) -> Verdict:
    """
    Decide what to say to a run, and store what it reports.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    now = datetime.now(UTC)
    with _transaction(writes=True) as session:
        locked = _lock(session, token)
        if locked is None:
            return Verdict.STOP

        seen = locked.seen
        verdict, after = verdict_on(report, seen, now)
        if after != seen.reports:
            _write(locked, report_key(token.digest), after)

        if isinstance(report, Running) and verdict is Verdict.GO_ON:
            text = report.message or ""
            _change_message(locked, at=now, message=text, progress=report.progress)

        if isinstance(report, Ended) and verdict is Verdict.END:
            _wake(locked.task)
        if verdict is Verdict.STOP and _lacks_run_id(report, seen):
            why = "404: the end has no run_id, and the run has sent one before"
            _change_message(locked, refused_at=now, refusal=why)

        return verdict


def _lacks_run_id(report: Report, seen: Seen) -> bool:
    """Return whether an end is refused because it does not say which run it is of."""
    is_nameless_end = isinstance(report, Ended) and report.run_id is None
    return is_nameless_end and bool(seen.reports.run_ids) and not seen.reports.stopped


def note_refusal(token: IssuedToken, why: str) -> None:
    """
    Store that a call was refused for its form: the flow may not tell people.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with _transaction(writes=True) as session:
        locked = _lock(session, token)
        if locked:
            _change_message(locked, refused_at=datetime.now(UTC), refusal=why)


def _find(session: Session, token: str) -> Any:
    """Return the task instance that made a token, in any of its tries; None if there is none."""
    ti_id, options = task_of(token), [lazyload("*")]
    ti = session.get(TaskInstance, ti_id, options=options)
    # Airflow 3.4 keeps the earlier tries beside the current one, and hides them from all but get().
    with contextlib.suppress(ImportError):
        from airflow.models.taskinstancehistory import TaskInstanceHistory

        ti = ti or session.get(TaskInstanceHistory, ti_id, options=options)

    return ti


def _current(session: Session, coordinates: Mapping[str, Any]) -> TaskInstance | None:
    """Lock and return the current try of a task instance; None if there is none."""
    query = select(TaskInstance).filter_by(**coordinates).options(lazyload("*"))
    query = query.with_for_update(of=TaskInstance)
    query = query.execution_options(populate_existing=True)
    # Twice: while it waits for a lock, the next try may begin, which is another row on Airflow 3.4.
    found: TaskInstance | None = session.scalar(query) or session.scalar(query)
    return found


def _lock(session: Session, token: IssuedToken) -> Locked | None:
    """Lock and read what a decision rests on; return None if any of that is gone."""
    # By its primary key: InnoDB locks no more of a row than the index that it is found by.
    of_task = {"dag_id": token.task["dag_id"], "run_id": token.task["run_id"]}
    dag_run_id = select(DagRun.id).filter_by(**of_task).scalar_subquery()
    query = select(DagRun.id, DagRun.state).where(DagRun.id == dag_run_id)
    dag_run = session.execute(query.with_for_update(read=True, key_share=True)).first()
    if dag_run is None:
        return None

    ti = _current(session, token.task)
    start = select(Store.id).filter_by(**token.task, key=token.start)
    if ti is None or session.scalar(start.with_for_update()) is None:
        return None

    entries = _entries(session, token.task, token.digest)
    goes_on = dag_run.state not in State.finished_dr_states
    seen = _seen(entries, ti, token.digest, dag_run_goes_on=goes_on)
    if seen is None:
        return None

    message = read_message(entries.get(message_key(token.digest)))
    return Locked(session, token, dag_run.id, ti, seen, message)


def _entries(session: Session, task: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """Return the starts of a task instance, and the entries of one token."""
    keys = [report_key(digest), revoked_key(digest), message_key(digest)]
    is_start = Store.key.startswith(START, autoescape=True)
    query = select(Store.key, Store.value).filter_by(**task)
    query = query.where(or_(Store.key.in_(keys), is_start))
    return {entry.key: json_value(entry.value) for entry in session.execute(query)}


def _issuer(starts: Iterable[Start], digest: str) -> Start | None:
    """Return the start that gave out a token, None if none did."""
    # A start that adopts a run has the token, too, but did not give it out.
    issuers = (start for start in starts if start.token_hash == digest and start.run is None)
    return next(issuers, None)


def _seen(
    entries: Mapping[str, Any], ti: TaskInstance, digest: str, *, dag_run_goes_on: bool
) -> Seen | None:
    """
    Return what is seen of the start that gave out a token; None if none did.

    :param dag_run_goes_on: whether the task's DAG run has not ended
    """
    starts = _starts(entries)
    issuer = _issuer(starts, digest)
    if issuer is None:
        return None

    # A task instance that was deleted and made again begins at try 1, and may have the entries of
    # before.
    counting = [start for start in starts if start.try_number <= ti.try_number]
    last = max(counting, key=lambda start: start.place, default=issuer)
    is_last = last.token_hash == digest
    adopted = None
    if is_last and last.run:
        adopted = last.run["run_id"]

    return Seen(
        reports=known_start(issuer, entries.get).reports,
        is_last=is_last,
        is_current=is_last and last.max_tries == ti.max_tries,
        is_revoked=revoked_key(digest) in entries,
        waits=last.wait_for_completion,
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


def _change_message(locked: Locked, **fields: Any) -> None:
    """
    Change some fields of a run's :class:`LastMessage`.

    :param fields: those that change
    """
    _write(locked, message_key(locked.token.digest), replace(locked.message, **fields))


def _write(locked: Locked, key: str, entry: Entry) -> None:
    session, task = locked.session, locked.token.task
    values = {"value": json.dumps(entry_of(entry)), "updated_at": datetime.now(UTC)}
    change = update(Store).filter_by(**task, key=key).values(values)
    change = change.execution_options(synchronize_session=False)
    is_changed = session.execute(change).rowcount != 0  # type: ignore[attr-defined]
    if is_changed:
        return

    # Not left to the commit: waiting for locks is bounded only here.
    new = insert(Store).values(dag_run_id=locked.dag_run_id, key=key, **values, **task)
    session.execute(new)


@contextlib.contextmanager
def _transaction(*, writes: bool = False) -> Iterator[Session]:
    """
    Open a session, and commit it at the end.

    :param writes: whether it may wait for locks, for a short time
    :raises UnavailableError: if the database is locked or cannot be reached, or a person has
        damaged an entry
    """
    try:
        with create_session() as session, _bounded(session) if writes else contextlib.nullcontext():
            yield session
    except InvalidRequestError as error:
        raise UnavailableError(error.message) from None
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
