"""What the crash tests run: each task starts a run whose input names the task instance."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator
from workflow_automation_provider.triggers import mailbox

# The tests end no flow before the scheduler has seen its task leave the worker.
mailbox.INTERVAL = 1.0


def dag(dag_id: str, retries: int = 3) -> DAG:
    # The delay also without retries: Airflow may take the end of a task that was cleared for a
    # failure, and retries it.
    return DAG(
        dag_id,
        schedule=None,
        start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
        default_args={"retries": retries, "retry_delay": timedelta(seconds=1)},
    )


def trigger(**options) -> TriggerFlowOperator:
    return TriggerFlowOperator(
        task_id="trigger", inputs={"case": "{{ run_id }}"}, send_retry_timeout=0, **options
    )


with dag("patient"):
    trigger()

with dag("once", retries=0):
    trigger()

# Waits as long as the service asks, within one try.
with dag("waits_for_the_service_mapped"):
    TriggerFlowOperator.partial(task_id="trigger", send_retry_timeout=300).expand(
        inputs=[{"case": "{{ run_id }}"}]
    )

with dag("waits"):
    started = trigger(wait_for_completion=True)

    @task
    def announce(run: dict[str, Any]) -> str:
        return str(run["run_id"])

    announce(started.output)

# Waits for an end that its run writes to a mailbox.
for store in ("file", "s3", "abfs", "gs"):
    with dag(f"mailboxes_{store}"):
        trigger(wait_for_completion=True, workflow_automation_conn_id=f"mailboxes_{store}")

# Waits for the ends of all its runs, which they write to S3.
for dag_id, timeout in (
    ("batch_waits", timedelta(hours=1)),
    ("batch_waits_shortly", timedelta(minutes=2)),
):
    with dag(dag_id):
        TriggerFlowBatchOperator(
            task_id="trigger",
            batch=[{"case": "{{ run_id }}", "n": n} for n in range(20)],
            output_path=f"{os.environ['AIRFLOW_HOME']}/{{{{ run_id }}}}.jsonl",
            workflow_automation_conn_id="mailboxes_s3",
            max_concurrency=2,
            send_retry_timeout=0,
            wait_for_completion=True,
            completion_timeout=timeout,
        )

with dag("after_another"):
    EmptyOperator(task_id="before") >> trigger()

# Each run claims its start.
with dag("claims"):
    trigger(on_unknown_start="claim")

with dag("soak"):

    @task
    def cases(dag_run=None) -> list[dict[str, Any]]:
        waiting, claiming = set(dag_run.conf["waiting"]), set(dag_run.conf["claiming"])
        with_mailbox = set(dag_run.conf["with_mailbox"])
        claim = {"on_unknown_start": "claim", "claim_timeout": timedelta(seconds=2)}
        mailbox = {"workflow_automation_conn_id": "mailboxes_file"}
        return [
            {
                "inputs": {"case": f"{dag_run.run_id}/{n}"},
                "wait_for_completion": n in waiting,
                **(claim if n in claiming else {}),
                **(mailbox if n in with_mailbox else {}),
            }
            for n in range(dag_run.conf["instances"])
        ]

    # A pool, in which those that wait leave their slots to others.
    TriggerFlowOperator.partial(task_id="trigger", send_retry_timeout=1, pool="soak").expand_kwargs(
        cases()
    )

# Of those that wait, each item is settled by the end of its run, or at the deadline.
for dag_id, options in (
    ("soak_batch", {}),
    (
        "soak_batch_waits",
        {
            "output_path": f"{os.environ['AIRFLOW_HOME']}/{{{{ run_id }}}}-{{{{ ti.map_index }}}}.jsonl",
            "workflow_automation_conn_id": "mailboxes_file",
            "wait_for_completion": True,
            "completion_timeout": timedelta(seconds=90),
        },
    ),
):
    with dag(dag_id):

        @task
        def batches(dag_run=None, dag=None) -> list[list[dict[str, str]]]:
            batches, items = dag_run.conf["batches"], dag_run.conf["items"]
            names = [f"{dag.dag_id}/{dag_run.run_id}/{b}" for b in range(batches)]
            return [
                [{"batch": name, "case": f"{name}/{n}"} for n in range(items)] for name in names
            ]

        TriggerFlowBatchOperator.partial(
            task_id="trigger",
            max_concurrency=2,
            send_retry_timeout=1,
            max_active_tis_per_dagrun=4,
            **options,
        ).expand(batch=batches())
