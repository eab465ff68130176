"""
Wait for the end of a run, and use what the flow returned.

The flow's last step sends an HTTP request to the URL in its input ``callback_url``. The task waits
for it without a worker. Where the service cannot reach Airflow, the connection's
``callback_base_url`` names a folder of an object store, and the step writes the same JSON to that
URL. Requires Airflow 3.3 or later.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator


@task
def announce(report: dict) -> str:
    message = f"{report['rows']} rows are in {report['file']}"
    print(message)
    return message


with DAG(
    dag_id="workflow_automation_wait",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_trigger_flow_wait]
    trigger = TriggerFlowOperator(
        task_id="trigger",
        # The URL is added to the inputs, as callback_url.
        inputs={"report": "orders"},
        wait_for_completion=True,
        completion_timeout=timedelta(hours=6),
        retries=3,
    )
    # What the flow returned, here {"rows": …, "file": …}.
    announce(trigger.output["result"])
    # [END howto_operator_trigger_flow_wait]
