"""One whole deployment and one local service for all the system tests; run by ``make system-test``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).parent
# The tests are imported without these on the path.
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

# Not part of `make test`: its environment has no PostgreSQL driver, no Celery and no browser.
collect_ignore_glob = [] if all(map(find_spec, ("psycopg2", "redis", "playwright"))) else ["*.py"]

if TYPE_CHECKING:
    from services import Service
    from stack import Stack

ORDER = [
    "test_examples",
    "test_browser",
    "test_kills",
    "test_restarts",
    "test_backfill",
    "test_key_is_nowhere",
]
_notes: list[str] = []
_started = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The search for the key comes when all else has left its traces."""
    if all(item.path.parent == HERE for item in items):
        items.sort(key=lambda item: ORDER.index(item.path.stem))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _notes:
        terminalreporter.section("what was seen")
        for line in _notes:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def note() -> Callable[[str], None]:
    """Add a line to the summary at the end."""
    return lambda line: _notes.append(f"{time.monotonic() - _started:6.1f} s  {line}")


@pytest.fixture(scope="session")
def stack(note: Callable[[str], None]) -> Iterator[Stack]:
    """Airflow, running."""
    from stack import Stack

    stack = Stack()
    try:
        stack.start()
        note("everything is healthy")
        yield stack
    finally:
        note(f"started again by the keeper: {', '.join(stack.kept_alive) or 'nothing'}")
        stack.stop()
        if os.environ.get("KEEP"):
            note(f"kept: {stack.home}")
        else:
            stack.remove()


@pytest.fixture(scope="session")
def service(stack: Stack) -> Iterator[Service]:
    """The service, in a process of its own, and the connection to it."""
    from services import KEY, Service

    service = Service(stack.home, "service")
    service.start()
    stack.api.add_connection("workflow_automation_default", service.base_url, KEY, flow_id="demo-flow")
    yield service
    service.stop()
