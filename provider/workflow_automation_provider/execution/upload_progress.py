"""Log the progress of a long upload."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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
    count = len(elements)
    return f"{count:,} file{'' if count == 1 else 's'} of {mebibytes(size_of(elements))}"


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


class Progress:
    """
    Log how much of an upload is sent, at most once in 15 seconds, so not at all that of a short one.

    :param size: of all bodies, in bytes
    """

    def __init__(self, size: int, log: Any) -> None:
        self._size = size
        self._log = log
        self._confirmed = self._sent = 0
        self._name = "a mapping"
        self._logged = time.monotonic()

    def begin(self) -> None:
        """Begin with a request, also with one that is sent again."""
        self._sent = 0

    def begun(self, element: Element) -> None:
        """Note which element is being sent."""
        self._name = name_of(element) or "a mapping"

    def sent(self, size: int) -> None:
        """Note that so many bytes were sent."""
        self._sent += size
        done = self._confirmed + self._sent
        if done < self._size and self.is_due():
            self._log.info(
                "Sent %s of %s (%d %%). Sending %s.",
                mebibytes(done),
                mebibytes(self._size),
                100 * done / self._size,
                self._name,
            )

    def confirmed(self) -> None:
        """Note that the current request was confirmed."""
        self._confirmed += self._sent
        self._sent = 0

    def is_due(self) -> bool:
        """Return whether a line may be logged, and count it if so."""
        now = time.monotonic()
        if now - self._logged < _INTERVAL:
            return False
        self._logged = now
        return True
