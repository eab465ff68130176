"""
The record of a start: its entries in Airflow's task state store, and what is read from them.

:mod:`~.ledger` says what the entries mean, and who writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.starts.ledger import (
    ADOPTED,
    NO_REPORTS,
    OUTCOME,
    START,
    Facts,
    LastMessage,
    Outcome,
    RunReports,
    RunResult,
    Start,
    entry_of,
    message_key,
    revoked_key,
    run_key,
    run_result,
)
from workflow_automation_provider.execution.store import TaskRecord

if TYPE_CHECKING:
    from airflow.sdk import Context


_Entry = TypeVar("_Entry")


class StartRecord(TaskRecord):
    """
    The starts of a task instance: the operator's own, or those of one name.

    What was read once is known for good, even where a later read finds nothing.

    :param context: the task's context
    :param name: the name of a start within the task; empty for the operator's own
    """

    def __init__(self, context: Context, name: str = "") -> None:
        super().__init__(context, name)
        self._suffix = f"/{name}" if name else ""
        self._seen: dict[str, dict[str, Any]] = {}
        # How many starts this try has, where this execution writes its own.
        self._number = 0

    @property
    def try_number(self) -> int:
        """The number of this try, from 1."""
        return int(self._ti.try_number)

    @property
    def max_tries(self) -> int:
        """The number of the last try that Airflow may retry, which a Clear changes."""
        return int(self._ti.max_tries)

    # Read ---------------------------------------------------------------------------------------

    def last_start(self) -> Facts | None:
        """Return what is seen of the last start, None if none is seen."""
        for start in self._starts():
            return self._facts(start)
        return None

    def all_starts(self) -> list[Facts]:
        """Return what is seen of all starts, last first, including those from before a Clear."""
        return [self._facts(start) for start in self._starts()]

    def reports(self, token: str, *, certainly: bool = False) -> RunReports:
        """
        Return what the run with a token has said, as far as it is seen.

        :param certainly: whether to look again, after a probe, if nothing is seen
        :raises RuntimeError: if the store does not return the probe
        """
        key = run_key(token)
        entry = self.get(key)
        if entry is None and certainly:
            self.probe()
            entry = self.get(key)
        if entry is not None:
            self._seen[key] = entry
        return self._decoded(RunReports.of, key)

    def last_message(self, token: str) -> LastMessage:
        """Return what the run with a token said last while it worked."""
        return LastMessage.of(self.get(message_key(token)))

    def adopted(self) -> RunResult | None:
        """
        Return the run that a person entered for the task, None if none is seen, as in a first try.

        :raises InvalidRequestError: if the entry names no run
        """
        if not self.may_have_entries:
            return None
        entry: object = self._read(self._adopted_key)
        if entry is None:
            return None

        fields = entry if isinstance(entry, Mapping) else {"run_id": entry}
        unknown = fields.keys() - {"run_id", "run_link", "flow_id"}
        if unknown:
            raise self._not_a_run(f"has {min(map(str, unknown))!r:.60}")
        run_id = fields.get("run_id")
        is_id = isinstance(run_id, str | int) and not isinstance(run_id, bool)
        if not is_id or not str(run_id).strip():
            raise self._not_a_run(f"has the run_id {run_id!r:.60}")
        return run_result(
            str(run_id).strip(), _text(fields.get("run_link")), _text(fields.get("flow_id"))
        )

    def _not_a_run(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"The entry {self._adopted_key} in the task's state store {what}: expected a run_id as "
            'text, or an object such as {"run_id": "1001", "run_link": "https://…"}.',
            next_step="Correct the entry, or delete it.",
        )

    def _read(self, key: str) -> Any:
        """Return an entry that never changes, None if none is seen."""
        if key not in self._seen:
            entry = self.get(key)
            if entry is None:
                return None
            self._seen[key] = entry
        return self._seen[key]

    def _decoded(self, decode: Callable[[Any], _Entry], key: str) -> _Entry:
        """
        Return what an entry says that was read.

        :raises InvalidRequestError: if a person has damaged it
        """
        try:
            return decode(self._seen.get(key))
        except Exception:
            raise _damaged(key) from None

    def _starts(self) -> Iterator[Start]:
        """Yield the starts of this try and those before it, last first."""
        for try_number in range(self.try_number, 0, -1):
            yield from reversed(self._starts_of(try_number))

    def _starts_of(self, try_number: int) -> list[Start]:
        """
        Return the starts of a try.

        :raises InvalidRequestError: if a person has damaged one
        """
        starts: list[Start] = []
        while True:
            place = try_number, len(starts)
            key = self._key(START, place)
            entry = self._read(key)
            if entry is None:
                break
            start = Start.of(place, entry)
            if start is None:
                raise _damaged(key)
            starts.append(start)
        if try_number == self.try_number:
            self._number = len(starts)
        return starts

    def _facts(self, start: Start) -> Facts:
        token = start.token
        reports = self.reports(token) if token else NO_REPORTS
        if start.run:
            return Facts(start=start, reports=reports)

        key = self._key(OUTCOME, start.place)
        outcome = self._decoded(Outcome.of, key) if self._read(key) else None
        is_revoked = False
        names_run = outcome is not None and outcome.kind == "run"
        if token and names_run and not (reports.has_begun or reports.stopped):
            is_revoked = self._read(revoked_key(token)) is not None
        return Facts(
            start=start,
            outcome=outcome,
            reports=reports,
            is_revoked=is_revoked,
        )

    # Write ----------------------------------------------------------------------------------------

    def new_start(self, **fields: Any) -> Start:
        """Return the start of this execution, which is not yet recorded."""
        return Start(
            try_number=self.try_number,
            number=self._number,
            at=datetime.now(UTC),
            max_tries=self.max_tries,
            **fields,
        )

    def write_start(self, start: Start) -> None:
        """
        Record what is about to be sent; durable once this returns.

        :raises Exception: if it could not be written, also because the task instance now belongs to
            another process
        """
        self.set(self._key(START, start.place), entry_of(start))

    def may_send(self, start: Start, before: Facts | None) -> bool:
        """
        Return whether Airflow still runs this try, and has its record.

        A process that Airflow has given up, or whose task a person has marked, lives on for
        seconds.

        :param start: the start that was written
        :param before: the start before it, None if there is none
        """
        is_there = self.get(self._key(START, start.place)) == entry_of(start)
        if not is_there or not before or not before.is_closed or not before.start.token:
            return is_there
        return self.get(revoked_key(before.start.token)) is not None and self._is_running()

    def write_outcome(self, start: Start, outcome: Outcome) -> None:
        """Record what the response to a start said."""
        self.set(self._key(OUTCOME, start.place), entry_of(outcome))

    def revoke(self, facts: Facts) -> Facts:
        """
        Close a start, so that no run can claim it any more; return what is known of it by then.

        :raises Exception: if it is not certain that the start is closed
        """
        token = facts.start.token
        assert token  # noqa: S101
        self.set(revoked_key(token), {"at": datetime.now(UTC).isoformat()})
        self._write_again(facts.start)
        return facts._replace(reports=self.reports(token, certainly=True), is_closed=True)

    def adopt(self, run: RunResult, last: Facts | None, **wait: float | None) -> Facts:
        """
        Record that the task continues with the run that a person entered; return what is known now.

        :param wait: the timeouts of :class:`~.ledger.Start`
        """
        before = last.start if last else None
        known: dict[str, Any] = {}
        if before:
            known = {"conn_id": before.conn_id, "flow_id": before.flow_id}
        if before and before.token:
            known["token"] = before.token
            known["callback_url"] = before.callback_url
            known["issuer"] = before.issuer or before.place
        start = self.new_start(run=run, **known, **wait)
        self.write_start(start)

        if before and before.token:
            # Wait for a stop that the endpoint may be recording: the start before still decides it.
            self._write_again(before)
        self.forget_adopted()
        reports = self.reports(start.token, certainly=True) if start.token else NO_REPORTS
        return Facts(start=start, reports=reports)

    def forget_adopted(self) -> None:
        """Delete what a person has entered: it would bring the run back at a Clear months later."""
        self.delete(self._adopted_key)

    def _write_again(self, start: Start) -> None:
        """
        Write the start that gave out the token again, unchanged.

        This waits for the endpoint's locks.
        """
        place = start.issuer or start.place
        key = self._key(START, place)
        entry = self._read(key) if start.issuer else entry_of(start)
        if entry is None:
            raise RuntimeError(f"Airflow's task state store does not return the entry {key}.")
        self.set(key, entry)

    def _is_running(self) -> bool:
        """Return whether the task is still running for Airflow: a person may have marked it."""
        ti = self._ti
        states: Mapping[str, Mapping[str, str]] = ti.get_task_states(
            dag_id=ti.dag_id, map_index=ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
        )
        return {state for found in states.values() for state in found.values()} == {"running"}

    def _key(self, kind: str, place: tuple[int, int]) -> str:
        return f"{kind}{place[0]}/{place[1]}{self._suffix}"

    @property
    def _adopted_key(self) -> str:
        return f"{ADOPTED}{self._suffix}"


def _damaged(key: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The entry {key} in the task's state store was changed, and no longer says what was done.",
        next_step=(
            "Look in the workflow's list of runs for what was started.\n"
            "To start over, delete the entry under Storage, and clear the task."
        ),
    )


def _text(value: object) -> str | None:
    """Return a text without blanks around it, None if it is no text or empty."""
    if not isinstance(value, str):
        return None
    return value.strip() or None
