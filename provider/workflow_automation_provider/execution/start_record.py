"""
The entry of a start in the task state store: one, under the name of the start, that a person can read.

``{"state": …, "at": …, "result": …, "request": …}`` and the :class:`~.ledger.Attempt` that wrote it. The state is
*starting* (the ledger's *open*), *started* or *unidentified*; there is no entry if nothing was started. Where the run was
given a token by that send, ``token`` is its hash, and ``waits`` says that the task waits for the run. For the page
**Flow runs**, it names the ``conn_id``, the ``flow_id`` if that is known, and when the request was ``sent``. If Airflow
may repeat the write of *starting*, ``workflow_automation_started`` has the ``token`` of a run that was started. A person may
enter the run that a task is to return, once, as ``workflow_automation_run``: before all that the ledger decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.callback import START_KEY, STARTED_KEY
from workflow_automation_provider.execution.errors import SUPPLIED_RUN_KEY
from workflow_automation_provider.execution.ledger import DIGEST_BYTES, Attempt, Entry, State
from workflow_automation_provider.execution.store import TaskRecord, attempt_of, slow_deletion

_STATES = {"starting": State.OPEN, "started": State.STARTED, "unidentified": State.UNIDENTIFIED}


class RunResult(TypedDict, total=False):
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


def run_result(
    run_id: str | None, run_link: str | None = None, flow_id: str | None = None, response: object = None
) -> RunResult:
    """Return a run without what is not known."""
    run = {"run_id": run_id, "run_link": run_link, "flow_id": flow_id, "response": response}
    return {name: value for name, value in run.items() if value is not None}  # type: ignore[return-value]  # a dict of those keys


class StartEntry(NamedTuple):
    """
    What an earlier try wrote.

    :param at: when, as ISO 8601 text in UTC
    :param run: the run, if it was *started*
    :param message: the error, if the run is *unidentified*
    :param request: the hash of the request, None if it was not recorded
    :param token: the hash of the token that the run was given, None if it was given none
    """

    attempt: Attempt
    state: State
    at: str
    run: RunResult
    message: str
    request: str | None
    token: str | None

    @property
    def text(self) -> str:
        """What happened, and in which try."""
        match self.state:
            case State.STARTED:
                run_id, run_link = self.run.get("run_id"), self.run.get("run_link")
                what = f"started run {run_id}" if run_id else "started a run without a run_id"
                what = one_line(f"{what}{f', {run_link}' if run_link else ''}")
            case State.UNIDENTIFIED:
                what = "started a run whose run_id is unknown"
            case _:
                what = (
                    "triggered the flow, and ended before the outcome was known. A run may have been started"
                )
        return f"try {self.attempt.try_number} ({self.at}) {what}."

    def for_ledger(self) -> Entry:
        """Return the entry for the ledger, whose only item it is."""
        digest = bytes.fromhex(self.request or "")[:DIGEST_BYTES]
        return Entry(self.attempt, ((0, digest),), ((0, self.state),), token=self.token)


class StartRecord(TaskRecord):
    """What the task instance knows about one run."""

    request: str | None = None
    """Identifies what is asked for, where that is to be recorded."""
    token: str | None = None
    """The hash of the token of the send that is recorded, None if its run is given none."""
    waits: bool = False
    """Whether the task waits for the end of its run: then it is not green before that, unless it was marked."""
    target: Mapping[str, str | None] = MappingProxyType({})
    """The ``conn_id`` and the ``flow_id`` of what is sent, as far as known."""
    _sent: str | None = None
    _entry: dict[str, Any]
    # A deletion of Airflow's that comes late would take the entry of a request that is being sent.
    _may_be_cleared_again = False
    # A write of *starting* that comes late would undo that of *started*.
    _may_be_starting_again = False

    def read(self) -> StartEntry | None:
        """Return what was written last, also before a Clear; None if nothing was."""
        entry = self._read(self._key)
        if not entry:
            return None
        self._entry = entry
        state, result = _STATES[entry["state"]], entry["result"]
        return StartEntry(
            attempt_of(entry),
            state,
            entry["at"],
            result if state is State.STARTED else {},
            result["message"] if state is State.UNIDENTIFIED else "",
            entry.get("request"),
            entry.get("token"),
        )

    def starting(self) -> None:
        """
        Record that a run is about to be started; the entry is durable once this returns.

        :raises Exception: if it could not be written, also because the task instance now belongs to another
            process: then nothing may be started
        """
        if self._may_be_cleared_again:
            raise slow_deletion()
        self._may_be_starting_again |= self._write("starting", {})

    def started(self, run: RunResult) -> None:
        """Record that a run was started, and the task's result."""
        self._write("started", {**run})
        if self._may_be_starting_again and self.token:
            self._set(STARTED_KEY, {"token": self.token})

    def unidentified(self, message: str) -> None:
        """Record that a run was started whose id is unknown, and the error message."""
        self._write("unidentified", {"message": message})

    def clear(self) -> None:
        """
        Record that nothing was started after all.

        :raises Exception: if it could not be written, even at the second attempt: a later try then assumes
            that a run may exist
        """
        self._may_be_cleared_again = self._delete(self._key)

    def restore(self) -> None:
        """
        Write again what :meth:`read` returned, so that a later try names the try that may have started a run.

        :raises Exception: if it could not be written: the entry then names this try in place of the earlier one
        """
        self._put(self._key, self._entry)

    def supplied_run(self) -> RunResult | None:
        """
        Return the run that a person entered for the task, to be returned in place of starting one.

        :raises InvalidRequestError: if the entry names no run
        """
        entry: object = self._read(self._supplied_key)
        if entry is None:
            return None
        fields = entry if isinstance(entry, Mapping) else {"run_id": entry}
        unknown = fields.keys() - {"run_id", "run_link", "flow_id"}
        run_id = fields.get("run_id")
        is_id = isinstance(run_id, str | int) and not isinstance(run_id, bool) and str(run_id).strip()
        if unknown or not is_id:
            wrong = f"has {min(map(str, unknown))!r:.60}" if unknown else f"has the run_id {run_id!r:.60}"
            raise InvalidRequestError(
                f"The entry {self._supplied_key} in the task's state store {wrong}: expected a run_id as text, or an "
                'object such as {"run_id": "1001", "run_link": "https://…"}.',
                next_step="Correct the entry, or delete it.",
            )
        link, flow_id = (
            (text.strip() or None) if isinstance(text := fields.get(name), str) else None
            for name in ("run_link", "flow_id")
        )
        return run_result(str(run_id).strip(), link, flow_id)

    def consume_supplied_run(self) -> None:
        """Delete what a person entered: it is used once."""
        self._delete(self._supplied_key)

    @property
    def digest(self) -> bytes:
        """Identifies the request for the ledger; empty where another request of a later try is no error."""
        return bytes.fromhex(self.request)[:DIGEST_BYTES] if self.name and self.request else b""

    @property
    def _key(self) -> str:
        return f"{START_KEY}{self._suffix}"

    @property
    def _supplied_key(self) -> str:
        return f"{SUPPLIED_RUN_KEY}{self._suffix}"

    def _write(self, state: Literal["starting", "started", "unidentified"], result: dict[str, Any]) -> bool:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        if state == "starting":
            self._sent = at
        entry = {
            "state": state,
            "at": at,
            "result": result,
            "request": self.request,
            "token": self.token,
            "waits": self.waits or None,
            **self.target,
            "sent": self._sent,
        }
        return self._set(self._key, {name: value for name, value in entry.items() if value is not None})
