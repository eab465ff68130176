"""What a task asks for, about its batch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.source import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """
    What a task asks for, about its batch.

    :param batch: as the DAG author gave it, rendered
    :param flow_id: the flow, None if the API key identifies it
    :param key: the name of the input by which people recognize an item, None for none
    :param output_path: where to write the results; None to return them
    :param max_concurrency: how many requests are sent, or ends are read, at a time
    :param max_starts_per_second: the most requests to send in a second, None for no limit
    :param fails_if_rejected: whether the batch fails if the service rejected items
    :param fails_if_run_failed: whether it fails if a run failed, or is overdue
    :param wait_for_completion: whether it waits for the ends of its runs
    :param callback_input: name of the input for a run's URL
    :param completion_timeout: how long it waits, from the first item that is sent
    """

    batch: Batch
    flow_id: str | None
    key: str | None
    output_path: str | None
    max_concurrency: int
    max_starts_per_second: float | None
    fails_if_rejected: bool
    fails_if_run_failed: bool
    wait_for_completion: bool
    callback_input: str
    completion_timeout: timedelta
