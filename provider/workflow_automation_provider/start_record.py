"""
What a task instance has started, kept across its tries.

On Airflow 3.3+ the task state store outlives a try, a SIGKILL, a deferral and a restart of Airflow. *Starting*
is written there before a run is asked for: ``set`` raises where the task instance was meanwhile given to
another process, while ``get`` then only answers nothing. Older versions have no such store.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_KEY = "workflow_automation_start"


@dataclass(frozen=True, slots=True)
class Start:
    """
    What is known of an earlier start.

    :param state: ``"starting"``: a run was about to be asked for, what came of it is not known;
        ``"started"``: a run was started and is in ``result``; ``"unidentified"``: a run was started whose id
        nobody knows, ``result`` has the ``message``
    :param try_number: the try that wrote this
    :param at: when, as ISO 8601 text in UTC
    :param result: what the task returns
    """

    state: Literal["starting", "started", "unidentified"]
    try_number: int
    at: str
    result: dict[str, Any]


class StartRecord:
    """
    The record of one task instance (a mapped one has its own).

    :param context: the task's context
    """

    def __init__(self, context: Context) -> None:
        ti = context["ti"]
        # A Clear raises max_tries, an automatic retry does not: so a record that carries another one is
        # from before a Clear, by which a person asked for a new run.
        self._max_tries = ti.max_tries
        self._try_number = ti.try_number
        self._store: Any = context["task_state_store"] if "task_state_store" in context else None

    @property
    def outlives_try(self) -> bool:
        """Whether a later try will know what this one did."""
        return self._store is not None

    def read(self) -> Start | None:
        """Return what was started since the last Clear, None if nothing is known to have been."""
        if self._store is None:
            return None
        found = self._store.get(_KEY)
        if not found or found["max_tries"] != self._max_tries:
            return None
        return Start(found["state"], found["try_number"], found["at"], found["result"])

    def starting(self) -> None:
        """
        Write that a run is about to be asked for; it is durable when this returns.

        :raises Exception: if it could not be written, also because this process is no longer the one that
            runs the task instance: then nothing may be started
        """
        self._write("starting", {})

    def started(self, result: dict[str, Any]) -> None:
        """Write that a run was started, and what the task returns for it."""
        self._write("started", result)

    def unidentified(self, message: str) -> None:
        """Write that a run was started whose id is not known, and the error that says so."""
        self._write("unidentified", {"message": message})

    def take_back(self) -> None:
        """Write that nothing was started after all."""
        if self._store is not None:
            self._store.delete(_KEY)

    def _write(self, state: str, result: dict[str, Any]) -> None:
        if self._store is None:
            return
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        record = {
            "state": state,
            "max_tries": self._max_tries,
            "try_number": self._try_number,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "result": result,
        }
        self._store.set(_KEY, record, retention=NEVER_EXPIRE)
