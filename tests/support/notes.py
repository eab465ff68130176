"""What tests have seen, for the summary at the end: a ``conftest.py`` imports both functions."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

_notes: list[str] = []
_started = time.monotonic()


@pytest.fixture(scope="session")
def note() -> Callable[[str], None]:
    """Add a line to the summary at the end."""
    return lambda line: _notes.append(f"{time.monotonic() - _started:6.1f} s  {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines."""
    if _notes:
        terminalreporter.section("what was seen")
        for line in _notes:
            terminalreporter.write_line(line)
