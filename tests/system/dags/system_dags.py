"""What the system tests run, beside the example DAGs."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

START = pendulum.datetime(2026, 1, 1, tz="UTC")
ONCE = {"retries": 0, "retry_delay": timedelta(seconds=1)}
THRICE = {**ONCE, "retries": 3}
TEST = {"start_date": START, "is_paused_upon_creation": False, "tags": ["system test"]}
CONN_ID = "{{ dag_run.conf.get('conn_id', 'workflow_automation_default') }}"


def trigger(task_id="trigger", **options) -> TriggerFlowOperator:
    return TriggerFlowOperator(
        task_id=task_id,
        inputs={"case": "{{ run_id }}", "task": "{{ task.task_id }}"},
        workflow_automation_conn_id=CONN_ID,
        **{"send_retry_timeout": 0, **options},
    )


def wait_for_go(context, result) -> None:
    """Wait for the file that the DAG run's conf names."""
    while not Path(context["dag_run"].conf["go"]).exists():
        time.sleep(0.1)


with DAG("system_trigger", schedule=None, default_args=THRICE, **TEST):
    trigger() >> trigger("after")

# Not before the test that wants it.
with DAG(
    "system_daily",
    schedule="@daily",
    catchup=False,
    default_args=THRICE,
    **{**TEST, "is_paused_upon_creation": True},
):
    trigger()

with DAG("system_upload", schedule=None, default_args=THRICE, **TEST):
    UploadFilesOperator(
        task_id="upload",
        run_id=trigger().output["run_id"],
        files=["{{ dag_run.conf['file'] }}"],
    )

with DAG("system_batch", schedule=None, default_args=THRICE, **TEST):
    TriggerFlowBatchOperator(
        task_id="trigger",
        batch="{{ dag_run.conf['batch'] }}",
        output_path="{{ dag_run.conf['output'] }}",
    )

with DAG("nightly_report", schedule=None, **TEST):
    trigger(post_execute=wait_for_go)

with DAG("system_echo", schedule=None, **TEST):
    started = trigger()
    UploadFilesOperator(
        task_id="upload",
        run_id="{{ dag_run.conf['upload_for'] }}",
        files=[{"name": "a.txt"}],
        workflow_automation_conn_id=CONN_ID,
        send_retry_timeout=0,
    )

# A lost task is not retried, so that it is seen.
with DAG("system_wait", schedule=None, default_args=ONCE, **TEST):
    trigger(wait_for_completion=True)


@task
def rows(dag_run=None) -> list[dict]:
    return [{"case": dag_run.run_id, "row": row} for row in range(dag_run.conf["rows"])]


with DAG("system_wait_mapped", schedule=None, default_args=ONCE, **TEST):
    TriggerFlowOperator.partial(
        task_id="trigger",
        workflow_automation_conn_id=CONN_ID,
        send_retry_timeout=0,
        wait_for_completion=True,
    ).expand(inputs=rows())
