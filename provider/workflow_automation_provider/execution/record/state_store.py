"""
Airflow's task state store: nothing else calls it.

On Airflow 3.3+, entries outlive a try, a SIGKILL, a deferral and a restart of Airflow, and never
expire. ``set`` is durable once it returns, and raises if the task instance now belongs to another
process; ``get`` then returns None, as for any 404, such as from an API server that is being
upgraded. So before a missing entry decides anything, a probe is written and read back, and the
entry is read again. Before Airflow 3.3, a dict takes the store's place for one try.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf

from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)

_PROBE = "workflow_automation_probe"


def has_store(context: Context) -> bool:
    """Return whether a later try can read what this one writes: Airflow 3.3 and later."""
    return "task_state_store" in context


def has_retries_left(ti: Any) -> bool:
    """Return whether Airflow may retry a task instance after its present try."""
    return bool(ti.try_number <= ti.max_tries)


_BACKEND = "airflow.state.metastore.MetastoreBackend"


def unsupported_setting() -> str:
    """
    Return the setting by which Airflow deletes entries, or moves them out of its database.

    :return: empty if none is set
    """
    if conf.getboolean("state_store", "clear_on_success", fallback=False):
        return "[state_store] clear_on_success"
    if conf.get("state_store", "backend", fallback=_BACKEND) != _BACKEND:
        return "[state_store] backend"
    return ""


class _TryStore(dict[str, dict[str, Any]]):
    """The store before Airflow 3.3, for one try."""

    def set(self, key: str, value: dict[str, Any], **_: object) -> None:
        self[key] = value


# Which entries the current execution has used: a second user of an entry would mistake another's
# run for its own. An execution is identified by its task instance object, because Airflow creates
# one for each.
_lock = threading.Lock()
_used: tuple[object, set[tuple[str, str]]] = (None, set())


class TaskRecord:
    """
    The entries of one kind that a task instance has; a Clear ends their effect.

    Airflow keeps them by task instance: each index of a mapped task has its own.

    :param context: the task's context
    :param name: the name of a start within the task; empty for the operator's own
    """

    def __init__(self, context: Context, name: str = "") -> None:
        self.name = name
        self._ti = context["ti"]
        self._context = context
        self.outlives_try = has_store(context)
        """Whether a later try can read what this one wrote."""
        self._store: Any = context["task_state_store"] if self.outlives_try else _TryStore()

    @property
    def max_tries(self) -> int:
        """The number of the last try that Airflow may retry, which a Clear changes."""
        return int(self._ti.max_tries)

    @property
    def is_last_try(self) -> bool:
        """Whether Airflow has no retries left after this try."""
        return not has_retries_left(self._ti)

    @property
    def was_continued(self) -> bool:
        """Whether this try was executed before, and rescheduled or suspended."""
        server = getattr(self._ti, "_ti_context_from_server", None)
        return bool(
            self._context.get("task_reschedule_count") or getattr(server, "next_method", None)
        )

    @property
    def may_have_entries(self) -> bool:
        """Whether the task instance was executed before, also before a Clear."""
        return bool(self._ti.try_number > 1 or self.was_continued)

    def get(self, key: str) -> dict[str, Any] | None:
        """Return an entry, None if none is seen: there may still be one."""
        entry: dict[str, Any] | None = self._store.get(key)
        return entry

    def set(self, key: str, entry: Mapping[str, Any]) -> None:
        """
        Write an entry, which is durable once this returns.

        :raises Exception: if it could not be written, also because the task instance now belongs to
            another process
        """
        retention = None
        if self.outlives_try:
            from airflow.sdk.execution_time.context import NEVER_EXPIRE

            retention = NEVER_EXPIRE

        self._store.set(key, {**entry}, retention=retention)

    def get_written(self, key: str) -> dict[str, Any] | None:
        """Return an entry that was just written: a single read may find nothing."""
        return self.get(key) or self.get(key)

    def find(self, key: str) -> dict[str, Any] | None:
        """
        Return an entry, None if it is certainly not there.

        :raises RuntimeError: if the store does not return what was just written to it
        """
        entry = self.get(key)
        if entry is not None or not self.may_have_entries:
            return entry
        self.probe()
        return self.get(key)

    def delete(self, key: str) -> None:
        """Delete an entry."""
        self._store.delete(key)

    def check_lasting(self, why: str) -> None:
        """
        Check that the entries are there for as long as the task is.

        :param why: the argument for which they must be
        :raises InvalidRequestError: if they are not
        """
        if not self.outlives_try:
            raise InvalidRequestError(
                f"{why} needs Airflow 3.3 or newer, which can suspend a task and keeps its state.",
                next_step=f"Upgrade Airflow, or leave {why} out.",
            )

        name = unsupported_setting()
        if not name and conf.get("workers", "state_store_backend", fallback=""):
            name = "[workers] state_store_backend"
        if name:
            raise InvalidRequestError(
                f"{why} needs the task's state in Airflow's database for as long as the task is "
                f"there, and {name} is set.",
                next_step=f"Leave {name} unset, or leave {why} out.",
            )

    def probe(self) -> None:
        """
        Check that what is written can be read.

        :raises RuntimeError: if not, or if the task instance now belongs to another process
        """
        # Under one key for all tries: whichever of them wrote what is read, the store can be read.
        self.set(_PROBE, {"try_number": self._ti.try_number})
        if self.get_written(_PROBE) is None:
            raise RuntimeError(
                "Airflow's task state store does not return what was just written to it, so what "
                "an earlier try did is unknown. If it started a run, its log names it."
            )

    def use(self) -> None:
        """
        Reserve the entries for as long as the task is executed.

        :raises InvalidRequestError: if this try has already used them
        """
        global _used
        entries = type(self).__name__, self.name
        with _lock:
            is_first_use = _used[0] is not self._ti
            if is_first_use:
                _used = (self._ti, set())

            if is_first_use and not self.outlives_try:
                _log.warning(
                    "Task state does not persist across tries before Airflow 3.3: a retry may "
                    "start again what this try has started, and uploads all files again."
                )

            if entries in _used[1]:
                what = "The operator was already executed in this try of the task."
                if self.name:
                    what = f"The name {self.name!r} was already used in this try of the task."

                raise InvalidRequestError(
                    what,
                    consequence="Nothing was sent for its second use.",
                    next_step=(
                        "Give each start inside a task a name of its own that means the same in "
                        "every try."
                    ),
                )

            _used[1].add(entries)
