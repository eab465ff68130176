"""What the crash tests and the system tests have in common."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

QUICK_RECOVERY = {
    # No task that lives misses a minute's heartbeats. What a test kills is given old ones: see
    # OLD_HEARTBEAT.
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    # From SIGTERM to SIGKILL, as 3.3 always has it.
    "CORE__KILLED_TASK_CLEANUP_TIME": "5",
}
"""Settings with which Airflow soon finds what was killed."""
OLD_HEARTBEAT = "2026-01-01 00:00:00.000000"
"""
What stands in ``task_instance.last_heartbeat_at`` of a task whose heartbeats Airflow misses at
once.
"""


def executions_seen(home: Path, run_id: str) -> int:
    """
    Return how often the schedulers of an Airflow have seen the tasks of a DAG run leave their
    worker.
    """
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
