"""What the crash tests run: each task starts a run whose input names the task instance."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import DAG, Asset, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator
from workflow_automation_provider.taskflow import trigger_flow_once

START = pendulum.datetime(2026, 1, 1, tz="UTC")
# Also without retries: Airflow may take the end of a task that was cleared for a failure, and retries it then.
ONCE = {"retries": 0, "retry_delay": timedelta(seconds=1)}
THRICE = {**ONCE, "retries": 3}
SILENCE = timedelta(seconds=30)
CLAIM_TIMEOUT = timedelta(seconds=2)
CONN_ID = "{{ dag_run.conf.get('conn_id', 'workflow_automation_default') }}"


def wait_in_folder(context) -> None:
    """In the first try, make the file ``here`` in the folder that the DAG run's conf names, and wait for ``go``."""
    if context["ti"].try_number == 1:
        folder = Path(context["dag_run"].conf["folder"])
        (folder / "here").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)


def wait_in_folder_after(context, result) -> None:
    wait_in_folder(context)


def trigger(**options) -> TriggerFlowOperator:
    options = {"send_retry_timeout": 0, **options}
    return TriggerFlowOperator(
        task_id="trigger", inputs={"case": "{{ run_id }}"}, workflow_automation_conn_id=CONN_ID, **options
    )


with DAG("patient", schedule=None, start_date=START, default_args=THRICE):
    trigger()

with DAG("once", schedule=None, start_date=START, default_args=ONCE):
    trigger()

with DAG("start_again", schedule=None, start_date=START, default_args=THRICE):
    trigger(on_unknown_start="start_again")

with DAG("waits_before", schedule=None, start_date=START, default_args=THRICE):
    trigger(pre_execute=wait_in_folder)

with DAG("waits_after", schedule=None, start_date=START, default_args=THRICE):
    trigger(post_execute=wait_in_folder_after)

# Time enough to do something before the next try, and another task to do it to.
with DAG(
    "beside", schedule=None, start_date=START, default_args={**THRICE, "retry_delay": timedelta(seconds=30)}
):
    trigger()

    @task
    def other() -> None:
        """Nothing to do."""

    other()

# Waits as long as the service asks, within one try.
with DAG("waits_for_the_service", schedule=None, start_date=START, default_args=THRICE):
    trigger(send_retry_timeout=60)

with DAG("waits_for_the_service_mapped", schedule=None, start_date=START, default_args=THRICE):
    TriggerFlowOperator.partial(task_id="trigger", send_retry_timeout=60).expand(
        inputs=[{"case": "{{ run_id }}"}]
    )

# For dag.test() alone: the scheduler keeps away from it.
with DAG("paused", schedule=None, start_date=START, default_args=THRICE, is_paused_upon_creation=True):
    trigger()

with DAG("two_calls", schedule=None, start_date=START, default_args=THRICE):

    @task(task_id="trigger")
    def call_twice(case: str) -> list[str | None]:
        from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

        with WorkflowAutomationHook() as hook:
            return [hook.trigger_flow({"case": case, "call": n}).run_id for n in (1, 2)]

    call_twice("{{ run_id }}")

with DAG("taskflow", schedule=None, start_date=START, default_args=THRICE):

    @task(task_id="trigger")
    def start_once(case: str) -> dict[str, str]:
        return trigger_flow_once("start", inputs={"case": case}, send_retry_timeout=0)

    start_once("{{ run_id }}")

# A file of items, and a file for their results.
with DAG("batch", schedule=None, start_date=START, default_args=THRICE):
    TriggerFlowBatchOperator(
        task_id="trigger",
        batch="{{ dag_run.conf['batch'] }}",
        output_path="{{ dag_run.conf['output'] }}",
    )

with DAG("soak", schedule=None, start_date=START, default_args=THRICE):

    @task
    def cases(dag_run=None) -> list[dict[str, Any]]:
        waiting, claiming = set(dag_run.conf["waiting"]), set(dag_run.conf["claiming"])
        return [
            {
                "inputs": {"case": f"{dag_run.run_id}/{n}"},
                "wait_for_completion": n in waiting,
                **({"on_unknown_start": "claim", "claim_timeout": CLAIM_TIMEOUT} if n in claiming else {}),
            }
            for n in range(dag_run.conf["instances"])
        ]

    # A pool, in which those that wait leave their slots to others.
    TriggerFlowOperator.partial(task_id="trigger", send_retry_timeout=1, pool="soak").expand_kwargs(cases())

with DAG("waits", schedule=None, start_date=START, default_args=ONCE):
    trigger(wait_for_completion=True)

with DAG("waits_and_lingers", schedule=None, start_date=START, default_args=ONCE):
    trigger(wait_for_completion=True, post_execute=wait_in_folder_after)

with DAG("waits_and_announces", schedule=None, start_date=START, default_args=ONCE):
    started = trigger(wait_for_completion=True)

    @task
    def announce(run: dict[str, Any]) -> str:
        return str(run["run_id"])

    announce(started.output)

with DAG("waits_patiently", schedule=None, start_date=START, default_args=THRICE):
    trigger(wait_for_completion=True)

with DAG("waits_briefly", schedule=None, start_date=START, default_args=THRICE):
    trigger(wait_for_completion=True, completion_timeout=timedelta(seconds=30))

with DAG("waits_mapped", schedule=None, start_date=START, default_args=ONCE):
    TriggerFlowOperator.partial(task_id="trigger", wait_for_completion=True).expand(
        inputs=[{"case": "{{ run_id }}", "row": row} for row in range(3)]
    )

with DAG("soak_batch", schedule=None, start_date=START, default_args=THRICE):

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

with DAG("waits_with_files", schedule=None, start_date=START, default_args=THRICE):
    trigger(wait_for_completion=True, files="{{ dag_run.conf['file'] }}")

with DAG("waits_start_again", schedule=None, start_date=START, default_args=THRICE):
    trigger(wait_for_completion=True, on_unknown_start="start_again")

# Each run claims its start.
with DAG("claims", schedule=None, start_date=START, default_args=ONCE):
    trigger(on_unknown_start="claim")

with DAG("claims_patiently", schedule=None, start_date=START, default_args=THRICE):
    trigger(on_unknown_start="claim")

with DAG("claims_briefly", schedule=None, start_date=START, default_args={**THRICE, "retries": 1}):
    trigger(on_unknown_start="claim", claim_timeout=timedelta(seconds=2))

with DAG("claims_briefly_once", schedule=None, start_date=START, default_args=ONCE):
    trigger(on_unknown_start="claim", claim_timeout=timedelta(seconds=2))

with DAG("claims_mapped", schedule=None, start_date=START, default_args=ONCE):
    TriggerFlowOperator.partial(task_id="trigger", on_unknown_start="claim").expand(
        inputs=[{"case": "{{ run_id }}", "row": row} for row in range(3)]
    )

with DAG("claims_and_waits", schedule=None, start_date=START, default_args=THRICE):
    trigger(on_unknown_start="claim", wait_for_completion=True, heartbeat_timeout=SILENCE)

with DAG("claims_with_files", schedule=None, start_date=START, default_args=ONCE):
    trigger(on_unknown_start="claim", wait_for_completion=True, files="{{ dag_run.conf['file'] }}")

with DAG("starts_failed_again", schedule=None, start_date=START, default_args={**THRICE, "retries": 1}):
    trigger(on_unknown_start="claim", wait_for_completion=True, on_run_failed="start_again")

# One DAG starts the other, by an asset.
REPORT = Asset("report")

with DAG("asset_start", schedule=None, start_date=START, default_args=THRICE):
    trigger(outlets=[REPORT])

with DAG("asset_continue", schedule=[REPORT], start_date=START, default_args=THRICE):

    @task
    def read(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        return [event.extra for event in triggering_asset_events[REPORT]]

    read()
