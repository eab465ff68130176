"""
Start a run in one DAG, and let the flow start the next DAG by Airflow's REST API as its last step.

The flow gets the ID of the DAG run to create among its inputs, and starts
``workflow_automation_next_dag`` with its results as the configuration.
"""

from __future__ import annotations

from uuid import uuid4

import pendulum
from airflow.sdk import DAG, Param, task


# [START howto_next_dag]
@task.trigger_flow(retries=3)
def trigger() -> dict:
    # Called only if a run is to be started, so the next DAG runs once for each run of the flow.
    return {"report": "orders", "dag_run_id": f"report-{uuid4()}"}


# [END howto_next_dag]


with DAG(
    dag_id="workflow_automation_next_dag_start",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    trigger()


@task
def announce(params: dict) -> str:
    message = f"{params['rows']} rows are in {params['file']}"
    print(message)
    return message


with DAG(
    dag_id="workflow_automation_next_dag",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    # Airflow rejects what the flow sends if it does not fit.
    params={
        "rows": Param(0, type="integer", minimum=0),
        "file": Param("orders.csv", type="string", pattern=r"^[\w-]+\.csv$"),
    },
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    announce()
