"""
The state of a task instance's starts and uploads, kept across its tries. Read this first.

**A start** has one entry in the task state store, by the name of the start:

================  =====================================================  =============================================
Entry             Written                                                What the next try makes of it
================  =====================================================  =============================================
none              at first; when the request was rejected, found the     starts the run
                  service busy or was not sent (``take_back``)
*starting*        before each request (``starting``). It stays where     a run may exist: fails without a retry, or
                  no response came or the process died                   starts another with ``start_again``
*started*         when the response named the run (``started``)          returns that run, and starts nothing
*unidentified*    when the service started a run whose id is unknown     fails without a retry
                  (``unidentified``)
any, *cleared*    the task was cleared since                             starts another run
================  =====================================================  =============================================

**An upload** has an entry for each request that the service confirmed, in order; a retry sends the files that are in
none of them. Where an upload must not be repeated, one more entry says that a request is being sent.

**What survives.** On Airflow 3.3+ the store outlives a try, a SIGKILL, a deferral and a restart of Airflow: entries are
set never to expire. ``set`` is durable when it returns, and raises where the task instance was meanwhile given to
another process, while ``get`` then only answers nothing. So *starting* is written before a run is asked for, and what
``get`` did not find is never trusted alone. Older versions have no such store.

**Who writes.** Only :mod:`~workflow_automation_provider.execution.start` and
:mod:`~workflow_automation_provider.execution.upload`, through the two classes below.

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
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast

from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["ConfirmedRequest", "Start", "StartRecord", "StartedRun", "UploadRecord"]

_START = "workflow_automation_start"
_UPLOAD = "workflow_automation_upload"


class StartedRun(TypedDict, total=False):
    """A run that a task started, as its result: what the service gave, as far as known."""

    run_id: str
    """Its identifier, digit for digit as the service wrote it."""
    run_link: str
    """URL of the run in the application."""
    flow_id: str
    """The flow; missing where only the API key identifies it."""
    response: Any
    """The service's whole JSON response, only where it has no ``run_id``."""


class ConfirmedRequest(TypedDict):
    """An upload request that the service confirmed."""

    files: list[str | None]
    """Names of the files, None for a mapping."""
    bytes: int
    """Size of the files."""
    response: str
    """What the service answered, cut."""
    digests: list[str]
    """What identifies each file as it was sent."""
    target: str
    """The flow and the run."""


class _Store(Protocol):
    """Airflow's task state store, as much of it as is used."""

    def get(self, key: str) -> dict[str, Any] | None: ...
    def set(self, key: str, value: dict[str, Any], *, retention: Any) -> None: ...
    def delete(self, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Start:
    """
    What is known of an earlier start.

    :param state: one of the table above
    :param try_number: the try that wrote this
    :param at: when, as ISO 8601 text in UTC
    :param run: the run, where it was *started*
    :param message: the error, where the run is *unidentified*
    :param cleared: the task was cleared since: a person asked for another run, and this one is only mentioned
    :param ambiguous: the task may have been cleared since, nobody can tell
    :param request: identifies what was asked for, None where that was not recorded
    """

    state: Literal["starting", "started", "unidentified"]
    try_number: int
    at: str
    run: StartedRun
    message: str
    cleared: bool
    ambiguous: bool
    request: str | None

    @property
    def words(self) -> str:
        """What happened, for a log."""
        match self.state:
            case "started":
                run_id, run_link = self.run.get("run_id"), self.run.get("run_link")
                named = f"started run {run_id}" if run_id else "started a run without a run_id"
                return f"{named}{f', {run_link}' if run_link else ''}"
            case "unidentified":
                return "started a run whose run_id is unknown"
        return "triggered the flow, and ended before the outcome was known. A run may have been started"


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
_USED_UP = object()


def _users(ti: object) -> dict[str, object]:
    global _execution
    if _execution[0] is not ti:
        _execution = (ti, {})
    return _execution[1]


class _TaskRecord:
    """
    Entries of one start or upload within a task instance (a mapped one has its own) that count until it is cleared.

    :param context: the task's context
    :param name: what it is called within the task
    :param nested: whether it is one of several within the task, each with entries of its own, rather than what the
        task itself is for
    """

    def __init__(self, context: Context, name: str, *, nested: bool) -> None:
        self.name = name
        self._suffix = f"/{name}" if nested else ""
        self._context = context
        # Not known to Airflow's types before 3.3.
        self._store = cast("_Store | None", context.get("task_state_store"))
        self._is_set = False

    @property
    def outlives_try(self) -> bool:
        """Whether a later try will know what this one did."""
        return self._store is not None

    @functools.cached_property
    def _now(self) -> _Attempt:
        return _Attempt.of(self._context)

    @contextmanager
    def in_use(self, user: object) -> Iterator[None]:
        """
        Keep the entries for one user, as long as the task is executed.

        :param user: it may come again if it did nothing that is recorded
        :raises InvalidRequestError: if another user of the same name has used them, or this one has
        """
        if self._store is None:
            yield
            return
        with _lock:
            users = _users(self._context["ti"])
            mine = f"{type(self).__name__}{self._suffix}"
            if users.setdefault(mine, user) is not user:
                raise InvalidRequestError(
                    f"The name or task_id {self.name!r} was already used in this task.",
                    next_step=(
                        "Give each start and upload inside a task a name or task_id of its own, the same in each try, "
                        f"such as '{self.name}_1'."
                    ),
                )
            users[mine] = _USED_UP
        try:
            yield
        finally:
            if not self._is_set:
                users[mine] = user

    def release(self) -> None:
        """Let the same user come again in this try: it started nothing."""
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
    """What the task instance knows of one run."""

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
            cast("StartedRun", found["result"] if found["state"] == "started" else {}),
            found["result"].get("message", "") if found["state"] == "unidentified" else "",
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

    def started(self, run: StartedRun) -> None:
        """Write that a run was started, and what the task returns for it."""
        self._write("started", {**run})

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
        return f"{_START}{self._suffix}"

    def _write(self, state: str, result: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"state": state, "at": at, "result": result, "request": self.request}
        self._set(self._key, {name: value for name, value in entry.items() if value is not None})


class UploadRecord(_TaskRecord):
    """The upload requests that the service confirmed, in order: an entry each, so that none is rewritten."""

    def __init__(self, context: Context, name: str, *, nested: bool) -> None:
        super().__init__(context, name, nested=nested)
        self._count = 0
        self._is_sending = False

    def read(self) -> list[ConfirmedRequest]:
        """Return the requests that were confirmed since the last Clear."""
        found: list[ConfirmedRequest] = []
        while (entry := self._get(self._confirmed_key(len(found)))) and self._counts(entry):
            request = entry["request"]
            # "reply" was its name before the first release.
            found.append(
                {
                    "files": request["files"],
                    "bytes": request["bytes"],
                    "response": request.get("response", request.get("reply", "")),
                    "digests": request["digests"],
                    "target": request.get("target", ""),
                }
            )
        self._count = len(found)
        return found

    def confirmed(self, request: ConfirmedRequest) -> None:
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
        return f"{_UPLOAD}{self._suffix}"

    def _confirmed_key(self, number: int) -> str:
        # The number before the name: behind it, it could be part of another's.
        return f"{_UPLOAD}_{number}{self._suffix}"
