"""
Metrics and traces of what tasks do, by Airflow's ``Stats`` and OpenTelemetry. docs/metrics.md lists the names.

Nothing here may fail a task, least of all one that started a run: call it after what it is about was recorded.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.outcome import Outcome, Rejected, Started, Unidentified, Unknown

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

PREFIX = "workflow_automation"
"""Of the names of all metrics, spans and attributes."""

_log = logging.getLogger(__name__)


def metric_of(outcome: Outcome) -> str | None:
    """Return the counter of a request that was to start a run; None if nothing came of it, so that it is sent again."""
    match outcome:
        case Rejected():
            return "runs.rejected"
        case Started() | Unidentified():
            return "runs.started"
        case Unknown():
            return "runs.unknown"
    return None


class Telemetry:
    """
    The metrics and traces of one task.

    :param context: of the task, whose tags the metrics get; where there is no task, there are neither
    """

    def __init__(self, context: Context) -> None:
        self._ti = context.get("ti")

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter, unless there is nothing to add."""
        if number:
            self._emit("incr", name, number)

    def time(self, name: str, seconds: float) -> None:
        """Record how long something took."""
        self._emit("timing", name, timedelta(seconds=seconds))

    def _emit(self, method: str, name: str, value: object) -> None:
        if self._ti is None:
            return
        try:
            from airflow.providers.common.compat.sdk import Stats

            tags = getattr(self._ti, "stats_tags", None)
            if tags is None:  # on Airflow 3.0 to 3.2
                tags_of_task = ((name, getattr(self._ti, name, None)) for name in ("dag_id", "task_id"))
                tags = {name: value for name, value in tags_of_task if value}
            getattr(Stats, method)(f"{PREFIX}.{name}", value, tags=tags)
        except Exception:
            _log.debug("The metric %s could not be sent.", name, exc_info=True)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str | int | None]) -> Iterator[dict[str, Any]]:
        """
        Trace what is done within as part of the task's span, if Airflow records that.

        :param attributes: those that are None are left out
        :return: a dict for further attributes that become known within
        """
        more: dict[str, Any] = {}
        span = self._begin(name)
        try:
            yield more
        except BaseException as error:
            more["error"] = type(error).__name__
            raise
        finally:
            if span is not None:
                self._end(span, {**attributes, **more})

    def _begin(self, name: str) -> Any:
        # Not imported: where Airflow traces its tasks, it has done that.
        trace = sys.modules.get("opentelemetry.trace")
        try:
            if self._ti is None or trace is None or not trace.get_current_span().is_recording():
                return None
            return trace.get_tracer(__name__).start_span(f"{PREFIX}.{name}")
        except Exception:
            _log.debug("The span %s could not be begun.", name, exc_info=True)
            return None

    def _end(self, span: Any, attributes: Mapping[str, Any]) -> None:
        try:
            span.set_attributes(
                {f"{PREFIX}.{key}": value for key, value in attributes.items() if value is not None}
            )
            if error := attributes.get("error"):
                status = sys.modules["opentelemetry.trace"]
                # Its class alone, as Airflow does: a message may quote what a service said.
                span.set_status(status.Status(status.StatusCode.ERROR, f"Exception: {error}"))
            span.end()
        except Exception:
            _log.debug("A span could not be ended.", exc_info=True)
