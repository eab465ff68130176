"""How far an upload is: what is logged of it, and when."""

from __future__ import annotations

import logging
import time

import pytest

from workflow_automation_provider.hooks.upload_progress import Progress, mebibytes

MIB = 1024 * 1024
LOG = logging.getLogger("of the task")


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only as the test says."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [(record.name, record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1.4, "1 bytes"),
        (MIB / 10 - 1, "104857 bytes"),
        (MIB / 10, "0.1 MiB"),
        (MIB, "1.0 MiB"),
        (1234.56 * MIB, "1,234.6 MiB"),
    ],
)
def test_sizes(size, text):
    assert mebibytes(size) == text


def test_a_long_upload_is_told_of_every_fifteen_seconds(clock, logged):
    sent = Progress(100 * MIB, LOG)
    for _ in range(9):
        clock(5)
        sent(10 * MIB)

    assert logged() == [
        (
            "of the task",
            "INFO",
            f"Uploaded {done}.0 MiB of 100.0 MiB ({done} %), 2.0 MiB/s, about {left} s left.",
        )
        for done, left in ((30, 35), (60, 20), (90, 5))
    ]


def test_a_short_upload_is_not_told_of(clock, logged):
    sent = Progress(100 * MIB, LOG)
    clock(14.9)
    sent(90 * MIB)
    assert logged() == []


def test_what_is_done_is_not_told_of(clock, logged):
    sent = Progress(100 * MIB, LOG)
    clock(20)
    sent(100 * MIB)
    assert logged() == []
