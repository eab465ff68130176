"""
The record of a start: its entries in Airflow's task state store, and what is read from them.

:mod:`~.entries` says what each of them means, and who writes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    ConnectionUnusableError,
    InvalidRequestError,
    NotSentError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.record.entries import (
    REPORT,
    End,
    LastMessage,
    Outcome,
    Place,
    Revoked,
    RunReports,
    RunResult,
    Start,
    adopted_key,
    entry_of,
    message_key,
    outcome_key,
    read_adopted,
    read_message,
    read_reports,
    read_start,
    report_key,
    revoked_key,
    start_key,
)
from workflow_automation_provider.execution.record.start_decision import KnownStart, known_start
from workflow_automation_provider.execution.record.state_store import TaskRecord
from workflow_automation_provider.wording import run_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.redaction import Redactor


ReadEnd: TypeAlias = Callable[[str, str], End | None]
RedactorOf: TypeAlias = Callable[[str | None], "Redactor | None"]

# What a start that adopts a run has of the start before it.
_ADOPTED_FIELDS = ("conn_id", "origin", "flow_id", "token_hash", "callback_url", "mailbox")


class StartRecord(TaskRecord):
    """
    The starts of a task instance: the operator's own, or those of one name.

    What was read once is known for good, even where a later read finds nothing.

    :param context: the task's context
    :param name: the name of a start within the task; empty for the operator's own
    :param read_end: returns the end in the mailbox with a URL and the hash of a token, None if
        there is none
    """

    def __init__(
        self, context: Context, name: str = "", *, read_end: ReadEnd | None = None
    ) -> None:
        super().__init__(context, name)
        self._read_end = read_end
        self._seen: dict[str, Any] = {}
        # The number of this execution's own start: how many this try had before, once it is read.
        self._number: int

    @property
    def try_number(self) -> int:
        """The number of this try, from 1."""
        return int(self._ti.try_number)

    # Read ---------------------------------------------------------------------------------------

    def last_start(self) -> KnownStart | None:
        """Return what is seen of the last start, None if none is seen."""
        for start in self._starts():
            return self._known(start, looks=start.max_tries == self.max_tries)
        return None

    def all_starts(self) -> list[KnownStart]:
        """Return what is seen of all starts, last first, including those from before a Clear."""
        return [
            self._known(start, looks=number == 0) for number, start in enumerate(self._starts())
        ]

    def look(self, known: KnownStart, *, certainly: bool = False) -> KnownStart:
        """
        Return what is known of a start with a token, also what its run has reported by now.

        A mailbox that cannot be read says nothing of the run, and decides nothing.

        :param certainly: whether to look again, after a probe, if nothing is seen
        :raises RuntimeError: if the store does not return the probe
        :raises RunTimeoutError: if what is in the mailbox is not valid
        :raises ConnectionUnusableError: if the mailbox cannot be read
        :raises NotSentError: so, of a start that started nothing
        """
        run_id = known.run(None).get("run_id")
        try:
            return known._replace(reports=self._reports(known.start, certainly=certainly))
        except RunTimeoutError as error:
            consequence = f"{run_text(run_id)} was started."
            raise error.with_facts(run_id=run_id, consequence=consequence) from None
        except NotSentError as error:
            text = self.text(known, lambda _: None)
            raise _unread(error, known, run_id, text) from error.__cause__

    def _reports(self, start: Start, *, certainly: bool) -> RunReports:
        """Return what the run of a start has reported, as far as it is seen."""
        token = start.token_hash
        assert token  # noqa: S101
        key = report_key(token)
        entry = self.get(key)
        if entry is None and certainly:
            self.probe()
            entry = self.get(key)
        if entry is not None:
            self._seen[key] = entry
        if key not in self._seen and start.mailbox:
            self._copy_mailbox(start.mailbox, token)

        return read_reports(token, self._seen.get(key))

    def _copy_mailbox(self, mailbox: str, token: str) -> None:
        """Record what the run has written to its mailbox, if anything."""
        assert self._read_end  # noqa: S101
        end = self._read_end(mailbox, token)
        if end:
            key, entry = report_key(token), entry_of(RunReports(end=end))
            self.set(key, entry)
            self._seen[key] = entry

    def text(self, known: KnownStart, redactor_of: RedactorOf) -> str:
        """
        Return in words what a start and those before it may have left.

        :param redactor_of: returns what :meth:`.KnownStart.run` takes, for a connection
        :return: empty if no run may go on
        """
        sentences = [self._text_at(place, redactor_of) for place in known.start.earlier]
        if not known.started_nothing:
            sentences.append(known.text(redactor_of(known.start.conn_id)))

        return " ".join(sentences)

    def _text_at(self, place: Place, redactor_of: RedactorOf) -> str:
        """Return in words what an earlier start did, also if its entry is damaged or gone."""
        entry = self._read(start_key(place, self.name))
        with contextlib.suppress(InvalidRequestError):
            start = read_start(place, entry)
            known = known_start(start, self._read, name=self.name)
            return known.text(redactor_of(start.conn_id))

        return f"try {place[0]} may have started a run: its entry cannot be read."

    def last_message(self, start: Start) -> LastMessage:
        """Return what the run of a start, which has a token, reported last while it worked."""
        assert start.token_hash  # noqa: S101
        return read_message(self.get(message_key(start.token_hash)))

    def adopted(self) -> RunResult | None:
        """
        Return the run that a person gives the task, None if none is seen, as in a first try.

        :raises InvalidRequestError: if the entry names no run
        """
        if not self.may_have_entries:
            return None

        key = adopted_key(self.name)
        entry = self._read(key)
        if entry is None:
            return None

        return read_adopted(key, entry)

    def _read(self, key: str) -> Any:
        """Return an entry as it is now, or as it was seen before, None if it never was."""
        # A run may have reported more; nothing else changes.
        if key not in self._seen or key.startswith(REPORT):
            entry = self.get(key)
            if entry is not None:
                self._seen[key] = entry

        return self._seen.get(key)

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
            entry = self._read(start_key(place, self.name))
            if entry is None:
                break
            starts.append(read_start(place, entry, name=self.name))

        if try_number == self.try_number:
            self._number = len(starts)

        return starts

    def _known(self, start: Start, *, looks: bool) -> KnownStart:
        """
        Return what is seen of a start.

        :param looks: whether to look into its mailbox, if it has one
        :raises WorkflowAutomationError: if that cannot be read, or what is there is not valid
        """
        known = known_start(start, self._read, name=self.name)
        return self.look(known) if looks and start.mailbox else known

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
        key, entry = start_key(start.place, self.name), entry_of(start)
        self.set(key, entry)
        self._seen[key] = entry

    def may_send(self, start: Start, before: KnownStart | None) -> bool:
        """
        Return whether Airflow still runs this try, and has its record.

        A process lives on for seconds after Airflow has given it up, or a person has marked its
        task.

        :param start: the start that was written
        :param before: the start before it, None if there is none
        """
        if self.get(start_key(start.place, self.name)) != entry_of(start):
            return False
        if not before or not before.is_settled:
            return True

        # This start replaces a run that may exist: that must be told to stop, if it can ask.
        token = before.start.token_hash
        if token and before.start.can_call and self.get(revoked_key(token)) is None:
            return False

        return self._is_running()

    def write_outcome(self, start: Start, outcome: Outcome) -> None:
        """Record what the response to a start said."""
        self.set(outcome_key(start.place, self.name), entry_of(outcome))

    def revoke(self, known: KnownStart) -> KnownStart:
        """
        Revoke the token of a start: no run can claim it any more; return what is known by then.

        With a mailbox, no run claims: it is only looked into.

        :raises Exception: if it is not certain that it is revoked
        """
        token = known.start.token_hash
        assert token  # noqa: S101
        if known.start.can_call:
            self.set(revoked_key(token), entry_of(Revoked(datetime.now(UTC))))
            self._write_again(known.start)

        return self.look(known, certainly=True)._replace(is_settled=True)

    def adopt(self, run: RunResult, last: KnownStart | None, **wait: float) -> KnownStart:
        """
        Record that the task adopts the run that a person gives it; return what is known by then.

        :param wait: the timeouts of :class:`~.entries.Start`
        """
        before = last.start if last else None
        fields: dict[str, Any] = {}
        if before:
            fields = {name: getattr(before, name) for name in _ADOPTED_FIELDS}
            if before.token_hash:
                fields["issuer"] = before.issuer or before.place
            if before.mailbox:
                wait.pop("heartbeat_timeout", None)  # its run can report nothing but its end

        start = self.new_start(run=run, **fields, **wait)
        self.write_start(start)

        if before and before.can_call:
            # Wait for the endpoint, which may be recording a stop: until it saw the new start, it
            # decided by the one before.
            self._write_again(before)

        self.forget_adopted()
        known = KnownStart(start=start)
        return self.look(known, certainly=True) if start.token_hash else known

    def forget_adopted(self) -> None:
        """Delete what a person wrote: it would bring the run back at a Clear months later."""
        self.delete(adopted_key(self.name))

    def _write_again(self, start: Start) -> None:
        """
        Write the start that gave out the token again, unchanged.

        This waits for the endpoint's locks.
        """
        key = start_key(start.issuer or start.place)
        # As it is: a newer version may have written more fields.
        entry = self._read(key)
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


def _unread(
    error: NotSentError, known: KnownStart, run_id: str | None, consequence: str
) -> WorkflowAutomationError:
    """
    Return the error for a mailbox that cannot be read: what is known of the start stays true.

    :param consequence: what it and earlier starts may have left, in words
    """
    status = known.outcome and known.outcome.status
    if status == "not started":
        return error.with_facts(consequence=f"Nothing was sent in this try. {consequence}".strip())

    code, accepted = Code.CONNECTION, Accepted.YES
    if not known.has_run:
        code, accepted = Code.START_UNKNOWN, Accepted.MAYBE

    return ConnectionUnusableError(
        error.message,
        consequence=f"Before, {consequence}",
        code=code,
        accepted=accepted,
        flow_id=known.start.flow_id,
        run_id=run_id,
    )
