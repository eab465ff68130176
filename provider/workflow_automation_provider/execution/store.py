"""
Airflow's task state store, and what the records of starts, batches, uploads and waits share: nothing else knows it.

On Airflow 3.3+, the store outlives a try, a SIGKILL, a deferral and a restart of Airflow: entries never expire. ``set``
is durable once it returns, and raises if the task instance now belongs to another process; ``get`` then only returns
None, as it does for any 404, for example of an API server that is being upgraded. Therefore an entry is written before
what it stands for is sent, and where an earlier execution may have written something, None counts only if a probe entry
that is written then can be read, three times in turn with the entry itself. Older versions have no such store: there, a
dict takes its place, for one try.

Each entry carries the :class:`~workflow_automation_provider.execution.ledger.Attempt` that wrote it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import uuid4

from airflow.configuration import conf

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.ledger import Attempt, Ledger

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)

_PROBE = "workflow_automation_probe"

# How often in a row the store must return the probe, and no entry: of several API servers, one may lack the route.
_PROBES = 3


class _Store(Protocol):
    """The part of Airflow's task state store that is used here."""

    def get(self, key: str) -> dict[str, Any] | None: ...
    def set(self, key: str, value: dict[str, Any], *, retention: Any) -> None: ...
    def delete(self, key: str) -> None: ...


class _TryStore(dict[str, dict[str, Any]]):
    """The same for one try, before Airflow 3.3."""

    def set(self, key: str, value: dict[str, Any], *, retention: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


# Which entries the current execution has used: a second user of an entry would mistake another's run for its own.
# Identified by the task instance object, because Airflow creates a new one for each execution.
_lock = threading.Lock()
_used: tuple[object, set[str]] = (None, set())


class TaskRecord:
    """
    The entries of one kind of a task instance (mapped or not), which count until it is cleared.

    :param context: the task's context
    :param name: identifies a start within the task; empty for what the task itself is for
    """

    def __init__(self, context: Context, name: str = "") -> None:
        self.name = name
        self._suffix = f"/{name}" if name else ""
        self._context = context
        self.outlives_try = "task_state_store" in context
        """Whether a later try can read what this one wrote."""
        self._store = cast("_Store", context["task_state_store"] if self.outlives_try else _TryStore())

    @property
    def is_last_try(self) -> bool:
        """Whether Airflow has no retries left after this try."""
        return bool(self._context["ti"].try_number > self._context["ti"].max_tries)

    @property
    def is_later_try(self) -> bool:
        """Whether there was a try before this one, also before a Clear."""
        return bool(self._context["ti"].try_number > 1)

    def ledger(self, **options: bool) -> Ledger:
        """
        Return a ledger for this try, to read the entries into.

        :param options: as for :class:`~workflow_automation_provider.execution.ledger.Ledger`
        """
        return Ledger(
            self._now,
            retries=self._retries,
            clear_deletes=self._clear_deletes,
            **options,
        )

    @property
    def _retries(self) -> int:
        return self._context["task"].retries or 0

    @property
    def _clear_deletes(self) -> bool:
        # Airflow 3.4+, where a task instance has a region.
        return hasattr(self._context["ti"], "region_id")

    @property
    def _may_have_entries(self) -> bool:
        """Whether the task instance was executed before: in an earlier try, before it was rescheduled or parked."""
        server = getattr(self._context["ti"], "_ti_context_from_server", None)
        return bool(
            self.is_later_try
            or self._context.get("task_reschedule_count")
            or getattr(server, "next_method", None)
        )

    @functools.cached_property
    def _now(self) -> Attempt:
        ti = self._context["ti"]
        return Attempt(ti.try_number, ti.max_tries, getattr(self._context["dag_run"], "clear_number", None))

    def use(self) -> None:
        """
        Reserve the entries for as long as the task is executed.

        :raises InvalidRequestError: if they are already used, by this or another user of the same name
        """
        global _used
        mine = f"{type(self).__name__}{self._suffix}"
        with _lock:
            if _used[0] is not self._context["ti"]:
                _used = (self._context["ti"], set())
                if not self.outlives_try:
                    _log.warning(
                        "Task state does not persist across tries before Airflow 3.3: a retry may start again what this "
                        "try has started, and uploads all files again."
                    )
            if mine in _used[1]:
                raise InvalidRequestError(
                    f"The name {self.name!r} was already used in this try of the task."
                    if self.name
                    else "The operator was already executed in this try of the task.",
                    consequence="Nothing was sent for its second use.",
                    next_step="Give each start inside a task a name of its own that means the same in every try.",
                )
            _used[1].add(mine)

    def _read(self, *keys: str, digest: str | None = None) -> dict[str, Any] | None:
        """
        Return the first of several entries that is there, None if there is certainly none of them.

        :param digest: what it must have as its ``digest``, None for any
        :raises RuntimeError: if the store does not return what was just written to it
        """
        entry = _first(self._store, keys, digest)
        return self._read_again(keys, digest) if entry is None and self._may_have_entries else entry

    def _read_first(self, *keys: str) -> dict[str, Any] | None:
        """
        Return the same, also where no earlier execution may have written any.

        :raises RuntimeError: if the store does not return what was just written to it, or the task instance now
            belongs to another process
        """
        return self._read_again(keys)

    def _read_again(self, keys: tuple[str, ...], digest: str | None = None) -> dict[str, Any] | None:
        # A key of its own: several threads of a task may read at the same time.
        probe_key, probe = f"{_PROBE}/{uuid4().hex}", self._now._asdict()
        self._put(probe_key, probe)
        try:
            for _ in range(_PROBES):
                if (entry := _first(self._store, keys, digest)) is not None:
                    return entry
                if self._store.get(probe_key) != probe:
                    raise RuntimeError(
                        "Airflow's task state store does not return what was just written to it, so what an earlier try "
                        "did is unknown. If it started a run, its log names it."
                    )
        finally:
            with contextlib.suppress(Exception):  # nobody reads it
                self._store.delete(probe_key)
        return None

    def _counts(self, entry: dict[str, Any]) -> bool:
        """Return whether an entry is not from before a Clear, as far as that is known."""
        return self._clear_deletes or not attempt_of(entry).is_from_before_a_clear(self._now, self._retries)

    def _delete(self, key: str) -> bool:
        """Delete an entry; return whether Airflow may have been asked twice, and may do it again later."""
        began = time.monotonic()
        try:
            self._store.delete(key)
        except Exception:  # retried once, because otherwise it stays unknown whether a run was started
            self._store.delete(key)
            return True
        return _may_be_repeated(began)

    def _set(self, key: str, entry: dict[str, Any]) -> bool:
        """Write an entry; return whether Airflow may have been asked twice, and may do it again later."""
        began = time.monotonic()
        self._put(key, {**self._now._asdict(), **entry})
        return _may_be_repeated(began)

    def _put(self, key: str, entry: dict[str, Any]) -> None:
        retention = None
        if self.outlives_try:
            from airflow.sdk.execution_time.context import NEVER_EXPIRE

            retention = NEVER_EXPIRE
        self._store.set(key, entry, retention=retention)


def slow_deletion() -> RuntimeError:
    """Return the error to end the try with where a deletion that comes late would take what is written next."""
    return RuntimeError(
        "Airflow's task state store was slow to delete an entry, and may delete the next one as well: nothing else is "
        "sent in this try."
    )


def _may_be_repeated(began: float) -> bool:
    # Airflow's SDK repeats a request that had no response, but no sooner.
    return time.monotonic() - began >= conf.getfloat("workers", "execution_api_retry_wait_min", fallback=1.0)


def _first(store: _Store, keys: tuple[str, ...], digest: str | None) -> dict[str, Any] | None:
    for entry in map(store.get, keys):
        if entry is not None and (digest is None or entry["digest"] == digest):
            return entry
    return None


def attempt_of(entry: dict[str, Any]) -> Attempt:
    """Return the try that wrote an entry."""
    return Attempt(**{name: entry[name] for name in Attempt._fields})
