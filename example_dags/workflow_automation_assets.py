"""
Start a run in one DAG, and continue in another.

Airflow schedules the other one on the asset that the run updates.

The event of the asset tells which run it was.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Asset, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator

# [START howto_asset_events]
report = Asset("workflow_automation_report")

with DAG(
    dag_id="workflow_automation_assets_start",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    TriggerFlowOperator(task_id="trigger", inputs={"report": "orders"}, outlets=[report], retries=3)


@task
def announce(triggering_asset_events=None) -> list[str]:
    # More than one, if the report was updated again before this DAG run was created.
    runs = [event.extra for event in triggering_asset_events[report]]
    lines = [f"Run {run['run_id']} of {run['flow_id']}: {run['run_link']}" for run in runs]
    print(*lines, sep="\n")
    return lines


with DAG(
    dag_id="workflow_automation_assets_continue",
    schedule=[report],
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    announce()
# [END howto_asset_events]
