"""
Settle a start in doubt by the run itself: it claims its start before it does anything.

If the service does not respond in time, or the task is killed, the task waits until the run says
that it has begun, and returns that run; if none does so, the task's retry starts another, and a run
that comes too late is told to stop. The flow's first step sends an HTTP request to the URL in its
input ``callback_url``, and ends the run on 404. Requires Airflow 3.3 or later.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator


@task
def announce(run: dict) -> str:
    message = f"Continuing with run {run['run_id']}"
    print(message)
    return message


with DAG(
    dag_id="workflow_automation_claim",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_trigger_flow_claim]
    trigger = TriggerFlowOperator(
        task_id="trigger",
        # The URL is added to the inputs, as callback_url.
        inputs={"report": "refunds"},
        # Only for a flow whose first step claims its start: without it, this is "start_again".
        on_unknown_start="claim",
        claim_timeout=timedelta(seconds=60),
        retries=3,
    )
    announce(trigger.output)
    # [END howto_operator_trigger_flow_claim]
