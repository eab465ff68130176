"""
The words of every failed request, task and batch: facts in, the text of an error out.

An error says, in lines of their own: its code and what happened; what that means; what earlier tries did; whether
Airflow retries the task; what to do next; and the connection, flow and run. docs/if-it-fails.md is ordered by code.
An invalid argument is worded where it is checked.
"""

from __future__ import annotations

from workflow_automation_provider.failures.claim import (
    revoked_error,
    silence_error,
    unclaimed_error,
    unsettled_error,
)
from workflow_automation_provider.failures.request import (
    check_text,
    code_of,
    consequence_of,
    error_class,
    reason_of,
    request_error,
    response_of,
    run_of,
    shortened,
    where_to_look,
)
from workflow_automation_provider.failures.task import (
    BATCH_ADVICE,
    CLAIM_ADVICE,
    START_ADVICE,
    SUPPLIED_RUN_KEY,
    UPLOAD_ADVICE,
    Outlook,
    PreviousTry,
    how_to_enter,
    run_advice,
    run_started,
    start_advice,
    task_error,
)

__all__ = [
    "BATCH_ADVICE",
    "CLAIM_ADVICE",
    "START_ADVICE",
    "SUPPLIED_RUN_KEY",
    "UPLOAD_ADVICE",
    "Outlook",
    "PreviousTry",
    "check_text",
    "code_of",
    "consequence_of",
    "error_class",
    "how_to_enter",
    "reason_of",
    "request_error",
    "response_of",
    "revoked_error",
    "run_advice",
    "run_of",
    "run_started",
    "shortened",
    "silence_error",
    "start_advice",
    "task_error",
    "unclaimed_error",
    "unsettled_error",
    "where_to_look",
]
