"""
What a run that calls Airflow reads and changes in the metadata database.

**Find.** The token has the id of the task instance that made it: two queries by primary key find the task, also
if a retry has changed its id since, and one by an index its entries. :func:`is_known` makes no other, takes no
lock, and is all that a stranger gets.

**Lock.** The DAG run, the task instance, and then the token's entry: in the order in which Airflow locks them when it
parks a task and when a task is cleared, so that nobody waits for each other forever. The task deletes the token's entry without a lock of its own: the
deletion waits for the claim or the end, or these find no entry. SQLite has no locks for rows; there, one
transaction writes at a time. A first claim, an end and what is told to stop take the locks; all else takes none.

**Store.** The key of the token's entry must be that of the task instance's ``max_tries``, which a Clear changes. A
claim of before a Clear counts while its token has such an entry, too: the cleared task has returned its run.
A claim whose token is closed keeps others from claiming until its run is over. A run that is told to stop before it has
claimed gets a claim that says so: a task that knows its run by the response would return it.

**Wake.** A parked task is not resumed from here: until the scheduler has handled its executor's message that the task
has left the worker, Airflow takes a task that is queued again for one that was lost, and fails it. Its timeout is
lowered instead, and the scheduler, which looks for timeouts after it has read such messages, resumes it.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import inspect, or_, select, update
from sqlalchemy.orm import lazyload

from workflow_automation_provider.execution.callback import (
    START_KEY,
    STARTED_KEY,
    WAIT_KEY,
    Answer,
    Running,
    Started,
    claim_key,
    digest_of,
    end_key,
    receipt_key,
    task_of,
    token_key,
    token_keys,
    word_key,
)
from workflow_automation_provider.plugins.decision import Receipt, Seen, Verdict, decide
from workflow_automation_provider.plugins.metadata_session import limit_waiting, transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from sqlalchemy.orm import Session

    from workflow_automation_provider.execution.callback import ClaimRow, Said

# Where a task instance is, and where its entries are: a mapped task has either a map_index or, from Airflow
# 3.4 on, a region.
_COORDINATES = ("dag_id", "run_id", "task_id", "map_index", "region_id", "region_index")

# The scheduler has handled the executor's message about the parked task by then.
_WAKE_AFTER = timedelta(seconds=5)

_Reply = tuple[Verdict, Receipt | None]

_CLAIMS = claim_key(0).removesuffix("0")
_TOKENS, _RECEIPTS = f"{token_key('', 0).partition('/')[0]}/", receipt_key("")


def is_known(token: str) -> bool:
    """
    Tell whether a task has given out this token, and has not been cleared since, or its run has claimed.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with transaction() as session:
        task = _find(session, token)
        return task is not None and (
            task.is_open
            or task.seen.receipt is not None
            or task.seen.own is not None
            or task.unclaimed is not None
        )


def respond(token: str, said: Said) -> _Reply:
    """
    Decide what to say to a run, and store what it says.

    :param said: what it sends
    :return: that, and the receipt of the end that the task has
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    if not isinstance(said, Answer):
        with transaction() as session:
            if (reply := _settle(session, _find(session, token), token, said)) is not None:
                return reply
    with transaction() as session:
        limit_waiting(session)
        # None if the DAG run is being deleted.
        return _settle(session, _find(session, token, lock=True), token, said) or (Verdict.STOP, None)


@dataclass(frozen=True, slots=True)
class _Task:
    """
    The task instance that a token belongs to.

    :param ti: its current try
    :param at: where it and its entries are
    :param dag_run_id: of its DAG run; known only if it is locked
    :param digest: of the token
    :param is_open: whether the token has an entry that counts
    :param unclaimed: the ``max_tries`` for which a run with the token could be said to have claimed, None if one has
    """

    ti: TaskInstance
    at: dict[str, Any]
    dag_run_id: int | None
    digest: str
    is_open: bool
    seen: Seen
    unclaimed: int | None


def _find(session: Session, token: str, *, lock: bool = False) -> _Task | None:
    """
    Return the task instance that a token belongs to, None if there is none.

    :param lock: the DAG run, the task instance and the token's entry, in this order
    """
    at = _coordinates(session, task_of(token))
    if at is None:
        return None
    # What is stored below refers to it: to lock it after the task instance could be a deadlock.
    dag_run_id = _dag_run_id(session, at, lock=True) if lock else None
    task = select(TaskInstance).filter_by(**at).options(lazyload("*"))
    if lock:
        task = task.with_for_update(of=TaskInstance)
    task = task.execution_options(populate_existing=True)
    # Twice, as its next try, which is another row on Airflow 3.4, may begin while the lock is waited for.
    ti = session.scalar(task) or session.scalar(task)
    if ti is None:
        return None
    digest = digest_of(token)
    keys = token_keys(digest, ti.max_tries)
    # So that their deletion waits.
    locked = select(Store.id).filter_by(**at).where(Store.key.in_(keys)).with_for_update()
    is_locked = lock and bool(session.scalars(locked).all())
    entries = _entries(session, at)
    is_open = is_locked if lock else any(key in entries for key in keys)
    seen = _seen(ti, digest, is_open, entries)
    unclaimed = _unclaimed(digest, entries) if seen.own is None else None
    return _Task(ti, at, dag_run_id, digest, is_open, seen, unclaimed)


def _dag_run_id(session: Session, at: Mapping[str, Any], *, lock: bool = False) -> int | None:
    query = select(DagRun.id).filter_by(dag_id=at["dag_id"], run_id=at["run_id"])
    dag_run_id: int | None = session.scalar(
        query.with_for_update(read=True, key_share=True) if lock else query
    )
    return dag_run_id


def _entries(session: Session, at: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the entries of a task instance that say something of a run."""
    keys = [Store.key.startswith(prefix, autoescape=True) for prefix in (_CLAIMS, _TOKENS, _RECEIPTS)]
    query = select(Store.key, Store.value).filter_by(**at)
    query = query.where(or_(Store.key.in_([START_KEY, STARTED_KEY, WAIT_KEY]), *keys))
    return {entry.key: entry.value for entry in session.execute(query)}


def _seen(ti: TaskInstance, digest: str, is_open: bool, entries: Mapping[str, str]) -> Seen:
    claims: list[ClaimRow] = [json.loads(entries[key]) for key in entries if key.startswith(_CLAIMS)]
    open_ones = [
        claim for claim in claims if any(key in entries for key in token_keys(claim["digest"], ti.max_tries))
    ]
    current = json.loads(entries.get(claim_key(ti.max_tries), "null"))
    if current is not None and _is_over(current, digest, entries):
        current = None
    receipt = json.loads(entries.get(receipt_key(digest), "null"))
    # Of before a Clear.
    if not is_open and receipt is not None and receipt["max_tries"] != ti.max_tries:
        receipt = None
    return Seen(
        is_open and _is_wanted(ti, digest, entries),
        _last(open_ones) or current,
        _last(claim for claim in claims if claim["digest"] == digest),
        receipt and Receipt(receipt["status"], receipt["at"], receipt["fingerprint"]),
    )


def _unclaimed(digest: str, entries: Mapping[str, str]) -> int | None:
    """Return the ``max_tries`` for which a token was given out last, None if that is not known, or another has the claim."""
    numbers = [int(key.split("/")[2]) for key in entries if key.startswith(f"{_TOKENS}{digest}/")]
    start = json_object(entries.get(START_KEY))
    if start.get("token") == digest:
        numbers.append(start.get("max_tries", 0))
    number = max(numbers, default=-1)
    claim = json.loads(entries.get(claim_key(number), "null"))
    return number if numbers and (claim is None or _is_over(claim, digest, entries)) else None


def _is_over(claim: ClaimRow, digest: str, entries: Mapping[str, str]) -> bool:
    """
    Return whether another run may claim in place of one whose token is closed.

    It was told to stop, it has ended, or the task has handed over another request since: where a failed run is
    started again, or where a Clear has left ``max_tries`` as it was. It is not over where the task has closed the
    token to look whether it was claimed.
    """
    return (
        "stopped" in claim
        or receipt_key(claim["digest"]) in entries
        or (claim["digest"] != digest and json_object(entries.get(START_KEY)).get("token") == digest)
    )


def json_object(text: str | None) -> dict[str, Any]:
    """Return what an entry holds; nothing if there is none, or it is kept elsewhere."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text or "{}")
        return value if isinstance(value, dict) else {}
    return {}


def _last(claims: Iterable[ClaimRow]) -> ClaimRow | None:
    return max(claims, key=lambda claim: claim["at"], default=None)


def _is_wanted(ti: TaskInstance, digest: str, entries: Mapping[str, str]) -> bool:
    """Return whether a task instance may have a run that works, with this token."""
    if ti.state != TaskInstanceState.SUCCESS:
        return ti.state not in {*State.finished, TaskInstanceState.RESTARTING}
    # Green before its run has ended: it does not wait. One that waits closes its token, unless it was marked. An entry
    # of before a Clear is that of a task that waited then.
    waits = (
        WAIT_KEY in entries
        and json_object(entries.get(WAIT_KEY)).get("max_tries", ti.max_tries) == ti.max_tries
    )
    if waits or START_KEY not in entries:
        return False
    start, started = (json_object(entries.get(key)) for key in (START_KEY, STARTED_KEY))
    is_started = start.get("state", "started") == "started" or started.get("token") == digest
    return is_started and not start.get("waits")


def _coordinates(session: Session, ti_id: UUID) -> dict[str, Any] | None:
    """Return where the task instance is that has this id, or had it in an earlier try."""
    columns = inspect(Store).column_attrs.keys()
    # Airflow 3.4 keeps the earlier tries beside the current one, and hides them from all but get().
    models: list[Any] = [TaskInstance]
    with contextlib.suppress(ImportError):
        from airflow.models.taskinstancehistory import TaskInstanceHistory

        models.append(TaskInstanceHistory)
    for model in models:
        if (ti := session.get(model, ti_id, options=[lazyload("*")])) is not None:
            return {name: getattr(ti, name) for name in _COORDINATES if name in columns}
    return None


def _settle(session: Session, task: _Task | None, token: str, said: Said) -> _Reply | None:
    """Decide, and write what goes with it; return None if that needs a lock first."""
    if task is None:
        return Verdict.STOP, None
    verdict, seen, now = decide(said, token, task.digest, task.seen), task.seen, datetime.now(UTC)
    is_locked = task.dag_run_id is not None
    match verdict, said:
        case (Verdict.STOP, _) if seen.own is not None and "stopped" not in seen.own:
            if not is_locked:
                return None
            _stop(session, task, seen.own, now)
        case Verdict.STOP, Started() | Running() if task.unclaimed is not None:
            if not is_locked:
                return None
            claim = Started().row(task.digest, _text(now))
            _replace(session, task, claim_key(task.unclaimed), claim)
            session.flush()
            _stop(session, task, claim, now)
        case Verdict.CLAIM, Started():
            if not is_locked:
                return None
            _replace(session, task, claim_key(task.ti.max_tries), said.row(task.digest, _text(now)))
        case Verdict.GO_ON, Running():
            _replace(session, task, word_key(task.digest), said.row(_text(now)))
        case Verdict.END, Answer():
            _store_end(session, task, token, said, now)
            _wake(task.ti, now)
        case Verdict.SAME_END, Answer():
            _wake(task.ti, now)
    return verdict, seen.receipt


def _store_end(session: Session, task: _Task, token: str, answer: Answer, now: datetime) -> None:
    at = _text(now)
    fingerprint = answer.fingerprint(token)
    receipt = {"status": answer.status, "at": at, "fingerprint": fingerprint, "max_tries": task.ti.max_tries}
    _add(session, task, end_key(task.digest), answer.row(at))
    _add(session, task, receipt_key(task.digest), receipt)


def _wake(ti: TaskInstance, now: datetime) -> None:
    """Have the scheduler's next sweep of timeouts resume a task, if it is parked."""
    if ti.state == TaskInstanceState.AWAITING_INPUT and (
        ti.trigger_timeout is None or ti.trigger_timeout > now + _WAKE_AFTER
    ):
        ti.trigger_timeout = now + _WAKE_AFTER


def _stop(session: Session, task: _Task, claim: ClaimRow, now: datetime) -> None:
    """
    Record that the run that has this claim was told to stop.

    A cleared task that is about to return the run writes its token's entry, and then reads the claim. To make and
    delete this entry here is to wait for that or to fail, or it waits for what is written here.
    """
    query = select(Store).filter_by(**task.at).where(Store.key.startswith(_CLAIMS, autoescape=True))
    for entry in session.scalars(query):
        if json.loads(entry.value) == claim:
            entry.value, entry.updated_at = json.dumps({**claim, "stopped": _text(now)}), now
    if not task.is_open:
        guard = _add(session, task, token_keys(task.digest, task.ti.max_tries)[1], {})
        session.flush()
        session.delete(guard)


def _add(session: Session, task: _Task, key: str, value: Mapping[str, Any]) -> Any:
    dag_run_id = task.dag_run_id or _dag_run_id(session, task.at)
    entry = Store(dag_run_id=dag_run_id, key=key, value=json.dumps(value), **task.at)
    session.add(entry)
    return entry


def _replace(session: Session, task: _Task, key: str, value: Mapping[str, Any]) -> None:
    change = update(Store).filter_by(**task.at, key=key)
    values = {"value": json.dumps(value), "updated_at": datetime.now(UTC)}
    if not session.execute(change.values(values).execution_options(synchronize_session=False)).rowcount:  # type: ignore[attr-defined]
        _add(session, task, key, value)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
