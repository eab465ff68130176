"""What the crash tests and the system tests have in common; a ``conftest.py`` imports the first two functions."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QUICK_RECOVERY = {
    # No task that lives misses a minute's heartbeats. What a test kills is given old ones: see OLD_HEARTBEAT.
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}
"""Settings with which Airflow soon finds what was killed."""
OLD_HEARTBEAT = "2026-01-01 00:00:00.000000"
"""What stands in ``task_instance.last_heartbeat_at`` of a task whose heartbeats Airflow misses at once."""

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


def executions_seen(home: Path, run_id: str) -> int:
    """Return how often the schedulers of an Airflow have seen the tasks of a DAG run leave their worker."""
    seen = re.compile(rf"state (?:success|failed) for task instance .*run_id='{run_id}'")
    outputs = (path.read_text(errors="replace") for path in (home / "outputs").glob("*scheduler*"))
    return sum(len(seen.findall(output)) for output in outputs)


class Flow:
    """The last step of a flow, which a test holds back until it lets it go."""

    def __init__(self) -> None:
        self._goes_on = threading.Event()

    def __call__(self, run: object) -> dict[str, Any]:
        assert self._goes_on.wait(1200)
        return {"rows": 3}

    def end(self) -> None:
        self._goes_on.set()
