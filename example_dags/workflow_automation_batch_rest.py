"""
Start the items of a batch that have no run.

``batch`` is the file of the batch, and ``runs`` its ``output_path``. What is started is in a file
beside that one, ``….batch``, and what came of it in ``….rest``.
"""

from __future__ import annotations

import json
import tempfile

import pendulum
from airflow.sdk import DAG, ObjectStoragePath, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

# Add "unknown" and "overdue" once you have made sure that these items have no run that goes on.
FAILED = ["rejected", "not started", "failed"]


@task
def select(batch: str, runs: str) -> str:
    with ObjectStoragePath(batch).open() as lines, ObjectStoragePath(runs).open() as results:
        items = [line.strip() for line in lines if line.strip()]
        rest = [
            items[found["index"]] for found in map(json.loads, results) if found["status"] in FAILED
        ]
    with ObjectStoragePath(f"{runs}.batch").open("w") as lines:
        lines.write("\n".join(rest))
    return f"{runs}.batch"


with DAG(
    dag_id="workflow_automation_batch_rest",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={
        "batch": f"file://{tempfile.gettempdir()}/customers.jsonl",
        "runs": f"file://{tempfile.gettempdir()}/runs.jsonl",
    },
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    TriggerFlowBatchOperator(
        task_id="trigger",
        batch=select("{{ params.batch }}", "{{ params.runs }}"),
        output_path="{{ params.runs }}.rest",
        retries=3,
    )
