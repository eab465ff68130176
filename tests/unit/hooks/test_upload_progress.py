"""How far an upload is: what is logged of it, and when."""

from __future__ import annotations

import io
import logging
import re
import time

import pytest

from workflow_automation_provider.client.files import File
from workflow_automation_provider.hooks.upload_progress import Progress, mebibytes, names_of

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


def numbers(text):
    """Return what a line says: files, MiB and percent that were sent, the rate, and the seconds left."""
    return [float(number) for number in re.findall(r"(?<= )\(?(\d+(?:\.\d+)?) ", text)]


def test_a_long_upload_is_told_of_every_fifteen_seconds(clock, logged):
    """Files and their bytes, of which the body is a third longer."""
    elements = files(*[10 * MIB] * 10)
    progress = Progress(10, 100 * MIB, LOG)
    sent = progress.request(elements, 140 * MIB)
    for element in elements[:-1]:
        progress.begun(element)
        clock(5)
        sent(14 * MIB)

    assert [(name, level, numbers(text)) for name, level, text in logged()] == [
        ("of the task", "INFO", [done - 1, 10, done * 10, 100, done * 10, 2, left])
        for done, left in ((3, 35), (6, 20), (9, 5))
    ]
    assert [text.split()[-1] for _, _, text in logged()] == ["2.csv.", "5.csv.", "8.csv."]


def test_several_requests_are_told_of_as_one_upload(clock, logged):
    first, second = files(*[10 * MIB] * 5), [*files(*[10 * MIB] * 4), {"row": 1}]
    progress = Progress(10, 90 * MIB, LOG)
    progress.request(first, 70 * MIB)(70 * MIB)
    progress.confirmed()
    clock(50)
    progress.request(second, 60 * MIB)(30 * MIB)  # and then the service was busy
    sent = progress.request(second, 60 * MIB)
    for element in second:
        progress.begun(element)
    clock(20)
    sent(15 * MIB)
    assert [numbers(text) for _, _, text in logged()] == [
        [5, 10, 70, 90, 77, 1.4, 14],
        [9, 10, 60, 90, 66, 0.9, 35],
    ]


def test_a_short_upload_is_not_told_of(clock, logged):
    sent = Progress(1, 100 * MIB, LOG).request(files(100 * MIB), 140 * MIB)
    clock(14.9)
    sent(90 * MIB)
    assert logged() == []


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "0.csv"), (3, "0.csv, 1.csv, 2.csv"), (12, ", 9.csv and 2 more"), (1010, "and 1,000 more")],
)
def test_the_first_names_are_told(count, text):
    names = names_of(files(*range(count)), count)
    assert names.endswith(text)
    assert names.count(".csv") == min(count, 10)
