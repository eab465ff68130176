"""Log the progress of a long upload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.files import Element, File

_INTERVAL = 15.0
_MIB = 1024 * 1024

# As many names as can be read at a glance.
_NAMES = 10


def mebibytes(size: float) -> str:
    """Format a number of bytes in MiB, or in bytes below 0.1 MiB."""
    return f"{size / _MIB:,.1f} MiB" if size >= _MIB / 10 else f"{size:.0f} bytes"


def count_of(elements: Sequence[Element]) -> str:
    """Return the number and the size of elements, as text."""
    return f"{_files(len(elements))} of {mebibytes(size_of(elements))}"


def size_of(elements: Iterable[Element]) -> int:
    """Return the total size of the files among the elements."""
    return sum(element.size for element in elements if isinstance(element, File))


def name_of(element: Element) -> str | None:
    """Return the name of a file, as logs, XComs and the record can store it; None for a mapping."""
    if not isinstance(element, File):
        return None
    return one_line(element.name)


def names_of(elements: Iterable[Element], count: int) -> str:
    """
    Name the first elements.

    :param count: how many there are in all
    """
    names = [name_of(element) or "a mapping" for element in islice(elements, _NAMES)]
    rest = count - len(names)
    return ", ".join(names) + (f" and {rest:,} more" if rest else "")


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


class Progress:
    """
    Log the progress of an upload, at most once in 15 seconds, so not at all that of a short one.

    :param files: number of files to send
    :param size: their total size in bytes
    """

    def __init__(self, files: int, size: int, log: Any) -> None:
        self._files = files
        self._size = size
        self._log = log
        self._files_done = self._size_done = 0
        self._current: Element | None = None
        self._began = self._logged = time.monotonic()
        self.request((), 0)

    def request(self, elements: Sequence[Element], length: int) -> Callable[[int], None]:
        """
        Begin with a request, also with one that is sent again.

        :param length: size of its body in bytes
        :return: to be called with the size of each piece that was sent
        """
        self._elements = elements
        self._length = length
        self._sent = self._begun = 0
        return self._add

    def begun(self, element: Element) -> None:
        """Note which element is being sent."""
        self._current = element
        self._begun += 1

    def confirmed(self) -> None:
        """Note that the current request was confirmed."""
        self._files_done += len(self._elements)
        self._size_done += size_of(self._elements)
        self.request((), 0)

    def is_due(self) -> bool:
        """Return whether a line may be logged, and count it if so."""
        now = time.monotonic()
        if now - self._logged < _INTERVAL:
            return False
        self._logged = now
        return True

    def _add(self, size: int) -> None:
        self._sent += size
        if self._sent >= self._length or not self.is_due():
            return
        # Of a request, only the length of its body is known byte by byte.
        part = self._sent / self._length
        done = self._size_done + part * size_of(self._elements)
        rate = done / (time.monotonic() - self._began)
        self._log.info(
            "Uploaded %s of %s, %s of %s (%d %%), %s/s%s. Sending %s.",
            f"{self._files_done + max(0, self._begun - 1):,}",
            _files(self._files),
            mebibytes(done),
            mebibytes(self._size),
            100 * done / self._size if self._size else 100 * part,
            mebibytes(rate),
            f", about {(self._size - done) / rate:.0f} s left" if rate else "",
            (name_of(self._current) if self._current else None) or "a mapping",
        )
