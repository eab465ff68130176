"""
Start a run for each customer in one task, with TaskFlow.

On Airflow 3.3 and later, a retry gets the runs that earlier tries started, and starts only the
others. On earlier versions, it would start all of them again: set ``retries=0`` there if that does
harm.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.taskflow import trigger_flow_once


@task
def list_customers() -> list[str]:
    return ["Ada", "Grace", "Edsger"]


# [START howto_taskflow_trigger_flow_once]
@task(retries=3)
def trigger(customers: list[str]) -> list[str]:
    # The name identifies the run within the task: it must be the same in every try.
    return [trigger_flow_once(name, inputs={"customer": name})["run_id"] for name in customers]


# [END howto_taskflow_trigger_flow_once]


with DAG(
    dag_id="workflow_automation_taskflow",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    trigger(list_customers())
