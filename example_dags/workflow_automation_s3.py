"""
Upload objects from S3 for a run, wait for the end of the run.

Then read the object that the flow wrote to S3.

The connection ``aws_default`` has access to the bucket ``reports``, and so has the flow. Requires
Airflow 3.3 or later, and the extra ``amazon`` of this package.
"""

from __future__ import annotations

import csv
from datetime import timedelta

import pendulum
from airflow.sdk import DAG, ObjectStoragePath, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator

BUCKET = "s3://aws_default@reports"


@task
def read(key: str) -> int:
    with (ObjectStoragePath(BUCKET) / key).open() as content:
        rows = list(csv.DictReader(content))
    print(f"{len(rows)} rows are in {key}")
    return len(rows)


with DAG(
    dag_id="workflow_automation_s3",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"folder": "orders"},
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_s3]
    # The DAG says where the result goes: what a flow returns comes from outside.
    key = "results/{{ run_id }}.csv"
    trigger = TriggerFlowOperator(
        task_id="trigger",
        inputs={"bucket": "reports", "key": key},
        files=[f"{BUCKET}/{{{{ params.folder }}}}/"],
        wait_for_completion=True,
        completion_timeout=timedelta(hours=6),
        retries=3,
    )
    trigger >> read(key)
    # [END howto_s3]
