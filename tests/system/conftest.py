"""
One whole deployment and one local service for all the system tests.

Run by ``make system-test``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_launcher.airflow import temporary_home
from airflow_launcher.processes import inhabitants
from services import FLOW_ID, KEY, Service
from stack import Stack

HERE = Path(__file__).parent

# Not part of `make test`: its environment has no PostgreSQL driver, no Celery and no browser.
collect_ignore_glob = [] if all(map(find_spec, ("psycopg2", "redis", "playwright"))) else ["*.py"]

ORDER = [
    "test_callbacks",
    "test_page",
    "test_actions",
    "test_page_script",
    "test_cookbook",
    "test_browser",
    "test_waits",
    "test_kills",
    "test_backfill",
    "test_key_is_nowhere",
]


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The search for the key comes when all else has left its traces."""
    if all(item.path.parent == HERE for item in items):
        items.sort(key=lambda item: ORDER.index(item.path.stem))


@pytest.fixture(scope="session")
def stack(note: Callable[[str], None]) -> Iterator[Stack]:
    """Airflow, running."""
    with temporary_home("system") as home:
        stack = Stack(home)
        try:
            with stack:
                note("everything is healthy")
                yield stack
        finally:
            note(f"started again by the keeper: {', '.join(stack.kept_alive) or 'nothing'}")
            if os.environ.get("KEEP"):
                note(f"kept: {home}")
        assert not inhabitants(home)


@pytest.fixture(scope="session")
def service(stack: Stack) -> Iterator[Service]:
    """The service, in a process of its own, and the connection to it."""
    service = Service(stack.home)
    service.start()
    connection = {"conn_type": "workflow_automation", "host": service.base_url, "password": KEY}
    stack.api.add_connection(
        "workflow_automation_default", {**connection, "extra": {"flow_id": FLOW_ID}}
    )
    yield service
    service.stop()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the screenshots go: into the documentation only if ``PICTURES`` says so."""
    if os.environ.get("PICTURES"):
        return Path(__file__).parents[2] / "docs" / "images"
    return tmp_path_factory.mktemp("pictures")
