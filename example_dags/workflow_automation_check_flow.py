"""
Check that a flow calls Airflow: start it once, and see what its run says within half a minute.

Trigger this DAG by hand, and look at the log of its task or at its tab **Flow run**: in which order
the run said that it began, how far it was, and how it ended. Requires Airflow 3.3 or later.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG

from workflow_automation_provider.operators.flows import TriggerFlowOperator

with DAG(
    dag_id="workflow_automation_check_flow",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_check_flow]
    TriggerFlowOperator(
        task_id="check",
        # Inputs with which your flow soon ends, and does no harm.
        inputs={"report": "check"},
        wait_for_completion=True,
        on_unknown_start="claim",
        completion_timeout=timedelta(seconds=30),
        retries=0,
    )
    # [END howto_check_flow]
