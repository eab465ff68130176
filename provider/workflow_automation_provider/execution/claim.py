"""
What the run of a start says of itself: the tokens by which it may, and the claim of its start.

=================================================  ======================================================
Entry                                              Written
=================================================  ======================================================
``workflow_automation_token/{hash}/{n}``           by the task, before *starting*; deleting it revokes the
                                                   token, and the endpoint tells the run to stop
``workflow_automation_token/{hash}/{n}/again``     by the task, if the run had claimed before that: it goes on
``workflow_automation_claim/{n}``                  by the endpoint: the one run that was told to go on
``workflow_automation_end/{hash}``                 by the endpoint: how the run ended, which says as much
``workflow_automation_word/{hash}``                by the endpoint: the last word of a run that works
=================================================  ======================================================

``n`` is the task instance's ``max_tries``, which a Clear changes. The endpoint writes a claim only while it holds the
token's entry locked, so that after a deletion there is a claim, or there will never be one of that token.

No entry is written by both, and none of a token again: Airflow repeats a request that timed out, and a late write or
deletion of the task's would undo what was written since.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.execution.callback import (
    claim_key,
    end_key,
    token_key,
    token_keys,
    word_key,
)
from workflow_automation_provider.execution.ledger import State
from workflow_automation_provider.execution.store import TaskRecord, slow_deletion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workflow_automation_provider.execution.ledger import Ledger
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start_record import RunResult, StartEntry
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

POLL_INTERVAL = 0.5
"""How often a task looks in its worker whether a run has said something, in seconds."""


class Claim(NamedTuple):
    """
    What a run has said of its start.

    :param token: the hash of its token
    :param run_id: what the run said, None if nothing
    :param run_link: what the run said, None if nothing
    :param has_only_ended: whether it has not claimed its start, and only told its end
    :param is_stopped: whether it was told to stop since
    """

    token: str
    run_id: str | None = None
    run_link: str | None = None
    at: datetime | None = None
    has_only_ended: bool = False
    is_stopped: bool = False


class Word(NamedTuple):
    """The last word of a run that works."""

    at: datetime
    message: str | None
    progress: float | None


class ClaimRecord(TaskRecord):
    """What a task instance knows of its runs by what they say themselves."""

    def open(self, token: str) -> None:
        """
        Let the run that is given a token claim its start, and speak.

        :param token: its hash, as below
        :raises Exception: if it could not be written: then nothing may be sent with it
        """
        self._set(token_key(token, self._now.max_tries), {})

    def reopen(self, token: str) -> None:
        """
        Let the run that was given a token speak again, whether or not the token was deleted meanwhile.

        :raises Exception: if it could not be written
        """
        self._set(token_keys(token, self._now.max_tries)[1], {})

    def claim(self, max_tries: int | None = None) -> Claim | None:
        """
        Return the claim since the last Clear, None if none is seen, which is not certain.

        :param max_tries: those for which it was made, by default the current ones
        """
        return _claim(self._peek(claim_key(self._now.max_tries if max_tries is None else max_tries)))

    def claim_of(self, token: str, max_tries: int = 0) -> Claim | None:
        """
        Return the claim of the run with this token, also one of before a Clear, None if there is none.

        :param max_tries: those for which it was started, as a Clear may have lowered them
        """
        numbers = range(max(self._now.max_tries, max_tries), -1, -1)
        return _claim(self._read(*map(claim_key, numbers), digest=token))

    def said(self, token: str) -> Claim | None:
        """
        Return the claim, or that a run with this token has ended; None if neither is seen, which is not certain.

        The claim of a run that was told to stop does not count: that run does not go on. Nor does one with another token:
        several Clears can leave ``max_tries`` as it was.
        """
        claim = self.claim()
        if claim is not None and claim.token == token and not claim.is_stopped:
            return claim
        return _end(token, self._peek(end_key(token)))

    def end(self, token: str) -> Claim | None:
        """Return that the run with this token has ended, None if it certainly has not said so."""
        return _end(token, self._read_first(end_key(token)))

    def revoke(self, token: str) -> Claim | None:
        """
        Delete a token, and return what its run had said before that; if nothing, it never goes on.

        A run that had claimed goes on.

        :raises Exception: if it is not certain that the token is gone, or that there is no claim
        """
        n = self._now.max_tries
        if self._shut(token, claim_key(n), end_key(token)) is None:
            return None
        claim = _claim(self._read_first(claim_key(n)))
        return self.let_go_on(claim if claim and claim.token == token else None) or self.end(token)

    def _shut(self, token: str, *keys: str) -> dict[str, Any] | None:
        """
        Delete a token, and return the first of these entries, None if there is certainly none.

        :raises Exception: if it is not certain that the token is gone
        """
        key = token_key(token, self._now.max_tries)
        self._delete(key)
        if (entry := self._read_first(key, *keys)) is not None and self._read_first(key) is not None:
            raise RuntimeError(f"Airflow's task state store still has the entry {key}, which was deleted.")
        return entry

    def let_go_on(self, claim: Claim | None, max_tries: int | None = None) -> Claim | None:
        """
        Let a run that had claimed speak, and return its claim; None if it was told to stop.

        :param max_tries: those for which it had claimed, by default the current ones
        """
        if claim is None:
            return None
        if not claim.is_stopped:
            self.reopen(claim.token)
            # The endpoint records that it has told a run to stop before it tells it.
            now = _claim(self._read_first(claim_key(self._now.max_tries if max_tries is None else max_tries)))
            if now is not None and not now.is_stopped:
                return now
        self._delete(token_keys(claim.token, self._now.max_tries)[1])
        return None

    def claim_before_clear(self, token: str, max_tries: int) -> Claim | None:
        """
        Return the claim of a run from before a Clear, and let the run go on; None if it is not to.

        :param max_tries: those before the Clear
        """
        claim = _claim(self._read(claim_key(max_tries)))
        return self.let_go_on(claim, max_tries) if claim and claim.token == token else None

    def start_over(self, token: str | None) -> None:
        """
        Make room for the claim of another run, where no Clear has: what claimed before has ended, or is to stop.

        :raises Exception: if it is not certain that an earlier token is gone, or that the next claim stays
        """
        key = claim_key(self._now.max_tries)
        if token is not None:
            self._delete(token_keys(token, self._now.max_tries)[1])
            self._shut(token)
        if self._read_first(key) is not None and self._delete(key):
            raise slow_deletion()

    def stop(self, token: str, max_tries: int) -> None:
        """
        Delete the token of a run that was told to stop. Its claim stays: a later try must not return that run either.

        :param max_tries: those for which it had claimed
        :raises Exception: if it is not certain that the token is gone
        """
        self._shut(token)
        for number in {max_tries, self._now.max_tries}:
            self.close(token, number)

    def close(self, token: str, max_tries: int | None = None) -> None:
        """
        Delete a token, where it does not matter what its run has said.

        :param max_tries: those for which it was written, by default the current ones
        """
        for key in token_keys(token, self._now.max_tries if max_tries is None else max_tries):
            self._delete(key)

    def forget(self, token: str, max_tries: int) -> None:
        """Delete what a run from before a Clear was given, and has said; at first, its token."""
        if max_tries == self._now.max_tries:
            self.start_over(token)
        else:
            self.close(token, max_tries)
        self._delete(end_key(token))

    @property
    def max_tries(self) -> int:
        """The number of the last try that Airflow may retry, by which the entries are named."""
        return self._now.max_tries

    def word(self, token: str) -> Word | None:
        """Return the last word of a run."""
        entry = self._read(word_key(token))
        if entry is None:
            return None
        return Word(datetime.fromisoformat(entry["at"]), _text(entry.get("message")), entry.get("progress"))

    @staticmethod
    def shown(claim: Claim, hook: WorkflowAutomationHook) -> RunResult:
        """Return the run that a claim names, without what reveals a secret of the connection."""
        run: RunResult = {}
        for name, text in (("run_id", claim.run_id), ("run_link", claim.run_link)):
            if text and hook.get_conn().redact(text) == text:
                run[name] = text  # type: ignore[literal-required]
        return run

    def _peek(self, key: str) -> dict[str, Any] | None:
        return self._store.get(key)


class StartClaims:
    """
    Settles by its run what the response to a start has left in doubt.

    :param record: what the runs of the task instance have said
    :param hook: redacts it
    :param on_unknown_start: what the task is to do about a start that no run has claimed
    :param timeout: how long to wait for a claim with ``"claim"``; otherwise, it is only looked for
    :param flow_id: of the run, None for that of the connection
    :param has_ended: returns whether it is known how the run with a token has ended, or the task no longer waits for it
    """

    def __init__(
        self,
        record: ClaimRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        *,
        on_unknown_start: str,
        timeout: timedelta,
        flow_id: str | None,
        has_ended: Callable[[str], bool],
    ) -> None:
        self.record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._on_unknown = on_unknown_start
        self.timeout = timeout
        self._flow_id = flow_id
        self._has_ended = has_ended

    def settle_earlier(self, entry: StartEntry, ledger: Ledger) -> Claim | None:
        """
        Return the claim that settles what an earlier try left in doubt.

        :param entry: what it wrote, with a token
        :param ledger: which has read it; if there is no claim, it is told what that means
        """
        assert entry.token  # noqa: S101
        if entry.state is State.STARTED and not ledger.was_cleared:
            self._settle_started(entry.token, entry.attempt.max_tries, ledger)
            return None
        if ledger.was_cleared or entry.attempt.max_tries != self.record.max_tries:
            return self._settle_before_clear(entry, entry.token, ledger)
        claim = self._wait_for(entry.token, datetime.fromisoformat(entry.at))
        # The earlier try may have deleted its token, and not have seen the claim.
        if claim and not claim.has_only_ended:
            claim = self.record.let_go_on(claim)
        if claim is None:
            claim = self.revoke(entry.token, ledger)
        return claim

    def _settle_started(self, token: str, max_tries: int, ledger: Ledger) -> None:
        """
        Let the run that an earlier try started go on, unless it was told to stop.

        :param max_tries: those for which it was started
        """
        record = self.record
        if max_tries != record.max_tries:  # kept by a Clear (Airflow 3.4+)
            # Before the claim is read: the endpoint records that it has told a run to stop before it tells it.
            record.reopen(token)
        claim = record.claim_of(token, max_tries)
        # One that asks after its end is told to stop as well.
        if claim is not None and claim.is_stopped and not self._has_ended(token):
            record.stop(token, max_tries)
            ledger.stopped(0)

    def _settle_before_clear(self, entry: StartEntry, token: str, ledger: Ledger) -> Claim | None:
        record, claim = self.record, None
        if entry.state is not State.STARTED:
            claim = record.claim_before_clear(token, entry.attempt.max_tries)
        if ledger.was_cleared and claim:
            self._log.warning(
                "The task has been cleared since try %d, but a run had claimed its start, and goes on.",
                entry.attempt.try_number,
            )
        elif not ledger.was_cleared:
            claim = claim or record.end(token)
        if claim is None:
            record.forget(token, entry.attempt.max_tries)
            if not ledger.was_cleared:
                ledger.revoked(0)
        return claim

    def settle_doubt(self, ledger: Ledger) -> Claim | None:
        """
        Return the claim that settles what this try left in doubt; if it is the last one, none may claim any more.

        :param ledger: which has an unknown outcome
        """
        token = ledger.token(0)
        if token is None:
            return None
        claim = self._wait_for(token, datetime.now(UTC))
        is_final = self._on_unknown == "fail" or self.record.is_last_try
        if claim is None and is_final and not self._retrier.is_ended():
            claim = self.revoke(token, ledger)
        return claim

    def revoke(self, token: str, ledger: Ledger) -> Claim | None:
        """
        Let no run with this token go on any more; return what it had said before that.

        :raises Exception: if that is not certain
        """
        claim = self.record.revoke(token)
        if claim is None:
            ledger.revoked(0)
            self._log.info("No run has claimed this start; one that does so from now on is told to stop.")
        return claim

    def _wait_for(self, token: str, since: datetime) -> Claim | None:
        """
        Wait for a claim until the timeout has passed since a start, or look once.

        :return: None if there is none yet: the run may still claim
        """
        # Another worker's clock may be ahead.
        until = min(since, datetime.now(UTC)) + (self.timeout if self._on_unknown == "claim" else timedelta())
        is_logged = False
        while True:
            if claim := self.record.said(token):
                return claim
            left = (until - datetime.now(UTC)).total_seconds()
            if left <= 0 or self._retrier.is_ended():
                return None
            if not is_logged:
                # The last word of a try that is killed while it waits, if no later one gets to say more.
                self._log.info(
                    "A run may have been started. Waiting up to %.0f s for one to claim this start.", left
                )
                is_logged = True
            time.sleep(min(POLL_INTERVAL, left))

    def run_of(self, claim: Claim) -> RunResult:
        """Return the run that a claim names, without what reveals a secret; empty if it names none."""
        with self._hook:
            run = self.record.shown(claim, self._hook)
            flow_id = self._flow_id or self._hook.extra.flow_id
        run_id = run.get("run_id")
        if flow_id:
            run["flow_id"] = flow_id
        if not claim.has_only_ended:
            self._log.info("%s has claimed this start.", one_line(f"Run {run_id}" if run_id else "A run"))
        if not run_id:
            self._log.warning(
                "The run_id is unknown: it was lost with the response, or with the try that started it, and the run did "
                "not say it."
            )
        return run


def _claim(entry: Mapping[str, Any] | None) -> Claim | None:
    if entry is None:
        return None
    return Claim(
        str(entry["digest"]),
        _text(entry.get("run_id")),
        _text(entry.get("run_link")),
        datetime.fromisoformat(entry["at"]),
        is_stopped=bool(entry.get("stopped")),
    )


def _end(token: str, entry: Mapping[str, Any] | None) -> Claim | None:
    return None if entry is None else Claim(token, _text(entry.get("run_id")), has_only_ended=True)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
