"""DAGs whose retries a test edits, as an author would: each reads its own from a file in Airflow's home."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator

HOME = Path(os.environ["AIRFLOW_HOME"])


def retries_of(dag_id: str) -> int:
    written = HOME / f"retries-{dag_id}"
    return int(written.read_text()) if written.exists() else 1


def trigger(dag_id: str) -> None:
    TriggerFlowOperator(
        task_id="trigger",
        inputs={"case": "{{ run_id }}"},
        send_retry_timeout=0,
        retries=retries_of(dag_id),
        retry_delay=timedelta(seconds=1),
    )


@task
def hold(dag_run=None) -> None:
    """Keep the DAG run going until a test lets it end."""
    while not Path(dag_run.conf["folder"], "go").exists():
        time.sleep(0.1)


for alone in ("edited_to_fewer", "edited_to_more"):
    with DAG(alone, schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC")):
        trigger(alone)

for beside in ("edited_beside", "beside_a_hold"):
    with DAG(beside, schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC")):
        trigger(beside)
        hold()
