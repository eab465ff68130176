"""Never are more items open than the window has, whatever the order in which they are settled and written."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from workflow_automation_provider.execution.batch.window import Window


def started(index):
    return {"index": index, "status": "started"}


class Batch(RuleBasedStateMachine):
    """Items are opened by writes, sent and settled in any order; a kill may come at any moment."""

    @initialize(size=st.integers(1, 20), items=st.integers(0, 100))
    def begin(self, size, items):
        self.size = size
        self.window = Window(size)
        self.to_open = [*range(items)]
        self.waiting: list[int] = []
        self.recorded: set[int] = set()
        self.open: set[int] = set()
        self.now = 0.0

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def settle(self, data):
        index = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(index)
        self.window.settle(started(index), self.now)

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.window.is_due(len(self.waiting), self.now, more=bool(self.to_open)))
    @rule(durable=st.booleans(), meanwhile=st.integers(0, 20))
    def write(self, durable, meanwhile):
        results = self.window.take_results()
        opened = self.to_open[: self.window.room]
        # If the process is killed now, the write may or may not be durable.
        for is_durable in (True, False):
            lost = self.open | set(opened) - {i["index"] for i in results} if is_durable else self.open
            assert len(lost - ({i["index"] for i in results} if is_durable else set())) <= self.size
        if durable:
            del self.to_open[: len(opened)]
            self.window.written(opened, results, meanwhile)
            self.waiting += opened
            self.open = (self.open | set(opened)) - {item["index"] for item in results}
            self.recorded |= {item["index"] for item in results}

    @invariant()
    def the_window_is_kept(self):
        if hasattr(self, "open"):
            assert self.window.open == len(self.open) <= self.size
            assert self.window.sent_or_waiting == len(self.waiting)

    @invariant()
    def it_never_gets_stuck(self):
        """With nothing to send, and more to open or to record, a write is due."""
        if hasattr(self, "open") and not self.waiting and (self.to_open or self.open):
            assert self.window.is_due(0, self.now, more=bool(self.to_open))


TestBatch = Batch.TestCase


def test_only_what_is_open_can_be_settled():
    window = Window(2)
    with pytest.raises(ValueError, match="Item 0 is not open"):
        window.settle(started(0), 0)
    window.written([0], [], 0)
    window.settle(started(0), 0)
    with pytest.raises(ValueError, match="Item 0 is not open"):
        window.settle(started(0), 0)


def test_results_are_written_after_a_second_even_if_few():
    window = Window(64)
    window.written([*range(64)], [], 0)
    window.settle(started(0), 10.0)
    assert not window.is_due(47, 10.9, more=True)
    assert window.is_due(47, 11.0, more=True)


def test_half_a_window_of_results_is_written_at_once():
    window = Window(64)
    window.written([*range(64)], [], 0)
    for index in range(31):
        window.settle(started(index), 10.0)
    assert not window.is_due(17, 10.0, more=True)
    window.settle(started(31), 10.0)
    assert window.is_due(16, 10.0, more=True)


def test_it_writes_before_nothing_is_left_to_send():
    """As many items as were settled during the last write are left waiting."""
    window = Window(64)
    window.written([*range(64)], [], 20)
    window.settle(started(0), 10.0)
    assert not window.is_due(21, 10.0, more=True)
    assert window.is_due(20, 10.0, more=True)


def test_at_the_end_one_write_has_all_results():
    window = Window(4)
    window.written([0, 1], [], 0)
    window.settle(started(0), 10.0)
    assert not window.is_due(0, 10.0, more=False)
    window.settle(started(1), 10.0)
    assert window.is_due(0, 10.0, more=False)
