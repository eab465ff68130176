"""
Start runs of two flows, each with a connection of its own, and upload files for them.

The connections are ``workflow_automation_orders`` and ``workflow_automation_invoices``. Each holds
the API key of one workflow and its Flow ID, which an upload requires.
"""

from __future__ import annotations

from pathlib import Path

import pendulum
from airflow.sdk import DAG, TaskGroup

from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

DATA = Path(__file__).parent / "data" / "reports"

with DAG(
    dag_id="workflow_automation_connections",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_connections]
    for report in ("orders", "invoices"):
        # Both tasks of a group get its connection.
        with TaskGroup(
            report, default_args={"workflow_automation_conn_id": f"workflow_automation_{report}"}
        ):
            trigger = TriggerFlowOperator(task_id="trigger", inputs={"report": report}, retries=3)
            UploadFilesOperator(
                task_id="upload", run_id=trigger.output, files=[f"{DATA}/{report}.csv"], retries=3
            )
    # [END howto_connections]
