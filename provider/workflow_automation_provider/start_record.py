"""
What a task instance has started or uploaded, kept across its tries.

On Airflow 3.3+ the task state store outlives a try, a SIGKILL, a deferral and a restart of Airflow. *Starting*
is written there before a run is asked for: ``set`` raises where the task instance was meanwhile given to
another process, while ``get`` then only answers nothing. Older versions have no such store.

**Retry or Clear?** A retry must find what an earlier try wrote; whoever clears the task wants everything anew.
Airflow does not say which of the two it was, so an entry carries what a Clear changes:

- ``max_tries``: a Clear sets it to the number of the last try plus the task's ``retries``, or, where the task
  was running, Airflow does so once it has ended. A retry leaves it. It may stay the same by chance, if the DAG
  was edited to fewer retries.
- ``clear_number`` of the DAG run: a Clear of any of its tasks raises it (unless the DAG run's state is left as it
  is), a retry does not.
- ``start_date`` of the DAG run: a Clear in a DAG run that had ended renews it. In such a DAG run no task waits
  for a retry.

=============  ================  ======================  ============  ==========================================
``max_tries``  ``clear_number``  a Clear may have left   DAG run       so the entry
                                 ``max_tries`` as it is  ``start_date``
=============  ================  ======================  ============  ==========================================
changed        any               -                       any           is from before a Clear: everything anew
same           same              -                       any           counts: this is a retry
same           changed           no                      any           counts: another task was cleared, or this
                                                                       one was while it ran and Airflow took its
                                                                       end for a failure
same           changed           yes                     changed       is from before a Clear: everything anew
same           changed           yes                     same          counts, for nobody can tell: no second run
=============  ================  ======================  ============  ==========================================

From Airflow 3.4 on, a Clear itself discards the entries, unless the person chose to keep them: there, an entry
that is found counts.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowFailException

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["Start", "StartRecord", "UploadRecord"]

_START = "workflow_automation_start"
_UPLOAD = "workflow_automation_upload"


@dataclass(frozen=True, slots=True)
class Start:
    """
    What is known of an earlier start.

    :param state: ``"starting"``: a run was about to be asked for, whether it was started is not known;
        ``"started"``: a run was started and is in ``result``; ``"unidentified"``: a run was started whose id
        nobody knows, ``result`` has the ``message``
    :param try_number: the try that wrote this
    :param at: when, as ISO 8601 text in UTC
    :param result: what the task returns
    :param cleared: the task was cleared since: a person asked for another run, and this one is only to be told of
    :param ambiguous: the task may have been cleared since, nobody can tell
    :param request: identifies what was asked for, None where that was not recorded
    """

    state: Literal["starting", "started", "unidentified"]
    try_number: int
    at: str
    result: dict[str, Any]
    cleared: bool
    ambiguous: bool
    request: str | None

    @property
    def words(self) -> str:
        """What happened, for a log."""
        match self.state:
            case "started":
                run_id, run_link = self.result.get("run_id"), self.result.get("run_link")
                named = f"run {run_id}" if run_id else "a run without a run_id"
                return f"{named} was started{f' ({run_link})' if run_link else ''}"
            case "unidentified":
                return "a run was started whose id is unknown"
        return "this task was about to start a run. A run may have been started"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """
    What tells a retry from a Clear, see the table above.

    :param try_number: number of the try
    :param max_tries: number of the last try that Airflow may retry
    :param clear_number: how often tasks of the DAG run were cleared, None where that is not known
    :param dag_run_start: when the DAG run was started, as ISO 8601 text
    """

    try_number: int
    max_tries: int
    clear_number: int | None
    dag_run_start: str | None

    @classmethod
    def of(cls, context: Context) -> _Attempt:
        """Return that of the try that runs now."""
        ti, dag_run = context["ti"], context["dag_run"]
        started: datetime | None = dag_run.start_date
        return cls(
            ti.try_number,
            ti.max_tries,
            getattr(dag_run, "clear_number", None),
            started.isoformat() if started else None,
        )

    def is_from_before_a_clear(self, now: _Attempt, retries: int) -> bool | None:
        """
        Tell whether the task was cleared between this try and that of ``now``.

        :param retries: what the DAG says now
        :return: None where nobody can tell
        """
        if now.max_tries != self.max_tries:
            return True
        if None in (self.clear_number, now.clear_number) or now.clear_number == self.clear_number:
            return False
        # Airflow sets max_tries to the last try's number plus retries, and any try since may have been the last.
        if not self.try_number <= now.max_tries - retries < now.try_number:
            return False
        return True if now.dag_run_start != self.dag_run_start else None


# Who has used which entries in the execution that this process is at: who took one twice would take another's run
# for its own. By the object of the task instance: Airflow makes a new one for each execution.
_lock = threading.Lock()
_execution: tuple[object, dict[str, object]] = (None, {})


def _users(ti: object) -> dict[str, object]:
    global _execution
    if _execution[0] is not ti:
        _execution = (ti, {})
    return _execution[1]


class _TaskRecord:
    """
    Entries of one operator within a task instance (a mapped one has its own) that count until it is cleared.

    :param context: the task's context
    :param task_id: the operator's: one that runs inside another task has entries of its own
    """

    def __init__(self, context: Context, task_id: str) -> None:
        ti = context["ti"]
        self._task_id = task_id
        self._name = "" if task_id == ti.task_id else f"/{task_id}"
        self._context = context
        self._store: Any = context.get("task_state_store")
        self._is_set = False

    @property
    def outlives_try(self) -> bool:
        """Whether a later try will know what this one did."""
        return self._store is not None

    @functools.cached_property
    def _now(self) -> _Attempt:
        return _Attempt.of(self._context)

    @property
    def is_nested(self) -> bool:
        """Whether the operator is executed inside another task, rather than by Airflow."""
        return bool(self._name)

    @contextmanager
    def in_use(self, operator: object) -> Iterator[None]:
        """
        Keep the entries for one operator, as long as the task is executed.

        :param operator: it may come again if it did nothing that is recorded
        :raises AirflowFailException: if another operator of the same ``task_id`` has used them, or this one has
        """
        if self._store is None:
            yield
            return
        with _lock:
            users = _users(self._context["ti"])
            mine = f"{type(self).__name__}{self._name}"
            if users.setdefault(mine, operator) is not operator:
                raise AirflowFailException(
                    f"An operator with the task_id {self._task_id!r} has already run in this task. Give each operator "
                    "that runs inside a task a task_id of its own, the same in each try, such as "
                    f"'{self._task_id}_1'. Nothing was sent for this one."
                )
            users[mine] = None
        try:
            yield
        finally:
            if not self._is_set:
                users[mine] = operator

    def release(self) -> None:
        """Let the same operator run again in this try: it started nothing."""
        self._is_set = False

    def _get(self, key: str) -> dict[str, Any] | None:
        found = None if self._store is None else self._store.get(key)
        self._is_set = self._is_set or bool(found)
        return found

    def _is_from_before_a_clear(self, entry: dict[str, Any]) -> bool | None:
        # From Airflow 3.4 on, where a task instance has a region, a Clear discards what is not to count.
        if hasattr(self._context["ti"], "region_id"):
            return False
        then = _Attempt(
            entry["try_number"], entry["max_tries"], entry.get("clear_number"), entry.get("dag_run_start")
        )
        return then.is_from_before_a_clear(self._now, self._context["task"].retries or 0)

    def _counts(self, entry: dict[str, Any]) -> bool:
        return not self._is_from_before_a_clear(entry)

    def _delete(self, key: str) -> None:
        if self._store is None:
            return
        try:
            self._store.delete(key)
        except Exception:  # once more: what is not taken back leaves a doubt for good
            self._store.delete(key)

    def _set(self, key: str, entry: dict[str, Any]) -> None:
        if self._store is None:
            return
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        self._is_set = True
        self._store.set(key, {**asdict(self._now), **entry}, retention=NEVER_EXPIRE)


class StartRecord(_TaskRecord):
    """What the task instance knows of the run that an operator starts."""

    request: str | None = None
    """Identifies what is asked for, where that is to be recorded."""

    def read(self) -> Start | None:
        """Return what was started last, None if nothing is known to have been."""
        found = self._get(self._key)
        if not found:
            return None
        cleared = self._is_from_before_a_clear(found)
        return Start(
            found["state"],
            found["try_number"],
            found["at"],
            found["result"],
            cleared=bool(cleared),
            ambiguous=cleared is None,
            request=found.get("request"),
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
        """
        Write that nothing was started after all.

        :raises Exception: if it could not be written, at the second attempt either: a later try will be in doubt
        """
        self._delete(self._key)
        self.release()

    @property
    def _key(self) -> str:
        return f"{_START}{self._name}"

    def _write(self, state: str, result: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"state": state, "at": at, "result": result, "request": self.request}
        self._set(self._key, {name: value for name, value in entry.items() if value is not None})


class UploadRecord(_TaskRecord):
    """The upload requests that the service confirmed, in order: an entry each, so that none is rewritten."""

    def __init__(self, context: Context, task_id: str) -> None:
        super().__init__(context, task_id)
        self._count = 0
        self._is_sending = False

    def read(self) -> list[dict[str, Any]]:
        """Return the requests that were confirmed since the last Clear."""
        found: list[dict[str, Any]] = []
        while (entry := self._get(self._confirmed_key(len(found)))) and self._counts(entry):
            found.append(entry["request"])
        self._count = len(found)
        return found

    def confirmed(self, request: dict[str, Any]) -> None:
        """Add a request that was confirmed, after those that :meth:`read` returned."""
        self._set(self._confirmed_key(self._count), {"request": request})
        self._count += 1
        self.take_back()

    def sending(self) -> None:
        """Write that a request is about to be sent, where it must not be sent again."""
        self._set(self._key, {})
        self._is_sending = True

    def interrupted(self) -> bool:
        """Tell whether a try since the last Clear ended before it knew whether a request was accepted."""
        found = self._get(self._key)
        return bool(found and self._counts(found))

    def take_back(self) -> None:
        """Write that it is known whether the request was accepted."""
        if self._is_sending:
            self._delete(self._key)
            if not self._count:
                self.release()

    @property
    def _key(self) -> str:
        return f"{_UPLOAD}{self._name}"

    def _confirmed_key(self, number: int) -> str:
        # The number before the name: behind it, it could be part of another's.
        return f"{_UPLOAD}_{number}{self._name}"
