"""
Ask a person where it is unknown whether a run was started.

If the service does not respond in time, or the task is killed, the task asks under **Required Actions** and continues with
the answer, instead of failing. Requires Airflow 3.1 or later.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum

# On Airflow 3 alone: from airflow.sdk import DAG, task
from airflow.providers.common.compat.sdk import DAG, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator


@task
def announce(run: dict) -> str:
    message = f"Continuing with run {run['run_id']}"
    print(message)
    return message


with DAG(
    dag_id="workflow_automation_ask",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_trigger_flow_ask]
    trigger = TriggerFlowOperator(
        task_id="trigger",
        inputs={"report": "invoices"},
        on_unknown_start="ask",
        ask_timeout=timedelta(days=2),
        retries=3,
    )
    announce(trigger.output)
    # [END howto_operator_trigger_flow_ask]
