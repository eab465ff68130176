"""The progress of a batch, and its runs, in the log."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.batch.results import BatchCounts, ItemResults
    from workflow_automation_provider.execution.batch_state import BatchItem

PROGRESS_XCOM = "progress"
"""Key of the XCom with the counts, while the task runs."""

# How many runs a line of the log names.
_MAX_RUNS_IN_A_LINE = 200

# Seconds between two lines of progress.
_PROGRESS_INTERVAL = 5.0


class Progress:
    """
    Log progress and throughput periodically.

    :param ti: the task instance, which gets the counts as an XCom
    """

    def __init__(self, log: Logger, ti: Any) -> None:
        self._log = log
        self._ti = ti
        self._began = self._logged = time.monotonic()
        self._before: int | None = None

    def log(self, results: ItemResults, *, at_the_end: bool = False) -> None:
        """Log, unless it is too early for that."""
        now = time.monotonic()
        if self._before is None:
            self._before = _done(results.counts)  # by earlier tries
        if not at_the_end and now - self._logged < _PROGRESS_INTERVAL:
            return
        self._logged = now
        counts = results.counts
        rate = (_done(counts) - self._before) / max(now - self._began, 0.001)
        left = f", {counts['remaining'] / rate:.0f} s left" if rate and counts["remaining"] else ""
        self._log.info(
            "%s",
            f"{_done(counts)} of {counts['total']} items: {counts['started']} started, {counts['rejected']} rejected, "
            f"{counts['unknown']} unknown; {rate:.1f} per second{left}.",
        )
        try:
            self._ti.xcom_push(key=PROGRESS_XCOM, value=dict(counts))
        except Exception:
            self._log.warning("The progress could not be stored as an XCom.", exc_info=True)


def _done(counts: BatchCounts) -> int:
    return counts["total"] - counts["remaining"]


def named_runs(items: Iterable[BatchItem]) -> Iterator[str]:
    """Yield lines that name the runs, by what is known of them."""
    named = (f"batch[{item['index']}]: {_name(item)}" for item in items if item["status"] != "not started")
    while line := ", ".join(itertools.islice(named, _MAX_RUNS_IN_A_LINE)):
        yield line


def _name(item: BatchItem) -> str:
    return json.dumps(item["response"]) if "response" in item else item.get("run_id", item["status"])
