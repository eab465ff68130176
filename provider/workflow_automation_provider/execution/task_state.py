"""
The state of a task instance's starts and uploads, which persists across its tries. Read this first.

**A start** has one entry in the task state store, under the name of the start:

================  =====================================================  =============================================
Entry             Written                                                What the next try does
================  =====================================================  =============================================
none              initially; when the request was rejected, rejected     starts the run
                  as busy, or not sent (``take_back``)
*starting*        before each request (``starting``); remains if there   a run may exist: fails (no retry), or
                  was no response or the process died                    starts another with ``start_again``
*started*         when the response identified the run (``started``)     returns that run
*unidentified*    when the service started a run whose id is unknown     fails without a retry
                  (``unidentified``)
any, *cleared*    the task has been cleared since                        starts another run
a run, *given*    by a person, in Airflow, to a task that failed         returns that run, once: before all others
================  =====================================================  =============================================

**An upload** has an entry for each request that the service confirmed, in order; a retry sends the files that
are in none of them. An entry is small however many files its request had, see
:mod:`~workflow_automation_provider.execution.confirmed_files`. If an upload must not be repeated, another entry says that a request is being sent.

**What persists.** On Airflow 3.3+, the store outlives a try, a SIGKILL, a deferral and a restart of Airflow:
entries never expire. ``set`` is durable once it returns, and raises if the task instance now belongs to
another process; ``get`` then only returns None. Therefore *starting* is written before the request is sent,
and a None from ``get`` is never trusted alone. Older versions have no such store.

**Who writes.** Only :mod:`~workflow_automation_provider.execution.start` and
:mod:`~workflow_automation_provider.execution.upload`, through the two classes below.

**Retry or Clear?** A retry must find what an earlier try wrote; a Clear asks to start over. Airflow does not
say which of the two it was, so an entry contains what a Clear changes:

- ``max_tries``: a Clear sets it to the number of the last try plus the task's ``retries``; if the task was
  running, Airflow does so once it has ended. A retry does not change it. It may stay the same by chance, if
  the DAG was edited to fewer retries.
- ``clear_number`` of the DAG run: a Clear of any of its tasks increases it (unless the DAG run's state is
  kept), a retry does not.
- ``start_date`` of the DAG run: a Clear in a DAG run that had ended resets it. In such a DAG run, no task is
  waiting for a retry.

=============  ================  ======================  ============  ==========================================
``max_tries``  ``clear_number``  a Clear may have left   DAG run       so the entry
                                 ``max_tries`` as it is  ``start_date``
=============  ================  ======================  ============  ==========================================
changed        any               -                       any           is from before a Clear: start over
same           same              -                       any           counts: this is a retry
same           changed           no                      any           counts: another task was cleared, or
                                                                       this one was while it ran and Airflow
                                                                       counted its end as a failure
same           changed           yes                     changed       is from before a Clear: start over
same           changed           yes                     same          counts, as it is unknown: no second run
=============  ================  ======================  ============  ==========================================

On Airflow 3.4+, a Clear itself deletes the entries, unless the user chose to keep them: there, an entry that
is found counts.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.retry import GIVEN_RUN
from workflow_automation_provider.execution.telemetry import Telemetry

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from workflow_automation_provider.execution.confirmed_files import Identities

__all__ = ["ConfirmedRequest", "Start", "StartRecord", "StartedRun", "UploadRecord"]

_START = "workflow_automation_start"
_UPLOAD = "workflow_automation_upload"


class StartedRun(TypedDict, total=False):
    """The run that a task started, as the task's result: what the service returned, as far as known."""

    run_id: str
    """Its identifier, exactly as the service wrote it."""
    run_link: str
    """URL of the run in the application."""
    flow_id: str
    """The flow; missing if only the API key identifies it."""
    response: Any
    """The service's whole JSON response, only if it has no ``run_id``."""
    result: Any
    """What the flow returned, only if the task waited for its end."""


class ConfirmedRequest(TypedDict):
    """An upload request that the service confirmed."""

    files: list[str | None]
    """Names of its first files, None for a mapping."""
    count: int
    """Number of its files and mappings."""
    bytes: int
    """Total size of the files."""
    response: str
    """The service's response, truncated."""
    target: str
    """The flow and the run."""
    identities: Identities
    """What identifies the files as they were sent."""


class _Store(Protocol):
    """The part of Airflow's task state store that is used here."""

    def get(self, key: str) -> dict[str, Any] | None: ...
    def set(self, key: str, value: dict[str, Any], *, retention: Any) -> None: ...
    def delete(self, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Start:
    """
    What is known about an earlier start.

    :param state: one of those in the table above
    :param try_number: the try that wrote this
    :param at: when, as ISO 8601 text in UTC
    :param run: the run, if it was *started*
    :param message: the error, if the run is *unidentified*
    :param cleared: whether the task has been cleared since: the user wants another run, and this one is only
        logged
    :param ambiguous: whether it is unknown if the task has been cleared since
    :param request: the hash of the request, None if it was not recorded
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
        """What happened, for the log."""
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
    What distinguishes a retry from a Clear, see the table above.

    :param max_tries: number of the last try that Airflow may retry
    :param clear_number: how often tasks of the DAG run were cleared, None if that is unknown
    :param dag_run_start: when the DAG run was started, as ISO 8601 text
    """

    try_number: int
    max_tries: int
    clear_number: int | None
    dag_run_start: str | None

    @classmethod
    def of(cls, context: Context) -> _Attempt:
        """Return the attempt of the current try."""
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
        Return whether the task was cleared between this try and ``now``.

        :param retries: the task's current ``retries``
        :return: None if that is unknown
        """
        if now.max_tries != self.max_tries:
            return True
        if None in (self.clear_number, now.clear_number) or now.clear_number == self.clear_number:
            return False
        # A Clear sets max_tries to the last try's number plus retries, and any try since may have been the
        # last.
        if not self.try_number <= now.max_tries - retries < now.try_number:
            return False
        return True if now.dag_run_start != self.dag_run_start else None


# Which user has used which entries in the current execution: a second user of an entry would mistake
# another's run for its own. Identified by the task instance object, because Airflow creates a new one for
# each execution.
_lock = threading.Lock()
_execution: tuple[object, dict[str, object]] = (None, {})
_USED_UP = object()

_NAMING = "Give each start and upload inside a task a name of its own that means the same in every try."
_CLEAR = "A Clear does everything in the task again, what was started before included."


def _users(ti: object) -> dict[str, object]:
    global _execution
    if _execution[0] is not ti:
        _execution = (ti, {})
    return _execution[1]


class _TaskRecord:
    """
    The entries of one start or upload of a task instance (mapped or not), which count until it is cleared.

    :param context: the task's context
    :param name: identifies the start or upload within the task
    :param nested: whether it is one of several within the task, each with its own entries, rather than the
        purpose of the task itself
    """

    def __init__(self, context: Context, name: str, *, nested: bool) -> None:
        self.name = name
        self._suffix = f"/{name}" if nested else ""
        self._context = context
        # Airflow's types before 3.3 do not include it.
        self._store = cast("_Store | None", context.get("task_state_store"))
        self._is_set = False

    @functools.cached_property
    def telemetry(self) -> Telemetry:
        """The metrics and traces of the task."""
        return Telemetry(self._context)

    @property
    def outlives_try(self) -> bool:
        """Whether a later try can read what this one wrote."""
        return self._store is not None

    @property
    def is_later_try(self) -> bool:
        """Whether there was a try before this one, also before a Clear."""
        return bool(self._context["ti"].try_number > 1)

    @functools.cached_property
    def _now(self) -> _Attempt:
        return _Attempt.of(self._context)

    @contextmanager
    def in_use(self, user: object) -> Iterator[None]:
        """
        Reserve the entries for one user, for as long as the task is executed.

        :param user: may use them again if it recorded nothing
        :raises InvalidRequestError: if they are already used, by this or another user of the same name
        """
        with _lock:
            users = _users(self._context["ti"])
            mine = f"{type(self).__name__}{self._suffix}"
            if users.setdefault(mine, user) is not user:
                raise InvalidRequestError(
                    f"The name or task_id {self.name!r} was already used in this try of the task.",
                    consequence="Nothing was sent for its second use.",
                    next_step=f"{_NAMING}\n{_CLEAR}",
                )
            users[mine] = _USED_UP
        try:
            yield
        finally:
            if not self._is_set:
                users[mine] = user

    def release(self) -> None:
        """Allow the same user to use the entries again in this try, because it started nothing."""
        self._is_set = False

    def _get(self, key: str) -> dict[str, Any] | None:
        found = None if self._store is None else self._store.get(key)
        self._is_set = self._is_set or bool(found)
        return found

    def _is_from_before_a_clear(self, entry: dict[str, Any]) -> bool | None:
        # On Airflow 3.4+, where a task instance has a region, a Clear itself deletes the entries.
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
        except Exception:  # retried once, because otherwise it stays unknown whether a run was started
            self._store.delete(key)

    def _set(self, key: str, entry: dict[str, Any]) -> None:
        self._is_set = True
        if self._store is not None:
            self._put(self._store, key, {**asdict(self._now), **entry})

    def _put(self, store: _Store, key: str, entry: dict[str, Any]) -> None:
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        store.set(key, entry, retention=NEVER_EXPIRE)


class StartRecord(_TaskRecord):
    """What the task instance knows about one run."""

    request: str | None = None
    """Identifies what is asked for, where that is to be recorded."""
    _found: dict[str, Any] | None = None

    def read(self) -> Start | None:
        """Return what was started last, None if nothing is known to have been."""
        self._found = found = self._get(self._key)
        if not found:
            return None
        # "reply" was the name of the response before the first release.
        result = {"response" if key == "reply" else key: value for key, value in found["result"].items()}
        run = cast("StartedRun", result if found["state"] == "started" else {})
        cleared = self._is_from_before_a_clear(found)
        return Start(
            found["state"],
            found["try_number"],
            found["at"],
            run,
            found["result"].get("message", "") if found["state"] == "unidentified" else "",
            cleared=bool(cleared),
            ambiguous=cleared is None,
            request=found.get("request"),
        )

    def in_doubt(self) -> bool:
        """Return whether an earlier try may have started a run that it could not identify."""
        earlier = self.read()
        return bool(earlier and not earlier.cleared and earlier.state != "started")

    def starting(self) -> None:
        """
        Record that a run is about to be started; the entry is durable once this returns.

        :raises Exception: if it could not be written, also because the task instance now belongs to another
            process: then nothing may be started
        """
        self._write("starting", {})

    def started(self, run: StartedRun) -> None:
        """Record that a run was started, and the task's result."""
        self._write("started", {**run})

    def unidentified(self, message: str) -> None:
        """Record that a run was started whose id is unknown, and the error message."""
        self._write("unidentified", {"message": message})

    def take_back(self) -> None:
        """
        Record that nothing was started after all.

        :raises Exception: if it could not be written, even at the second attempt: a later try then assumes
            that a run may exist
        """
        self._delete(self._key)
        self.release()

    def put_back(self) -> None:
        """
        Write again what :meth:`read` found: this try started nothing, an earlier one may have.

        :raises Exception: if it could not be written: the entry then names this try in place of the earlier one
        """
        if self._store is not None and self._found:
            self._put(self._store, self._key, self._found)

    def given(self) -> StartedRun | None:
        """
        Return the run that a person entered for the task, to be returned in place of starting one.

        :raises InvalidRequestError: if the entry names no run
        """
        entry: object = None if self._store is None else self._store.get(self._given_key)
        if entry is None:
            return None
        fields = entry if isinstance(entry, Mapping) else {"run_id": entry}
        unknown = fields.keys() - {"run_id", "run_link", "flow_id"}
        run_id = fields.get("run_id")
        is_id = isinstance(run_id, str | int) and not isinstance(run_id, bool) and str(run_id).strip()
        if unknown or not is_id:
            found = f"has {min(map(str, unknown))!r:.60}" if unknown else f"has the run_id {run_id!r:.60}"
            raise InvalidRequestError(
                f"The entry {self._given_key} in the task's state store {found}: expected a run_id as text, or an "
                'object such as {"run_id": "1001", "run_link": "https://…"}.',
                next_step="Correct the entry, or delete it.",
            )
        run: StartedRun = {"run_id": str(run_id).strip()}
        if isinstance(link := fields.get("run_link"), str) and link.strip():
            run["run_link"] = link.strip()
        if isinstance(flow := fields.get("flow_id"), str) and flow.strip():
            run["flow_id"] = flow.strip()
        return run

    def take_given(self) -> None:
        """Delete what a person entered: it is used once."""
        self._delete(self._given_key)

    @property
    def _key(self) -> str:
        return f"{_START}{self._suffix}"

    @property
    def _given_key(self) -> str:
        return f"{GIVEN_RUN}{self._suffix}"

    def _write(self, state: str, result: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"state": state, "at": at, "result": result, "request": self.request}
        self._set(self._key, {name: value for name, value in entry.items() if value is not None})


class UploadRecord(_TaskRecord):
    """The upload requests that the service confirmed, in order: one entry each, so that none is rewritten."""

    def __init__(self, context: Context, name: str, *, nested: bool) -> None:
        super().__init__(context, name, nested=nested)
        self._count = 0
        self._is_sending = False

    def read(self) -> list[ConfirmedRequest]:
        """Return the requests that were confirmed since the last Clear."""
        found: list[ConfirmedRequest] = []
        while (entry := self._get(self._confirmed_key(len(found)))) and self._counts(entry):
            found.append(entry["request"])
        self._count = len(found)
        return found

    def confirmed(self, request: ConfirmedRequest) -> None:
        """Add a request that was confirmed, after those that :meth:`read` returned."""
        self._set(self._confirmed_key(self._count), {"request": request})
        self._count += 1
        self.take_back()

    def sending(self) -> None:
        """Write that a request is about to be sent, where it must not be sent again."""
        self._set(self._key, {"number": self._count})
        self._is_sending = True

    def interrupted(self) -> bool:
        """
        Tell whether a try since the last Clear ended before it knew whether a request was accepted.

        To be asked after :meth:`read`.
        """
        found = self._get(self._key)
        # Once it is confirmed, what was written before it was sent counts no more.
        return bool(found and self._counts(found) and found.get("number", self._count) >= self._count)

    def take_back(self) -> None:
        """Record that the outcome of the request is known."""
        if self._is_sending:
            self._delete(self._key)
            if not self._count:
                self.release()

    @property
    def _key(self) -> str:
        return f"{_UPLOAD}{self._suffix}"

    def _confirmed_key(self, number: int) -> str:
        # The number precedes the name: after it, it could be part of another name.
        return f"{_UPLOAD}_{number}{self._suffix}"
