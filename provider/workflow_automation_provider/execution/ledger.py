"""
The starts of one task instance: what earlier tries left, what may be sent, and what must be written. Read this first.

A single start is a ledger of one item, a batch one of as many as it has. There is no I/O here, as in h11: a driver
reads the entries of the task state store into the ledger, asks it, writes what it says, and sends.

=============== ======================================= =====================================================
State           Entered when                            What a later try does
=============== ======================================= =====================================================
*idle*          initially; the request was not sent,    sends
                or was rejected as busy; or its run
                was told to stop after its claim
*open*          :meth:`Ledger.open`: written before     in doubt: a run may exist
                the request is sent; left if the try
                dies, or gets no response
*started*       the response identified the run, or     returns that run
                the run claimed its start
*unidentified*  a run was started, its id is unknown    reports it: never sends; with a token, as in doubt
*rejected*      the service rejected the request        reports it; a single start sends
*unknown*       a run may have been started             in doubt: a run may exist
*revoked*       in doubt before, but its token was      with ``claims``, sends: that run can never go on;
                deleted, and its run had not claimed    otherwise in doubt
any             a Clear since                           sends; one in doubt whose run had claimed returns it
=============== ======================================= =====================================================

An item in doubt is sent again only with ``start_again``; otherwise it is reported. If an item in doubt is sent again
and this try starts nothing, it stays in doubt: of the task, a run may still exist.

**Tokens.** A run may be given a token, by which it asks, as its first step, whether it may go on: it *claims* its
start. One token is for one send. While the token's entry exists, the run may claim at any moment; so before another
token is opened, the driver deletes the entry and only then looks for a claim: :meth:`Ledger.claimed` or
:meth:`Ledger.revoked`. A claim settles what no response has settled, and what a response has settled wrongly:

=================  =========================  ==========================  ==========================================
Token              Entered by                 Its run may claim           Left by
=================  =========================  ==========================  ==========================================
none               initially, after a Clear   no                          :meth:`Ledger.open`
out                :meth:`Ledger.open`        yes, once                   a claim, or no claim after its deletion
revoked            :meth:`Ledger.revoked`     never                       :meth:`Ledger.open`, with another token
claimed            :meth:`Ledger.claimed`     it did: it is the run       a Clear
=================  =========================  ==========================  ==========================================

A request that was not sent leaves its token *out*, and may be sent again with it. After a Clear, the token of an item
in doubt can no longer claim; if it had claimed, its run goes on, and is the one to return.

**Retry or Clear?** A retry must find what an earlier try wrote; a Clear asks to start over. Airflow does not say which
of the two it was, so each entry carries what a Clear changes, see :class:`Attempt`:

=============  ================  ======================  ======================================================
``max_tries``  ``clear_number``  a Clear may have left   so the entry
                                 ``max_tries`` as it is
=============  ================  ======================  ======================================================
changed        any               -                       is from before a Clear: start over
same           same              -                       counts: this is a retry
same           changed           no                      counts: another task was cleared, or this one was while
                                                         it ran and Airflow counted its end as a failure
same           changed           yes                     counts, as it is unknown: no second run
=============  ================  ======================  ======================================================

On Airflow 3.4+, a Clear itself deletes the entries unless the user keeps them: there, an entry that is read counts.
"""

from __future__ import annotations

import enum
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DIGEST_BYTES = 6
"""Length of an item's digest: with 100,000 items that all changed, one in a billion batches goes unnoticed."""


class State(enum.IntEnum):
    """The state of one item, see the table above."""

    IDLE = 0
    OPEN = 1
    STARTED = 2
    UNIDENTIFIED = 3
    REJECTED = 4
    UNKNOWN = 5
    REVOKED = 6


IN_DOUBT = frozenset({State.OPEN, State.UNKNOWN, State.REVOKED})
"""States of an item of which a run may exist."""

OUTCOMES = frozenset(State) - {State.OPEN, State.REVOKED}
"""States that a request can end in; *idle* if it started nothing and may be sent again."""


class Decision(enum.Enum):
    """What to do about an item."""

    SEND = "send"
    RETURN = "return"
    """Return the run that an earlier try started."""
    REPORT = "report"
    """Send nothing, and report what an earlier try did."""
    CHANGED = "changed"
    """Send nothing: an earlier try sent another request under this item."""


class LedgerError(Exception):
    """A driver did what the ledger forbids: a defect, never a state of the service."""


class Attempt(NamedTuple):
    """
    What distinguishes a retry from a Clear, see the table above.

    :param max_tries: number of the last try that Airflow may retry. A Clear sets it to the number of the last try plus
        the task's ``retries``; if the task was running, Airflow does so once it has ended
    :param clear_number: how often tasks of the DAG run were cleared, None if that is unknown
    """

    try_number: int
    max_tries: int
    clear_number: int | None = None

    def is_from_before_a_clear(self, now: Attempt, retries: int) -> bool | None:
        """
        Return whether the task was cleared between this attempt and ``now``.

        :param retries: the task's current ``retries``
        :return: None if that is unknown
        """
        if now.max_tries != self.max_tries:
            return True
        if None in (self.clear_number, now.clear_number) or now.clear_number == self.clear_number:
            return False
        # A Clear sets max_tries to the last try's number plus retries, and any try since may have been the
        # last.
        return None if self.try_number <= now.max_tries - retries < now.try_number else False


@dataclass(frozen=True, slots=True)
class Entry:
    """
    What one write made durable.

    :param attempt: the try that wrote it
    :param opened: the items that may have been sent since, each with its digest, in order
    :param settled: the states of items that this or an earlier entry opened
    :param token: of the send of the items that were opened, None if their runs got none
    """

    attempt: Attempt
    opened: Sequence[tuple[int, bytes]] = ()
    settled: Iterable[tuple[int, State]] = ()
    token: str | None = field(default=None, kw_only=True)


class Ledger:
    """
    The starts of one task instance, in this try and those before it; eleven bytes per item.

    :param now: this try
    :param retries: the task's current ``retries``
    :param start_again: whether to send an item that is in doubt, and accept a second run
    :param resends_rejected: whether to send an item that an earlier try saw rejected
    :param claims: whether each run claims its start, so that it is certain that one without a token never goes on
    :param clear_deletes: whether Airflow deletes the entries at a Clear (3.4+), so that each that is read counts
    """

    def __init__(
        self,
        now: Attempt,
        *,
        retries: int = 0,
        start_again: bool = False,
        resends_rejected: bool = False,
        claims: bool = False,
        clear_deletes: bool = False,
    ) -> None:
        self._now = now
        self._retries = retries
        self._start_again = start_again
        self._resends_rejected = resends_rejected
        self._claims = claims
        self._clear_deletes = clear_deletes
        self.was_cleared = False
        """Whether an entry was read that is from before a Clear."""
        self.is_ambiguous = False
        """Whether an entry counts although it is unknown if the task was cleared since."""
        # Of each item whose run may claim, or has claimed.
        self._tokens: dict[int, str] = {}
        self._states = bytearray()
        # The number of the try that opened the item last, 0 if none did.
        self._tries = array("H")
        self._digests = bytearray()
        # Items that this try opened and has not settled, and those of them that were in doubt before.
        self._open: set[int] = set()
        self._in_doubt_before: set[int] = set()

    def read(self, entry: Entry) -> bool:
        """
        Read an entry; those of one ledger are read in the order in which they were written.

        :return: False if it is from before a Clear, and so are all that follow
        """
        if self._open:
            raise LedgerError("Entries are read before an item is opened.")
        cleared: bool | None
        if self._clear_deletes:
            # Kept by the user's choice, or by a Clear of the whole DAG run, which may have been meant to start over.
            cleared = False if entry.attempt.max_tries == self._now.max_tries else None
        else:
            cleared = entry.attempt.is_from_before_a_clear(self._now, self._retries)
        if cleared:
            self.was_cleared = True
            return False
        self.is_ambiguous |= cleared is None
        for index, digest in entry.opened:
            self._grow(index)
            self._states[index] = State.OPEN
            self._tries[index] = entry.attempt.try_number
            self._set_digest(index, digest)
            if entry.token:
                self._tokens[index] = entry.token
        for index, state in entry.settled:
            if index >= self.count or not self._tries[index]:
                raise LedgerError(f"Item {index} was settled, but never opened.")
            self._states[index] = state
        return True

    def state(self, index: int) -> State:
        """Return the state of an item."""
        return State(self._states[index]) if index < len(self._states) else State.IDLE

    def try_of(self, index: int) -> int | None:
        """Return the number of the try that opened an item last, None if none did or it was taken back."""
        return None if self.state(index) is State.IDLE else self._tries[index]

    def token(self, index: int) -> str | None:
        """Return the token of an item whose run may claim, or has claimed; None if there is none, or it was revoked."""
        return self._tokens.get(index)

    @property
    def count(self) -> int:
        """The number of the last item that was opened, plus 1."""
        return len(self._states)

    def counts(self) -> Counter[State]:
        """Return how many items are in each state, those that were never opened left out."""
        return Counter({state: number for state in State if (number := self._states.count(state))})

    def decide(self, index: int, digest: bytes) -> Decision:
        """
        Decide what to do about an item that this try has not opened.

        :param digest: identifies the request, :data:`DIGEST_BYTES` long; empty for an item whose request may change
        """
        state = self.state(index)
        if state is State.IDLE:
            return Decision.SEND
        if digest and self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] != digest:
            return Decision.CHANGED
        if state is State.STARTED:
            return Decision.RETURN
        if index in self._tokens:  # its run may claim at any moment
            return Decision.REPORT
        if state is State.REVOKED and self._claims:
            return Decision.SEND
        if (state in IN_DOUBT and self._start_again) or (state is State.REJECTED and self._resends_rejected):
            return Decision.SEND
        return Decision.REPORT

    def missing_from(self, length: int) -> int | None:
        """Return the first item that was opened and that a batch of ``length`` items lacks, None if there is none."""
        return next((index for index in range(length, self.count) if self._states[index]), None)

    def open(self, index: int, digest: bytes, token: str | None = None) -> None:
        """
        Open an item; its request is sent only once the write that says so is durable.

        A single start opens before the write, so that what interrupts that can be settled. A batch opens after it: what
        a write that failed leaves unopened was not sent.

        :param token: what its run claims with, None if it cannot
        :raises LedgerError: unless :meth:`decide` says that it may be sent, it is not open in this try, and no other
            token of it may claim
        """
        if index in self._open or self.decide(index, digest) is not Decision.SEND:
            raise LedgerError(f"Item {index} must not be sent: it is {self.state(index).name.lower()}.")
        if self._tokens.get(index, token) != token:
            raise LedgerError(f"Item {index} must not be sent: another token of it has not been revoked.")
        self._grow(index)
        self._tries[index] = self._now.try_number
        self._set_digest(index, digest)
        if token:
            self._tokens[index] = token
        # In this order: whatever interrupts it, the item can be opened again, or settled.
        state = self.state(index)
        if state in IN_DOUBT and not (state is State.REVOKED and self._claims):
            self._in_doubt_before.add(index)
        self._open.add(index)
        self._states[index] = State.OPEN

    def settle(self, index: int, outcome: State) -> State:
        """
        Settle an item that this try opened.

        :param outcome: what its request ended in; *idle* if nothing was started
        :return: the state to write: *unknown* if this try started nothing, but an earlier one may have
        :raises LedgerError: if it is not open, or ``outcome`` is no state that a request ends in
        """
        if index not in self._open or outcome not in OUTCOMES:
            raise LedgerError(f"Item {index} cannot become {outcome.name.lower()}.")
        self._open.discard(index)
        if index in self._in_doubt_before and outcome in (State.IDLE, State.REJECTED):
            outcome = State.UNKNOWN
        self._in_doubt_before.discard(index)
        self._states[index] = outcome
        return outcome

    def claimed(self, index: int, token: str) -> None:
        """
        Note that a run has claimed its start: it is the item's run, whatever the response was.

        :param token: what it claimed with
        :raises LedgerError: if the item is open
        """
        if index in self._open:
            raise LedgerError(f"Item {index} is open: settle it first.")
        self._grow(index)
        self._states[index] = State.STARTED
        self._tries[index] = self._tries[index] or self._now.try_number
        self._tokens[index] = token

    def revoked(self, index: int) -> None:
        """
        Note that an item's token was deleted, and that there was no claim after that.

        :raises LedgerError: if the item is open, was started, or has no token
        """
        state = self.state(index)
        if index in self._open or index not in self._tokens or state is State.STARTED:
            raise LedgerError(f"Item {index} has no token to revoke: it is {state.name.lower()}.")
        del self._tokens[index]
        if state in IN_DOUBT or state is State.UNIDENTIFIED:
            self._states[index] = State.REVOKED

    def stopped(self, index: int) -> None:
        """
        Note that the run of an item had claimed its start, and was told to stop: it never goes on.

        :raises LedgerError: if the item was not started, or has no token
        """
        if index not in self._tokens or self.state(index) is not State.STARTED:
            raise LedgerError(f"Item {index} has no run to stop: it is {self.state(index).name.lower()}.")
        del self._tokens[index]
        self._states[index] = State.IDLE

    def is_open(self, index: int) -> bool:
        """Return whether this try opened an item and has not settled it."""
        return index in self._open

    @property
    def newly_open(self) -> int:
        """How many items this try opened and has not settled, those left out that were in doubt before."""
        return len(self._open) - len(self._in_doubt_before)

    def _grow(self, index: int) -> None:
        missing = max(0, index + 1 - len(self._states))
        self._states.extend(bytes(missing))
        self._tries.extend([0] * missing)
        self._digests.extend(bytes(missing * DIGEST_BYTES))

    def _set_digest(self, index: int, digest: bytes) -> None:
        self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] = digest or bytes(DIGEST_BYTES)
