"""What ``make upgrade`` runs: a task of each kind, for versions of before 1.0.0 as well."""

from __future__ import annotations

import os
from datetime import timedelta
from inspect import signature

import pendulum
from airflow.sdk import DAG

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator
from workflow_automation_provider.triggers import mailbox

mailbox.INTERVAL = 1.0

INPUTS = {"case": "{{ run_id }}"}
BATCH = {
    "task_id": "trigger",
    "batch": [{**INPUTS, "n": n} for n in range(20)],
    "max_concurrency": 2,
}


def dag(dag_id: str) -> DAG:
    return DAG(
        dag_id,
        schedule=None,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
    )


with dag("upgrade_call"):
    TriggerFlowOperator(task_id="trigger", inputs=INPUTS, wait_for_completion=True)

with dag("upgrade_mailbox"):
    TriggerFlowOperator(
        task_id="trigger",
        inputs=INPUTS,
        wait_for_completion=True,
        workflow_automation_conn_id="mailboxes_file",
    )

with dag("upgrade_in_doubt"):
    TriggerFlowOperator(task_id="trigger", inputs=INPUTS)

with dag("upgrade_batch"):
    TriggerFlowBatchOperator(**BATCH)

if "wait_for_completion" in signature(TriggerFlowBatchOperator).parameters:
    with dag("upgrade_batch_waits"):
        TriggerFlowBatchOperator(
            **BATCH,
            output_path=f"{os.environ['AIRFLOW_HOME']}/{{{{ run_id }}}}.jsonl",
            workflow_automation_conn_id="mailboxes_file",
            wait_for_completion=True,
        )
