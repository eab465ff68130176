"""Settings with which Airflow soon finds what was killed."""

from __future__ import annotations

QUICK_RECOVERY = {
    # No task that lives misses a minute's heartbeats. What a test kills is given old ones: see OLD_HEARTBEAT.
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}
OLD_HEARTBEAT = "2026-01-01 00:00:00.000000"
"""What stands in ``task_instance.last_heartbeat_at`` of a task whose heartbeats Airflow misses at once."""
