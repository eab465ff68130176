"""The progress of a batch, in the log and in an XCom, while the task runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.execution.batch.summary import counts_text

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.batch.item_results import Results

PROGRESS_XCOM = "progress"
"""Key of the XCom with the counts, while the task runs."""

# Seconds between two lines of progress.
_INTERVAL = 5.0


class Progress:
    """
    How far a batch is, and how fast.

    :param results: the results so far
    :param context: the task's context, for the XCom
    """

    def __init__(self, results: Results, context: Context, log: Logger) -> None:
        self._results = results
        self._context = context
        self._log = log
        self._began = time.monotonic()
        self._shown_at = self._began
        self._not_started_at_first = results.counts["not_started"]  # by earlier tries

    def show_if_due(self) -> None:
        """Show the progress, unless that was done in the last seconds."""
        if time.monotonic() - self._shown_at >= _INTERVAL:
            self.show()

    def show(self) -> None:
        """Log the counts and the throughput, and store the counts as an XCom."""
        now = time.monotonic()
        self._shown_at = now

        counts = self._results.counts
        not_started = counts["not_started"]
        rate = (self._not_started_at_first - not_started) / max(now - self._began, 0.001)
        left = ""
        if rate and not_started:
            left = f", {not_started / rate:.0f} s left"

        # Some may be under way.
        self._log.info(f"{counts_text(counts, 'to go')} {rate:.1f} per second{left}.")

        push(self._context, self._log, PROGRESS_XCOM, counts)


def push(context: Context, log: Logger, key: str, value: Any) -> None:
    """Push an XCom that the task can do without."""
    try:
        context["ti"].xcom_push(key=key, value=value)
    except Exception:
        log.warning("The XCom %s could not be stored.", key, exc_info=True)
