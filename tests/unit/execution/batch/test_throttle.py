"""All threads wait together, as long as the service asks, and never beyond the user's patience."""

from __future__ import annotations

import random
import threading
import time

import pytest
from airflow.sdk import BaseHook

from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
)
from workflow_automation_provider.execution.batch.throttle import Throttle


def busy(retry_after):
    return BusyError("Later.", retry_after=retry_after)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when someone sleeps."""

    class Clock:
        def __init__(self):
            self.now = 1000.0
            self.naps: list[float] = []

        def sleep(self, seconds):
            self.naps.append(seconds)
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(random, "uniform", max)
    return clock


def throttle(patience=60.0, per_second=None, is_stopped=lambda: False):
    return Throttle(patience, per_second, BaseHook().log, is_stopped)


def test_starts_are_spread_evenly(clock):
    waiting = throttle(per_second=4)
    times = []
    for _ in range(9):
        assert waiting.wait()
        times.append(clock.now - 1000)
    assert times == pytest.approx([0.25 * n for n in range(9)])


def test_a_start_that_is_a_little_late_does_not_delay_the_next(clock):
    waiting = throttle(per_second=2)
    assert waiting.wait()
    times = []
    for late in (0.7, 0.2, 10, 0):
        clock.now += late
        assert waiting.wait()
        times.append(clock.now - 1000)
    assert times == pytest.approx([0.7, 1.0, 11.0, 11.5])


def test_all_wait_for_as_long_as_the_service_asks(clock):
    waiting = throttle()
    assert waiting.on_busy(busy(7), clock.now)
    assert waiting.wait()
    assert clock.now == pytest.approx(1008)  # with a jitter of up to a second
    assert max(clock.naps) <= 0.1


def test_the_wait_grows_with_each_pause_and_not_with_each_thread(clock):
    waiting = throttle()
    for number in range(16):
        # All were sent before the first of them told that there is no connection.
        assert waiting.on_busy(NotSentError("Not sent."), 1000 - number / 1000)
        clock.now += 0.001
    assert waiting.wait()
    assert clock.now == pytest.approx(1001, abs=0.05)
    assert waiting.on_busy(NotSentError("Not sent."), clock.now)
    began = clock.now
    assert waiting.wait()
    assert clock.now - began == pytest.approx(2)


def test_patience_ends_and_is_renewed_by_a_response(clock):
    waiting = throttle(patience=2.5)
    assert waiting.on_busy(NotSentError("Not sent."), clock.now)
    assert waiting.wait()
    assert not waiting.on_busy(NotSentError("Not sent."), clock.now)
    waiting.on_response()
    assert waiting.on_busy(NotSentError("Not sent."), clock.now)


def test_a_wait_that_the_service_asks_for_does_not_count_up_to_ten_minutes(clock):
    waiting = throttle(patience=10)
    for _ in range(3):  # with a jitter of 1, 2 and 4 seconds
        for number in range(16):
            assert waiting.on_busy(busy(600), clock.now - number / 1000)
        assert waiting.wait()
    assert clock.now == pytest.approx(1000 + 3 * 600 + 7, abs=0.5)
    assert not waiting.on_busy(busy(600), clock.now)
    waiting.on_response()
    assert not waiting.on_busy(busy(601), clock.now)


def test_what_late_responses_ask_for_counts_once(clock):
    """All requests were sent at once, and their responses ask for more and more."""
    waiting = throttle(patience=10)
    sent_at = clock.now
    for asked in range(60, 120):
        clock.now += 0.5
        assert waiting.on_busy(busy(asked), sent_at)
    assert waiting.wait()
    assert clock.now == pytest.approx(1030 + 119, abs=1.1)
    clock.now += 7
    assert not waiting.on_busy(NotSentError("Not sent."), clock.now)


def test_time_spent_on_a_request_counts(clock):
    waiting = throttle(patience=10)
    assert not waiting.on_busy(NotSentError("Not sent."), clock.now - 9.5)


def test_a_stop_ends_all_waits():
    stopped = threading.Event()
    waiting = throttle(is_stopped=stopped.is_set)
    assert waiting.on_busy(busy(50), time.monotonic())
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(waiting.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    stopped.set()
    for thread in threads:
        thread.join(2)
    assert answers == [False] * 4


def test_a_late_response_does_not_count_the_time_in_which_others_got_through(clock):
    waiting = throttle(patience=60)
    sent_at = clock.now
    clock.now += 100
    waiting.on_response()
    assert waiting.on_busy(busy(5), sent_at)
    clock.now += 64
    assert not waiting.on_busy(NotSentError("Not sent."), clock.now)


def test_a_service_that_is_not_reached_for_a_week_only_makes_it_wait(clock):
    waiting = throttle(patience=7 * 86400.0)
    for _ in range(1100):
        assert waiting.wait()
        assert waiting.on_busy(NotSentError("Not sent."), clock.now)
