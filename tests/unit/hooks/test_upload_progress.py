"""How far an upload is: what is logged of it, and when."""

from __future__ import annotations

import io
import logging
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


def test_a_long_upload_is_told_of_every_fifteen_seconds(clock, logged):
    """Files and their bytes, of which the body is a third longer."""
    elements = files(*[10 * MIB] * 10)
    progress = Progress(10, 100 * MIB, LOG)
    sent = progress.request(elements, 140 * MIB)
    for element in elements[:-1]:
        progress.begun(element)
        clock(5)
        sent(14 * MIB)

    assert logged() == [
        (
            "of the task",
            "INFO",
            (
                f"Uploaded {done - 1} of 10 files, {done}0.0 MiB of 100.0 MiB ({done}0 %), 2.0 MiB/s, "
                f"about {left} s left. Sending {done - 1}.csv."
            ),
        )
        for done, left in ((3, 35), (6, 20), (9, 5))
    ]


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
    assert [text for _, _, text in logged()] == [
        "Uploaded 5 of 10 files, 70.0 MiB of 90.0 MiB (77 %), 1.4 MiB/s, about 14 s left. Sending a mapping.",
        "Uploaded 9 of 10 files, 60.0 MiB of 90.0 MiB (66 %), 0.9 MiB/s, about 35 s left. Sending a mapping.",
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
