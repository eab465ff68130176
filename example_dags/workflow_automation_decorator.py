"""
Start a run for each customer whose name a function turns into inputs.

With the decorator ``@task.trigger_flow``.

All that holds for ``TriggerFlowOperator`` holds for these tasks: each starts one run, also if it is
retried, and has the button Open run.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, task


@task
def list_customers() -> list[str]:
    return ["Ada", "Grace", "Edsger"]


# [START howto_decorator_trigger_flow]
@task.trigger_flow(retries=3)
def trigger(customer: str, language: str, dag=None) -> dict:
    # Called only if a run is to be started. What it returns is sent as it is, without rendering
    # templates.
    return {
        "customer": customer,
        "greeting": f"Dear {customer}",
        "language": language,
        "dag": dag.dag_id,
    }


# [END howto_decorator_trigger_flow]


@task
def announce(run: dict) -> str:
    message = f"Run {run['run_id']}: {run.get('run_link', 'without a link')}"
    print(message)
    return message


with DAG(
    dag_id="workflow_automation_decorator",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    # [START howto_decorator_trigger_flow_call]
    announce(trigger("Barbara", "en"))
    runs = (
        trigger.override(task_id="trigger_all")
        .partial(language="en")
        .expand(customer=list_customers())
    )
    # [END howto_decorator_trigger_flow_call]
