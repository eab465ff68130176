"""
Wait for the file that a flow writes as its last step, and read it.

For a flow that cannot reach Airflow, and for Airflow before 3.3. The parameter ``folder`` names
where the flow writes. Its default is a local folder, so that the example runs as it is; with S3 it
is such as ``s3://aws_default@reports/results``.
"""

from __future__ import annotations

import json
import tempfile
from uuid import uuid4

import pendulum
from airflow.sdk import DAG, ObjectStoragePath, PokeReturnValue, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator


# [START howto_wait_for_file]
@task
def name_file(folder: str) -> str:
    # Never the name of an earlier run's file, which would end the wait at once.
    return f"{folder}/{uuid4()}.json"


@task.sensor(mode="reschedule", poke_interval=30, timeout=6 * 60 * 60)
def wait(path: str) -> PokeReturnValue:
    file = ObjectStoragePath(path)
    if not file.exists():
        return PokeReturnValue(is_done=False)
    with file.open() as content:
        return PokeReturnValue(is_done=True, xcom_value=json.load(content))


# [END howto_wait_for_file]


@task
def announce(report: dict) -> str:
    message = f"{report['rows']} rows are in {report['file']}"
    print(message)
    return message


with DAG(
    dag_id="workflow_automation_wait_for_file",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"folder": f"file://{tempfile.gettempdir()}"},
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    path = name_file("{{ params.folder }}")
    trigger = TriggerFlowOperator(
        task_id="trigger", inputs={"report": "orders", "result_file": path}, retries=3
    )
    report = wait(path)
    trigger >> report
    announce(report)
