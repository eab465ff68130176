"""Never are more items open than the window has, whatever the order in which they are settled and written."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from workflow_automation_provider.execution.batch.windows import Windows


def started(index):
    return {"index": index, "status": "started"}


class Batch(RuleBasedStateMachine):
    """Items are opened by writes, sent and settled in any order; a kill may come at any moment."""

    @initialize(size=st.integers(1, 20), items=st.integers(0, 100))
    def begin(self, size, items):
        self.size = size
        self.windows = Windows(size)
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
        self.windows.settle(started(index), self.now)

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.windows.is_due(len(self.waiting), self.now, more=bool(self.to_open)))
    @rule(durable=st.booleans(), meanwhile=st.integers(0, 20))
    def write(self, durable, meanwhile):
        results = self.windows.take_results()
        opened = self.to_open[: self.windows.room]
        # If the process is killed now, the write may or may not be durable.
        for is_durable in (True, False):
            lost = self.open | set(opened) - {i["index"] for i in results} if is_durable else self.open
            assert len(lost - ({i["index"] for i in results} if is_durable else set())) <= self.size
        if durable:
            del self.to_open[: len(opened)]
            self.windows.written(opened, results, meanwhile)
            self.waiting += opened
            self.open = (self.open | set(opened)) - {item["index"] for item in results}
            self.recorded |= {item["index"] for item in results}

    @invariant()
    def the_window_is_kept(self):
        if hasattr(self, "open"):
            assert self.windows.open == len(self.open) <= self.size
            assert self.windows.sent_or_waiting == len(self.waiting)
            assert self.windows.unrecorded == len(self.open) - len(self.waiting)

    @invariant()
    def it_never_gets_stuck(self):
        """With nothing to send, and more to open or to record, a write is due."""
        if hasattr(self, "open") and not self.waiting and (self.to_open or self.open):
            assert self.windows.is_due(0, self.now, more=bool(self.to_open))


TestBatch = Batch.TestCase


def test_only_what_is_open_can_be_settled():
    windows = Windows(2)
    with pytest.raises(ValueError, match="Item 0 is not open"):
        windows.settle(started(0), 0)
    windows.written([0], [], 0)
    windows.settle(started(0), 0)
    with pytest.raises(ValueError, match="Item 0 is not open"):
        windows.settle(started(0), 0)


def test_results_are_written_after_a_second_even_if_few():
    windows = Windows(64)
    windows.written([*range(64)], [], 0)
    windows.settle(started(0), 10.0)
    assert not windows.is_due(47, 10.9, more=True)
    assert windows.is_due(47, 11.0, more=True)


def test_half_a_window_of_results_is_written_at_once():
    windows = Windows(64)
    windows.written([*range(64)], [], 0)
    for index in range(31):
        windows.settle(started(index), 10.0)
    assert not windows.is_due(17, 10.0, more=True)
    windows.settle(started(31), 10.0)
    assert windows.is_due(16, 10.0, more=True)


def test_it_writes_before_nothing_is_left_to_send():
    """As many items as were settled during the last write are left waiting."""
    windows = Windows(64)
    windows.written([*range(64)], [], 20)
    windows.settle(started(0), 10.0)
    assert not windows.is_due(21, 10.0, more=True)
    assert windows.is_due(20, 10.0, more=True)


def test_at_the_end_one_write_has_all_results():
    windows = Windows(4)
    windows.written([0, 1], [], 0)
    windows.settle(started(0), 10.0)
    assert not windows.is_due(0, 10.0, more=False)
    windows.settle(started(1), 10.0)
    assert windows.is_due(0, 10.0, more=False)
