"""
Start a run for each customer, wait until all runs have ended, and use what they returned.

The ``callback_base_url`` of the connection ``workflow_automation_mailbox`` is a folder of an object
store, such as ``s3://aws_default@callbacks/enrich``: there, the flow's last step writes how its run
ended. Requires Airflow 3.3 or later.
"""

from __future__ import annotations

import json
import tempfile
from datetime import timedelta

import pendulum
from airflow.sdk import DAG, ObjectStoragePath, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator


@task
def extract() -> list[dict]:
    return [{"customer": name} for name in ("Ada", "Grace", "Edsger")]


@task
def load(summary: dict) -> str:
    with ObjectStoragePath(summary["path"]).open() as lines:
        items = [json.loads(line) for line in lines]
    ended = [item for item in items if item["status"] == "success"]
    scores = [f"{item['key']}: {item['result']['score']}" for item in ended]
    text = f"{', '.join(scores)}; {summary['failed'] + summary['overdue']} failed"
    print(text)
    return text


with DAG(
    dag_id="workflow_automation_batch_wait",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"folder": f"file://{tempfile.gettempdir()}"},
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_trigger_flow_batch_wait]
    enrich = TriggerFlowBatchOperator(
        task_id="enrich",
        batch=extract(),
        workflow_automation_conn_id="workflow_automation_mailbox",
        output_path="{{ params.folder }}/enriched-{{ run_id }}.jsonl",
        key="customer",
        wait_for_completion=True,
        completion_timeout=timedelta(hours=6),
        on_run_failed="skip",
        retries=3,
    )
    load(enrich.output)
    # [END howto_operator_trigger_flow_batch_wait]
