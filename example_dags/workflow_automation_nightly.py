"""
Start a run for each region every night, at most two at a time.

The pool ``workflow_automation`` must exist, or the tasks stay scheduled and never run.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, task


# [START howto_nightly]
@task.trigger_flow(
    pool="workflow_automation",
    retries=3,
    retry_delay=timedelta(minutes=5),
    map_index_template="{{ task.op_kwargs['region'] }}",
)
def trigger(region: str, day: str) -> dict:
    return {"region": region, "day": day}


# [END howto_nightly]


with DAG(
    dag_id="workflow_automation_nightly",
    schedule="0 2 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    day = "{{ (dag_run.logical_date or dag_run.run_after) | ds }}"
    trigger.partial(day=day).expand(region=["north", "south", "west"])
