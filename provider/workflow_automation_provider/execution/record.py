"""
The record of a start: its entries in Airflow's task state store, and what is read from them.

:mod:`~.ledger` says what the entries mean, and who writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.ledger import (
    ENTERED,
    OUTCOME,
    START,
    Facts,
    Outcome,
    RunResult,
    Spoken,
    Start,
    entry_of,
    frozen_key,
    run_key,
    run_result,
    word_key,
)
from workflow_automation_provider.execution.store import TaskRecord

if TYPE_CHECKING:
    from airflow.sdk import Context


class StartRecord(TaskRecord):
    """
    The starts of a task instance: the operator's own, or those of one name.

    :param context: the task's context
    :param name: the name of a start within the task; empty for the operator's own
    """

    def __init__(self, context: Context, name: str = "") -> None:
        super().__init__(context, name)
        self._suffix = f"/{name}" if name else ""
        # Where this execution writes its start: known once the earlier ones are read.
        self._place: tuple[int, int]

    @property
    def try_number(self) -> int:
        """The number of this try, from 1."""
        return int(self._ti.try_number)

    @property
    def max_tries(self) -> int:
        """The number of the last try that Airflow may retry, which a Clear changes."""
        return int(self._ti.max_tries)

    # Read ---------------------------------------------------------------------------------------------------

    def last_start(self) -> Facts | None:
        """
        Return what is known of the last start, None if there is none.

        :raises RuntimeError: if the store does not return what was just written to it
        """
        start = next(self._starts(), None)
        return self._facts(start) if start else None

    def all_starts(self) -> list[Facts]:
        """Return what is known of all starts, last first, including those from before a Clear."""
        return [self._facts(start) for start in self._starts()]

    def spoken(self, token: str, *, twice: bool = False) -> Spoken:
        """
        Return what the run with a token has said, as far as it is seen.

        :param twice: whether to look again if nothing is seen
        """
        get = self.get_twice if twice else self.get
        return Spoken.of(get(run_key(token)))

    def last_word(self, token: str) -> datetime | None:
        """Return when the run with a token last said that it was running, None if it never did."""
        word = self.get_twice(word_key(token))
        return datetime.fromisoformat(word["at"]).replace(tzinfo=UTC) if word else None

    def entered(self) -> RunResult | None:
        """
        Return the run that a person entered for the task, None if there is none, as in a first try.

        :raises InvalidRequestError: if the entry names no run
        """
        if not self.may_have_entries:
            return None
        entry: object = self.get_twice(self._entered_key)
        if entry is None:
            return None
        fields = entry if isinstance(entry, Mapping) else {"run_id": entry}
        unknown = fields.keys() - {"run_id", "run_link", "flow_id"}
        run_id = fields.get("run_id")
        is_id = (
            isinstance(run_id, str | int) and not isinstance(run_id, bool) and str(run_id).strip()
        )
        if unknown or not is_id:
            wrong = (
                f"has {min(map(str, unknown))!r:.60}"
                if unknown
                else f"has the run_id {run_id!r:.60}"
            )
            raise InvalidRequestError(
                f"The entry {self._entered_key} in the task's state store {wrong}: expected a run_id as text, or an "
                'object such as {"run_id": "1001", "run_link": "https://…"}.',
                next_step="Correct the entry, or delete it.",
            )
        link, flow_id = (
            (text.strip() or None) if isinstance(text := fields.get(name), str) else None
            for name in ("run_link", "flow_id")
        )
        return run_result(str(run_id).strip(), link, flow_id)

    def _starts(self) -> Iterator[Start]:
        """Yield the starts of this try and those before it, last first."""
        missing: list[int] = []
        for number in range(self._ti.try_number, 0, -1):
            if starts := self._starts_of(number):
                yield from self._looked_for_again(missing)
                missing = []
                yield from reversed(starts)
            elif self.may_have_entries:
                missing.append(number)
        yield from self._looked_for_again(missing)

    def _looked_for_again(self, tries: list[int]) -> Iterator[Start]:
        """Yield the starts of tries that seemed to have none, read again after a probe."""
        if not tries or (tries == [self._ti.try_number] and not self.was_continued):
            return
        self.probe()
        for number in tries:
            yield from reversed(self._starts_of(number))

    def _starts_of(self, try_number: int) -> list[Start]:
        """
        Return the starts of a try.

        :raises InvalidRequestError: if a person has damaged one
        """
        starts, get = list[Start](), self.get
        while (entry := get(key := self._key(START, (try_number, len(starts))))) is not None:
            get = self.get_twice  # after a first one, no probe tells that there is no other
            start = Start.of((try_number, len(starts)), entry)
            if start is None:
                raise InvalidRequestError(
                    f"The entry {key} in the task's state store was changed, and says no longer what try {try_number} did.",
                    next_step=(
                        "Look in the workflow's list of runs for what it started. To start over, delete the entry under "
                        "Storage and clear the task."
                    ),
                )
            starts.append(start)
        if try_number == self._ti.try_number:
            self._place = (try_number, len(starts))
        return starts

    def _facts(self, start: Start) -> Facts:
        token = start.token
        spoken = self.spoken(token, twice=start.run is not None) if token else Spoken()
        if start.run:
            return Facts(start=start, spoken=spoken)
        entry = self.get_twice(self._key(OUTCOME, start.place))
        outcome, is_frozen = Outcome.of(entry) if entry else None, False
        if outcome and outcome.kind == "run" and token and not (spoken.has_begun or spoken.stopped):
            # Another run may have claimed, and a frozen one cannot go on: both are read again, to be certain.
            spoken = self.spoken(token)
            is_frozen = self.get_twice(frozen_key(token)) is not None
        return Facts(start=start, outcome=outcome, spoken=spoken, is_frozen=is_frozen)

    # Write --------------------------------------------------------------------------------------------------

    def new_start(self, **fields: Any) -> Start:
        """Return the start of this execution, which is not yet recorded."""
        try_number, number = self._place
        at = datetime.now(UTC)
        return Start(
            try_number=try_number, number=number, at=at, max_tries=self.max_tries, **fields
        )

    def write_start(self, start: Start) -> None:
        """
        Record what is about to be sent; durable once this returns.

        :raises Exception: if it could not be written, also because the task instance now belongs to another process
        """
        self.set(self._key(START, start.place), entry_of(start))

    def may_send(self, start: Start, before: Facts | None) -> bool:
        """
        Return whether Airflow still runs this try, and has its record.

        A process that Airflow has given up, or whose task a person has marked, lives on for seconds.

        :param start: the start that was written
        :param before: the start before it, None if there is none
        """
        is_there = self.get(self._key(START, start.place)) == entry_of(start)
        if not is_there or not before or not before.is_closed or not before.start.token:
            return is_there
        return self.get(frozen_key(before.start.token)) is not None and self._is_running()

    def write_outcome(self, start: Start, outcome: Outcome) -> None:
        """Record what the response to a start said."""
        self.set(self._key(OUTCOME, start.place), entry_of(outcome))

    def close(self, facts: Facts) -> Facts:
        """
        Close a start, so that no run can claim it any more, and return what is known of it now.

        :raises Exception: if it is not certain that the start is closed
        """
        start = facts.start
        assert start.token  # noqa: S101
        self.set(frozen_key(start.token), {"at": datetime.now(UTC).isoformat()})
        self._write_again(start)
        spoken = self.spoken(start.token, twice=True)
        return facts._replace(spoken=spoken, is_closed=True)

    def enter(self, run: RunResult, last: Facts | None, *, waits: bool) -> Facts:
        """Record that the task continues with the run that a person entered, and return what is known of it now."""
        before, known = last and last.start, dict[str, Any]()
        if before:
            known = {"conn_id": before.conn_id, "flow_id": before.flow_id}
        if before and before.token:
            known |= {"token": before.token, "giver": before.giver or before.place}
        start = self.new_start(run=run, waits=waits, **known)
        self.write_start(start)
        if before and before.token:
            # Wait for a stop that the endpoint may be recording: it is still decided by the start before.
            self._write_again(before)
        self.forget_entered()
        return Facts(
            start=start, spoken=self.spoken(start.token, twice=True) if start.token else Spoken()
        )

    def forget_entered(self) -> None:
        """Delete what a person entered: it would bring the run back at a Clear months later."""
        self.delete(self._entered_key)

    def _write_again(self, start: Start) -> None:
        """Write the start that gave out the token again, unchanged: this waits for the endpoint's locks."""
        place = start.giver or start.place
        key = self._key(START, place)
        entry = self.get_twice(key) if start.giver else entry_of(start)
        if entry is None:
            raise RuntimeError(f"Airflow's task state store has lost the entry {key}.")
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
    def _entered_key(self) -> str:
        return f"{ENTERED}{self._suffix}"
