"""How far an upload is: what is logged of it, and when."""

from __future__ import annotations

import io
import logging
import re
import time

import pytest

from workflow_automation_provider.client.files import File
from workflow_automation_provider.execution.upload import Progress, mebibytes

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


def files(*sizes):
    return [File(f"{number}.csv", size, "text/csv", "there", io.BytesIO) for number, size in enumerate(sizes)]


def test_a_long_upload_is_told_of_every_fifteen_seconds(clock, logged):
    """Also that of several requests, of which one is sent again."""
    first, second = files(10 * MIB, 20 * MIB)
    progress = Progress(40 * MIB, LOG)
    progress.begin()
    progress.begun(first)
    progress.sent(13 * MIB)
    clock(20)
    progress.sent(MIB)
    progress.confirmed()
    for more in (MIB, 2 * MIB):
        progress.begin()
        progress.begun(second)
        clock(15)
        progress.sent(more)
        progress.sent(more)
    clock(20)
    progress.sent(22 * MIB)  # the last: the response says it
    assert [(name, level) for name, level, _ in logged()] == [("of the task", "INFO")] * 3
    assert [re.findall(r"\d+\.?\d*", text) for _, _, text in logged()] == [
        ["14.0", "40.0", "35", "0."],
        ["15.0", "40.0", "37", "1."],
        ["16.0", "40.0", "40", "1."],
    ]


def test_a_short_upload_is_not_told_of(clock, logged):
    progress = Progress(140 * MIB, LOG)
    clock(14.9)
    progress.sent(90 * MIB)
    assert logged() == []
