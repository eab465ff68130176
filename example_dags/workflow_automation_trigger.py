"""
Start a run of a flow every morning.

The connection ``workflow_automation_default`` holds the base URL and the API key of the workflow.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG

from workflow_automation_provider.operators.flows import TriggerFlowOperator

with DAG(
    dag_id="workflow_automation_trigger",
    schedule="0 6 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_trigger_flow]
    TriggerFlowOperator(
        task_id="trigger",
        # The names are those that the flow defines. "{{ ds }}" alone is undefined in a DAG run
        # without a logical date, such as one that an asset triggers.
        inputs={
            "day": "{{ (dag_run.logical_date or dag_run.run_after) | ds }}",
            "dag": "{{ dag.dag_id }}",
        },
        retries=3,
    )
    # [END howto_operator_trigger_flow]
