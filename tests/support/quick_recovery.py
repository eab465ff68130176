"""Settings with which Airflow soon finds what was killed."""

from __future__ import annotations

QUICK_RECOVERY = {
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}
