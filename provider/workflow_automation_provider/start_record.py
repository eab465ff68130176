"""
What a task instance has started or uploaded, kept across its tries.

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

_START = "workflow_automation_start"
_UPLOAD = "workflow_automation_upload"


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
    :param cleared: the task was cleared since: a person asked for another run, and this one is only to be told of
    """

    state: Literal["starting", "started", "unidentified"]
    try_number: int
    at: str
    result: dict[str, Any]
    cleared: bool

    @property
    def words(self) -> str:
        """What happened, for a log."""
        match self.state:
            case "started":
                return f"run {self.result['run_id']} was started ({self.result['run_link']})"
            case "unidentified":
                return "a run was started whose id is unknown"
        return "this task was about to start a run, and what came of it is not known. A run may have been started"


class _TaskRecord:
    """
    Entries of one task instance (a mapped one has its own) that count until it is cleared.

    :param context: the task's context
    """

    def __init__(self, context: Context) -> None:
        ti = context["ti"]
        # A Clear raises max_tries, an automatic retry does not: so an entry that carries another one is
        # from before a Clear, by which a person asked for everything anew.
        self._max_tries = ti.max_tries
        self._try_number = ti.try_number
        self._store: Any = context.get("task_state_store")

    @property
    def outlives_try(self) -> bool:
        """Whether a later try will know what this one did."""
        return self._store is not None

    def _get(self, key: str) -> dict[str, Any] | None:
        return None if self._store is None else self._store.get(key)

    def _counts(self, entry: dict[str, Any]) -> bool:
        return bool(entry["max_tries"] == self._max_tries)

    def _delete(self, key: str) -> None:
        if self._store is not None:
            self._store.delete(key)

    def _set(self, key: str, entry: dict[str, Any]) -> None:
        if self._store is None:
            return
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        stamped = {"max_tries": self._max_tries, "try_number": self._try_number, **entry}
        self._store.set(key, stamped, retention=NEVER_EXPIRE)


class StartRecord(_TaskRecord):
    """What the task instance knows of the run that it starts."""

    def read(self) -> Start | None:
        """Return what was started last, None if nothing is known to have been."""
        found = self._get(_START)
        if not found:
            return None
        return Start(
            found["state"], found["try_number"], found["at"], found["result"], cleared=not self._counts(found)
        )

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
        self._delete(_START)

    def _write(self, state: str, result: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._set(_START, {"state": state, "at": at, "result": result})


class UploadRecord(_TaskRecord):
    """The upload requests that the service confirmed, in order: an entry each, so that none is rewritten."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._count = 0
        self._is_sending = False

    def read(self) -> list[dict[str, Any]]:
        """Return the requests that were confirmed since the last Clear."""
        found: list[dict[str, Any]] = []
        while (entry := self._get(f"{_UPLOAD}_{len(found)}")) and self._counts(entry):
            found.append(entry["request"])
        self._count = len(found)
        return found

    def confirmed(self, request: dict[str, Any]) -> None:
        """Add a request that was confirmed, after those that :meth:`read` returned."""
        self._set(f"{_UPLOAD}_{self._count}", {"request": request})
        self._count += 1
        self.take_back()

    def sending(self) -> None:
        """Write that a request is about to be sent, where it must not be sent again."""
        self._set(_UPLOAD, {})
        self._is_sending = True

    def interrupted(self) -> bool:
        """Tell whether a try since the last Clear ended before it knew what came of a request."""
        found = self._get(_UPLOAD)
        return bool(found and self._counts(found))

    def take_back(self) -> None:
        """Write that what came of the request is known."""
        if self._is_sending:
            self._delete(_UPLOAD)
            self._is_sending = False
