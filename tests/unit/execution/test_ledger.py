"""No item is sent twice unless allowed, and nothing that may have started goes unmentioned, whatever dies when."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from contextlib import nullcontext

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from workflow_automation_provider.execution.ledger import (
    DIGEST_BYTES,
    OUTCOMES,
    Attempt,
    Decision,
    Entry,
    Ledger,
    LedgerError,
    State,
)

ITEMS = st.integers(0, 1)


def digest(index, version=0):
    return bytes([index, version]).ljust(DIGEST_BYTES, b"\1")


class Tries(RuleBasedStateMachine):
    """
    The tries of one task instance against a service that knows what really ran.

    A try may die at any step, a write may be durable although it raised, the batch may be edited between tries, and
    Airflow may retry the task, clear it, or leave it unknown which of the two it did.
    """

    @initialize(start_again=st.booleans(), resends_rejected=st.booleans())
    def begin(self, start_again, resends_rejected):
        self.options = {"start_again": start_again, "resends_rejected": resends_rejected, "retries": 2}
        self.attempt = Attempt(1, 3, 0)
        self.clears = 0
        self.entries: list[Entry] = []
        self.versions: Counter[int] = Counter()
        self.runs: Counter[int] = Counter()  # since the last Clear that is certain
        self._begin_try()

    def _begin_try(self):
        self.ledger = Ledger(self.attempt, **self.options)
        for entry in self.entries:
            if not self.ledger.read(entry):
                # As a driver does: entries from before a Clear are written over.
                assert entry is self.entries[0]
                self.entries = []
                break
        self.to_send: dict[int, State] = {}
        self.sent: dict[int, State] = {}
        self.results: dict[int, State] = {}

    def _write(self, how, opened=()):
        """Write what is known; return whether the driver may go on."""
        if how != "lost":
            self.entries.append(Entry(self.attempt, list(opened), list(self.results.items())))
            self.results = {}
        return how == "durable"

    def _end_try(self, *, max_tries, clear_number):
        self.attempt = Attempt(self.attempt.try_number + 1, max_tries, clear_number)
        self._begin_try()

    @rule()
    def dies_and_is_retried(self):
        self._end_try(
            max_tries=self.attempt.max_tries,
            clear_number=self.attempt.clear_number,
        )

    @rule()
    def another_task_is_cleared(self):
        if self.attempt.try_number + 1 <= self.attempt.max_tries - self.options["retries"]:
            return  # a Clear of this task could look the same: see the next rules
        self._end_try(
            max_tries=self.attempt.max_tries,
            clear_number=self._next_clear(),
        )
        last = self.attempt.max_tries - self.options["retries"]
        assert not self.ledger.is_ambiguous or any(e.attempt.try_number <= last for e in self.entries)

    @rule()
    def is_cleared(self):
        max_tries = self.attempt.try_number + self.options["retries"]
        if max_tries == self.attempt.max_tries:
            return
        self.runs.clear()
        self._end_try(max_tries=max_tries, clear_number=self._next_clear())
        assert not self.ledger.counts().keys() - {State.IDLE}

    @rule()
    def is_perhaps_cleared(self):
        retries = self.attempt.max_tries - self.attempt.try_number
        if retries < 0:
            return
        self.options["retries"] = retries
        self._end_try(
            max_tries=self.attempt.max_tries,
            clear_number=self._next_clear(),
        )

    @rule(index=ITEMS)
    def the_batch_is_edited(self, index):
        self.versions[index] += 1

    @rule(index=ITEMS, how=st.sampled_from(["durable", "raised", "lost"]))
    def opens(self, index, how):
        if index in self.to_send or index in self.sent or index in self.results:
            return
        its_digest = digest(index, self.versions[index])
        decision = self.ledger.decide(index, its_digest)
        assert (decision is Decision.RETURN) <= (self.runs[index] > 0)
        if decision is not Decision.SEND:
            with pytest.raises(LedgerError):
                self.ledger.open(index, its_digest)
            return
        before = self.ledger.state(index)
        assert (before in (State.OPEN, State.UNKNOWN)) <= self.options["start_again"]
        if not self._write(how, [(index, its_digest)]):
            self.dies_and_is_retried()
            return
        self.ledger.open(index, its_digest)
        self.to_send[index] = before

    @precondition(lambda self: self.to_send)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(sorted(OUTCOMES)),
        ran=st.booleans(),
    )
    def sends(self, data, outcome, ran):
        index = data.draw(st.sampled_from(sorted(self.to_send)))
        del self.to_send[index]
        if outcome in (State.STARTED, State.UNIDENTIFIED) or (outcome is State.UNKNOWN and ran):
            self.runs[index] += 1
        self.sent[index] = outcome

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def settles(self, data):
        index = data.draw(st.sampled_from(sorted(self.sent)))
        self.results[index] = self.ledger.settle(index, self.sent.pop(index))

    @precondition(lambda self: self.results)
    @rule(how=st.sampled_from(["durable", "raised", "lost"]))
    def writes_results(self, how):
        if not self._write(how):
            self.dies_and_is_retried()

    @invariant()
    def at_most_one_run_of_each_item(self):
        if hasattr(self, "runs") and not self.options["start_again"]:
            assert all(number <= 1 for number in self.runs.values())

    @invariant()
    def what_ran_is_mentioned_now_and_by_the_next_try(self):
        if not hasattr(self, "runs"):
            return
        following = Ledger(Attempt(self.attempt.try_number + 1, *self._same()), **self.options)
        for entry in self.entries:
            following.read(entry)
        for index, number in self.runs.items():
            if number:
                assert self.ledger.state(index) not in (State.IDLE, State.REJECTED)
                assert following.state(index) not in (State.IDLE, State.REJECTED)

    def _next_clear(self):
        self.clears += 1
        return self.clears

    def _same(self):
        return self.attempt.max_tries, self.attempt.clear_number


TestTries = Tries.TestCase


class Fence(RuleBasedStateMachine):
    """
    The sends of one task whose runs claim their start, against an endpoint that keeps one claim until a Clear.

    A try may die at any step, and live on as a zombie whose request is still under way; a first step may come late, or
    twice; a response may be lost, or say that a request was rejected whose run exists.
    """

    @initialize()
    def begin(self):
        self.attempt = Attempt(1, 9, 0)
        self.entry: Entry | None = None
        self.open_tokens: set[tuple[str, int]] = set()
        self.claims: dict[int, str] = {}
        self.went_on: list[str] = []  # since the last Clear, or before it, and returned after it
        self.runs: list[str] = []
        self.sent = 0
        self.green = False
        self._begin_try()

    def _begin_try(self):
        self.green = False
        self.ledger = Ledger(self.attempt, retries=2, claims=True, resends_rejected=True)
        if self.entry is None or self.ledger.read(self.entry):
            return
        before = None if self.entry.settled else self.entry.token
        self.entry = None
        if before and self.claims.get(self.max_tries_before) == before:
            self.open_tokens.add((before, self.attempt.max_tries))
            self.ledger.claimed(0, before)
            self.went_on.append(before)
            self._write_started(before)

    def _write_started(self, token):
        self.entry = Entry(self.attempt, [(0, b"")], [(0, State.STARTED)], token=token)

    @rule()
    def dies_and_is_retried(self):
        self.attempt = Attempt(self.attempt.try_number + 1, self.attempt.max_tries, 0)
        self._begin_try()

    @rule()
    def is_cleared(self):
        self.max_tries_before = self.attempt.max_tries
        self.attempt = Attempt(self.attempt.try_number + 1, self.attempt.max_tries + 1, 0)
        self.went_on = []
        self._begin_try()

    @precondition(lambda self: not self.green)
    @rule(
        outcome=st.sampled_from([State.STARTED, State.UNKNOWN, State.UNIDENTIFIED, State.REJECTED, None]),
        ran=st.booleans(),
    )
    def sends(self, outcome, ran):
        """Or a try dies after it has; None is a response that comes to nobody."""
        while (decision := self.ledger.decide(0, b"")) is Decision.REPORT and self.ledger.token(0):
            self._revoke()
        if decision is Decision.RETURN:
            self.green = True
            return
        assert decision is Decision.SEND
        self.sent += 1
        token = f"t{self.sent}"
        self.open_tokens.add((token, self.attempt.max_tries))
        self.ledger.open(0, b"", token)
        self.entry = Entry(self.attempt, [(0, b"")], token=token)
        if outcome in (State.STARTED, State.UNIDENTIFIED) or ran:
            self.runs.append(token)
        if outcome is None:
            self.dies_and_is_retried()
            return
        self.ledger.settle(0, outcome)
        if outcome is State.STARTED:
            self._write_started(token)
        if outcome is State.REJECTED:
            self._revoke()
            if self.ledger.state(0) is State.REJECTED:
                self.entry = None

    def _revoke(self):
        token, n = self.ledger.token(0), self.attempt.max_tries
        assert token
        self.open_tokens.discard((token, n))
        if self.claims.get(n) == token:
            self.open_tokens.add((token, n))
            self.ledger.claimed(0, token)
            self._write_started(token)
        else:
            self.ledger.revoked(0)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def claims_its_start(self, data):
        """Early, late, or again."""
        token, n = data.draw(st.sampled_from(self.runs)), self.attempt.max_tries
        if (token, n) in self.open_tokens and self.claims.setdefault(n, token) == token:
            self.went_on.append(token)

    @rule()
    def another_token_is_not_opened_beside_one(self):
        if self.ledger.token(0) and self.ledger.state(0) is not State.STARTED:
            with pytest.raises(LedgerError):
                self.ledger.open(0, b"", "another")

    @invariant()
    def at_most_one_goes_on(self):
        assert len(set(getattr(self, "went_on", ()))) <= 1

    @invariant()
    def the_run_of_a_green_task_is_the_one_that_may(self):
        if getattr(self, "green", False):
            token, n = self.ledger.token(0), self.attempt.max_tries
            assert (token, n) in self.open_tokens
            assert self.claims.get(n, token) == token or token in self.went_on


TestFence = Fence.TestCase


# What a driver must not do ------------------------------------------------------------------------------


def ledger_of(*settled, token="t1"):
    """Return a ledger with one item that was opened, and then settled as given."""
    ledger = Ledger(Attempt(2, 3))
    ledger.open(0, b"", token)
    for outcome in settled:
        ledger.settle(0, outcome)
    return ledger


@pytest.mark.parametrize(
    ("ledger", "forbidden"),
    [
        (Ledger(Attempt(1, 3)), {"stopped", "revoked", "settle"}),
        (ledger_of(), {"stopped", "revoked", "claimed", "open"}),
        (ledger_of(State.IDLE), {"stopped", "settle", "open"}),
        (ledger_of(State.UNKNOWN), {"stopped", "settle", "open"}),
        (ledger_of(State.UNKNOWN, token=None), {"stopped", "revoked", "settle", "open"}),
        (ledger_of(State.STARTED), {"revoked", "settle", "open"}),
        (ledger_of(State.STARTED, token=None), {"stopped", "revoked", "settle", "open"}),
    ],
    ids=["idle", "open", "not sent", "in doubt", "in doubt, no token", "started", "started, no token"],
)
def test_a_driver_that_does_what_is_forbidden_hears_so(ledger, forbidden):
    steps = {
        "open": lambda one: one.open(0, b"", "t2"),
        "settle": lambda one: one.settle(0, State.UNKNOWN),
        "claimed": lambda one: one.claimed(0, "t1"),
        "revoked": lambda one: one.revoked(0),
        "stopped": lambda one: one.stopped(0),
    }
    for name, step in steps.items():
        with pytest.raises(LedgerError, match=r"^Item 0 [a-z :]+\.$") if name in forbidden else nullcontext():
            step(copy.deepcopy(ledger))


def test_a_run_that_claimed_is_of_the_try_that_opened_it():
    ledger = Ledger(Attempt(3, 3))
    ledger.claimed(0, "t1")
    assert ledger.try_of(0) == 3
    ledger = Ledger(Attempt(3, 3))
    ledger.read(Entry(Attempt(2, 3), [(0, b"")], token="t1"))
    ledger.claimed(0, "t1")
    assert ledger.try_of(0) == 2


def test_a_start_that_was_taken_back_has_no_try():
    assert ledger_of(State.UNKNOWN).try_of(0) == 2
    assert ledger_of(State.IDLE).try_of(0) is None


def test_entries_are_read_before_an_item_is_opened():
    with pytest.raises(LedgerError, match=r"^Entries are read before "):
        ledger_of().read(Entry(Attempt(1, 3)))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_item_is_opened_before_it_is_settled(index):
    entry = Entry(Attempt(1, 3), [(1, b"")] if index != 1 else [], [(index, State.STARTED)])
    with pytest.raises(LedgerError, match=rf"^Item {index} "):
        Ledger(Attempt(2, 3)).read(entry)


# What a later try does ----------------------------------------------------------------------------------

# What an item that is sent again becomes if this try starts nothing, by its state and the options.
SENT_AGAIN = {
    (State.OPEN, "start_again"): State.UNKNOWN,
    (State.OPEN, "start_again claims"): State.UNKNOWN,
    (State.UNKNOWN, "start_again"): State.UNKNOWN,
    (State.UNKNOWN, "start_again claims"): State.UNKNOWN,
    (State.REVOKED, "start_again"): State.UNKNOWN,
    (State.REVOKED, "start_again claims"): State.IDLE,
    (State.REVOKED, "claims"): State.IDLE,
    (State.REJECTED, "resends_rejected"): State.IDLE,
}


@pytest.mark.parametrize("options", ["", "start_again", "claims", "start_again claims", "resends_rejected"])
@pytest.mark.parametrize("state", sorted(set(State) - {State.IDLE}))
@pytest.mark.parametrize("outcome", [State.IDLE, State.REJECTED])
def test_what_is_sent_again(state, options, outcome):
    ledger = Ledger(Attempt(2, 3), **dict.fromkeys(options.split(), True))
    assert ledger.read(Entry(Attempt(1, 3), [(0, b"")], [(0, state)])) is True
    again = SENT_AGAIN.get((state, options))
    if again is None:
        assert ledger.decide(0, b"") is (Decision.RETURN if state is State.STARTED else Decision.REPORT)
        return
    assert ledger.decide(0, b"") is Decision.SEND
    ledger.open(0, b"")
    assert ledger.newly_open == (again is State.IDLE)
    assert ledger.settle(0, outcome) is (again or outcome)
    assert ledger.newly_open == 0


def test_each_item_of_a_batch_has_a_state_and_a_digest():
    ledger = Ledger(Attempt(2, 3))
    opened = [(index, digest(index)) for index in (0, 1, 3)]
    ledger.read(Entry(Attempt(1, 3), opened, [(0, State.STARTED), (3, State.REJECTED)]))
    ledger.open(2, digest(2))
    ledger.open(5, b"")
    ledger.open(4, digest(4))
    assert [ledger.is_open(index) for index in range(7)] == [False, False, True, False, True, True, False]
    assert ledger.counts() == {State.OPEN: 4, State.STARTED: 1, State.REJECTED: 1}
    assert [ledger.decide(index, digest(index)) for index in range(5)] == [
        Decision.RETURN,
        *[Decision.REPORT] * 4,
    ]
    assert {ledger.decide(index, digest(index, 1)) for index in range(6)} == {Decision.CHANGED}
    assert ledger.decide(6, digest(6)) is Decision.SEND


def test_an_item_that_a_shorter_batch_lacks():
    ledger = Ledger(Attempt(2, 3))
    ledger.read(Entry(Attempt(1, 3), [(0, b""), (2, b"")]))
    assert [ledger.missing_from(length) for length in range(4)] == [0, 2, 2, None]


@pytest.mark.parametrize(
    ("before", "now", "options", "counts"),
    [
        (Attempt(1, 2, 0), Attempt(2, 3, 1), {"retries": 1}, False),
        (Attempt(1, 2, 0), Attempt(2, 2, 1), {"retries": 1}, None),
        (Attempt(1, 2, 0), Attempt(2, 2, 1), {}, True),
        (Attempt(1, 2, None), Attempt(2, 2, 1), {"retries": 1}, True),
        (Attempt(1, 2, 0), Attempt(2, 2, None), {"retries": 1}, True),
    ],
    ids=["cleared", "perhaps cleared", "not this task", "not counted before", "not counted now"],
)
def test_an_entry_from_before_a_clear_does_not_count(before, now, options, counts):
    ledger = Ledger(now, **options)
    assert ledger.read(Entry(before, [(0, b"")])) is (counts is not False)
    assert (ledger.was_cleared, ledger.is_ambiguous) == (counts is False, counts is None)
    assert ledger.count == (counts is not False)


def test_what_is_ambiguous_stays_so():
    ledger = Ledger(Attempt(3, 4), clear_deletes=True)
    for attempt in (Attempt(1, 3), Attempt(2, 4)):
        ledger.read(Entry(attempt))
    assert ledger.is_ambiguous is True
    assert ledger.was_cleared is False


@pytest.mark.parametrize("max_tries", [3, 4])
def test_an_entry_that_a_clear_has_kept_counts(max_tries):
    """On Airflow 3.4+, where it may be that of the whole DAG run: that was perhaps to start over."""
    ledger = Ledger(Attempt(2, max_tries), clear_deletes=True)
    assert ledger.read(Entry(Attempt(1, 3), [(0, b"")], [(0, State.STARTED)]))
    assert ledger.decide(0, b"") is Decision.RETURN
    assert ledger.is_ambiguous == (max_tries == 4)


@pytest.mark.parametrize("before", [State.IDLE, State.UNKNOWN])
def test_an_item_can_be_settled_wherever_its_opening_is_interrupted(before):
    """As a batch does: it opens what was not opened, and settles it."""
    lines = 0

    def interrupt(frame, event, _):
        nonlocal lines
        if frame.f_code is not Ledger.open.__code__:
            return None
        lines -= event == "line"
        if not lines:
            raise KeyboardInterrupt
        return interrupt

    for at in range(1, 99):
        lines = at
        # Only one in doubt needs it; with it, one whose opening was interrupted could be opened again in any order.
        ledger = Ledger(Attempt(2, 3), start_again=before is State.UNKNOWN)
        ledger.read(Entry(Attempt(1, 3), [(0, digest(0))], [(0, before)]))
        tracer = sys.gettrace()
        sys.settrace(interrupt)
        try:
            ledger.open(0, digest(0))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        if lines > 0:
            break
        if not ledger.is_open(0):
            ledger.open(0, digest(0))
        assert ledger.settle(0, State.IDLE) is before
        assert ledger.newly_open == 0
    assert at > 5
