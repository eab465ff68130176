"""
Start a run, upload files for it, and pass its link on to another task.

The connection ``workflow_automation_default`` holds the base URL, the API key of the workflow and
its Flow ID, which an upload requires.
"""

from __future__ import annotations

from pathlib import Path

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

DATA = Path(__file__).parent / "data"


@task
def choose_customer() -> str:
    return "Ada"


@task
def announce(run: dict[str, str], uploaded: dict) -> str:
    # A run that a person gave the task may have no link.
    link = run.get("run_link", "the service")
    message = f"Run {run['run_id']} is at {link}, with {uploaded['files']} file(s)"
    print(message)
    return message


with DAG(
    dag_id="workflow_automation_trigger_upload",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_upload_files]
    trigger = TriggerFlowOperator(
        task_id="trigger",
        inputs={"customer": choose_customer(), "dag_run": "{{ run_id }}"},
        retries=3,
    )
    upload = UploadFilesOperator(
        task_id="upload",
        run_id=trigger.output,
        files=[f"{DATA}/*.csv"],
        retries=3,
    )
    announce(trigger.output, upload.output)
    # [END howto_operator_upload_files]
