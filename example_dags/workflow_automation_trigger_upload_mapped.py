"""
Start a run for each item of a list, and upload that item's files for that run.

The connection ``workflow_automation_default`` holds the base URL, the API key of the workflow and
its Flow ID, which an upload requires.
"""

from __future__ import annotations

from pathlib import Path

import pendulum
from airflow.sdk import DAG, task, task_group

from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

DATA = Path(__file__).parent / "data" / "customers"


@task
def list_customers() -> list[dict]:
    return [
        {"inputs": {"customer": name}, "files": [f"{DATA}/{name}.csv"]}
        for name in ("Ada", "Grace", "Edsger")
    ]


with DAG(
    dag_id="workflow_automation_trigger_upload_mapped",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_upload_files_mapped] Each item has a trigger and an upload of its own:
    # if one trigger fails, its upload does not run, and the others still send their files to their
    # own runs.
    @task_group
    def customer(inputs: dict, files: list[str]) -> None:
        trigger = TriggerFlowOperator(task_id="trigger", inputs=inputs, retries=3)
        UploadFilesOperator(task_id="upload", run_id=trigger.output, files=files, retries=3)

    customer.expand_kwargs(list_customers())
    # [END howto_operator_upload_files_mapped]
