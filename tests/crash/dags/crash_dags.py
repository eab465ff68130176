"""What the crash tests run: each task starts a run whose input names the task instance."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator
from workflow_automation_provider.taskflow import trigger_flow_once


def dag(dag_id: str, retries: int = 3, retry_delay: timedelta = timedelta(seconds=1)) -> DAG:
    # The delay also without retries: Airflow may take the end of a task that was cleared for a failure, and retries it.
    return DAG(
        dag_id,
        schedule=None,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        default_args={"retries": retries, "retry_delay": retry_delay},
    )


def trigger(**options) -> TriggerFlowOperator:
    options = {"send_retry_timeout": 0, **options}
    return TriggerFlowOperator(task_id="trigger", inputs={"case": "{{ run_id }}"}, **options)


def wait_in_folder(context, result=None) -> None:
    """In the first try, make the file ``here`` in the folder that the DAG run's conf names, and wait for ``go``."""
    if context["ti"].try_number == 1:
        folder = Path(context["dag_run"].conf["folder"])
        (folder / "here").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)


with dag("patient"):
    trigger()

with dag("once", retries=0):
    trigger()

with dag("slowly_retried", retry_delay=timedelta(minutes=10)):
    trigger()

with dag("waits_before"):
    trigger(pre_execute=wait_in_folder)

# Waits as long as the service asks, within one try.
with dag("waits_for_the_service_mapped"):
    TriggerFlowOperator.partial(task_id="trigger", send_retry_timeout=300).expand(
        inputs=[{"case": "{{ run_id }}"}]
    )

with dag("taskflow"):

    @task(task_id="trigger")
    def start_once(case: str) -> dict[str, str]:
        return trigger_flow_once("start", inputs={"case": case}, send_retry_timeout=0)

    start_once("{{ run_id }}")

with dag("waits"):
    trigger(wait_for_completion=True)

with dag("waits_and_lingers"):
    trigger(wait_for_completion=True, post_execute=wait_in_folder)

with dag("waits_and_announces"):
    started = trigger(wait_for_completion=True)

    @task
    def announce(run: dict[str, Any]) -> str:
        return str(run["run_id"])

    announce(started.output)

# Each run claims its start.
with dag("claims", retries=0):
    trigger(on_unknown_start="claim")

with dag("claims_patiently"):
    trigger(on_unknown_start="claim")

with dag("soak"):

    @task
    def cases(dag_run=None) -> list[dict[str, Any]]:
        waiting, claiming = set(dag_run.conf["waiting"]), set(dag_run.conf["claiming"])
        claim = {"on_unknown_start": "claim", "claim_timeout": timedelta(seconds=2)}
        return [
            {
                "inputs": {"case": f"{dag_run.run_id}/{n}"},
                "wait_for_completion": n in waiting,
                **(claim if n in claiming else {}),
            }
            for n in range(dag_run.conf["instances"])
        ]

    # A pool, in which those that wait leave their slots to others.
    TriggerFlowOperator.partial(task_id="trigger", send_retry_timeout=1, pool="soak").expand_kwargs(cases())

with dag("soak_batch"):

    @task
    def batches(dag_run=None) -> list[list[dict[str, str]]]:
        batches, items = dag_run.conf["batches"], dag_run.conf["items"]
        return [[{"case": f"{dag_run.run_id}/{b}/{n}"} for n in range(items)] for b in range(batches)]

    TriggerFlowBatchOperator.partial(
        task_id="trigger",
        max_concurrency=2,
        send_retry_timeout=1,
        max_active_tis_per_dagrun=4,
    ).expand(batch=batches())
