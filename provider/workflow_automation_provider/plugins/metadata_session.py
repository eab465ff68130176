"""The endpoint's transactions in Airflow's metadata database, and which versions of it are supported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow.utils.session import create_session
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# In milliseconds, on PostgreSQL. SQLite waits for its lock as long as its URL says.
_LOCK_TIMEOUT = 3000


class UnavailableError(Exception):
    """Airflow cannot respond to a callback now, but may later. Never says what was to be stored."""


def missing() -> str | None:
    """Return why this Airflow cannot take callbacks, None if it can."""
    from airflow.configuration import conf
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.state import resolve_state_backend
    from airflow.state.metastore import MetastoreBackend
    from airflow.utils.state import TaskInstanceState

    needed: list[tuple[Any, tuple[str, ...]]] = [
        (TaskInstance, ("id", "state", "max_tries", "trigger_timeout")),
        (TaskStateStoreModel, ("id", "key", "value", "updated_at", "dag_id", "run_id", "task_id")),
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
    if conf.getboolean("state_store", "clear_on_success", fallback=False):
        return (
            "[state_store] clear_on_success is set, which is not supported: it deletes what a run has said."
        )
    return None


@contextlib.contextmanager
def transaction() -> Iterator[Session]:
    """
    Open a session, and commit it at the end.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
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


def limit_waiting(session: Session) -> None:
    """Wait for others' locks for seconds, not forever; on SQLite, take its one lock for writing."""
    match session.get_bind().dialect.name:
        case "sqlite":
            session.execute(text("BEGIN IMMEDIATE"))
        case "postgresql":
            session.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}ms'"))
