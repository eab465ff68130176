"""
Start a run for each row of a CSV file in a bucket, in one task, and report what was started.

The parameters name the bucket. Their defaults are local folders, so that the example runs as it is;
with S3 they are such as ``s3://aws_default@reports/customers.csv``.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path

import pendulum
from airflow.sdk import DAG, ObjectStoragePath, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

DATA = Path(__file__).parent / "data"


@task
def write_batch(source: str, target: str) -> str:
    with ObjectStoragePath(source).open() as rows, ObjectStoragePath(target).open("w") as batch:
        for row in csv.DictReader(rows):
            batch.write(json.dumps(row) + "\n")
    return target


# [START howto_operator_trigger_flow_batch_report]
@task
def report(summary: dict) -> str:
    with ObjectStoragePath(summary["path"]).open() as items:
        for item in map(json.loads, items):
            if item["status"] != "started":
                print(f"Row {item['index']} was {item['status']}: {item['why']}")
    started = f"{summary['started']} of {summary['total']} runs were started"
    text = f"{started}, {summary['rejected']} rows were rejected."
    print(text)
    return text


# [END howto_operator_trigger_flow_batch_report]


with DAG(
    dag_id="workflow_automation_batch",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={
        "source": f"file://{DATA}/batch/customers.csv",
        "folder": f"file://{tempfile.gettempdir()}",
    },
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_trigger_flow_batch]
    batch = TriggerFlowBatchOperator(
        task_id="trigger",
        batch=write_batch("{{ params.source }}", "{{ params.folder }}/batch-{{ run_id }}.jsonl"),
        output_path="{{ params.folder }}/runs-{{ run_id }}.jsonl",
        on_rejected="skip",
        retries=3,
    )
    # [END howto_operator_trigger_flow_batch]
    report(batch.output)
