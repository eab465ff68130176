"""The metrics and spans that a real Airflow sends of a task, and that the key is in none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_launcher.waiting import wait_for
from outcomes import outcome

if TYPE_CHECKING:
    from collector import Collector, Span
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


def test_a_task_sends_metrics_and_spans(
    deployment: Deployment, service: LocalService, collector: Collector
) -> None:
    case = "telemetry"
    deployment.api.trigger("once", case)
    done = outcome(deployment, service, "once", case)
    assert (done.state, len(done.runs)) == ("success", 1)

    def of_the_run() -> list[Span]:
        return [
            span
            for span in list(collector.spans)
            if span.attributes.get("workflow_automation.run_id") == done.runs[0]
        ]

    (span,) = wait_for("the span of the start", of_the_run)
    assert span.name == "workflow_automation.trigger"
    assert span.attributes == {
        "workflow_automation.conn_id": "workflow_automation_default",
        "workflow_automation.flow_id": "demo-flow",
        "workflow_automation.run_id": done.runs[0],
    }

    def is_part_of_the_task() -> bool:
        by_id = {found.span_id: found for found in list(collector.spans)}
        above = span
        while above.parent_id in by_id and not above.name.startswith("worker."):
            above = by_id[above.parent_id]
        return above.name.startswith("worker.trigger")

    # Which ends later, and comes later.
    wait_for("the span of the task", is_part_of_the_task)

    def has_metrics() -> bool:
        names = {line.partition(":")[0] for line in list(collector.metrics)}
        return names >= {
            "airflow.workflow_automation.runs.started",
            "airflow.workflow_automation.runs.response_time",
        }

    wait_for("the metrics", has_metrics)
    key = service.keys[0].value
    assert key not in str(collector.spans)
    assert key not in str(collector.metrics)
