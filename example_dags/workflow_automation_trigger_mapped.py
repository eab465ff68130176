"""Start a run for each item of a list that is known only when the DAG runs."""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator


@task
def list_customers() -> list[dict[str, str]]:
    return [{"customer": name} for name in ("Ada", "Grace", "Edsger")]


@task
def count(runs: list[dict[str, str]]) -> int:
    started = list(runs)
    print(f"{len(started)} runs: {', '.join(run['run_id'] for run in started)}")
    return len(started)


with DAG(
    dag_id="workflow_automation_trigger_mapped",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_operator_trigger_flow_mapped]
    trigger = TriggerFlowOperator.partial(
        task_id="trigger",
        retries=3,
        # The name of each mapped task instance in the UI.
        map_index_template="{{ task.inputs['customer'] }}",
    ).expand(inputs=list_customers())
    # [END howto_operator_trigger_flow_mapped]
    count(trigger.output)
