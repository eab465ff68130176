"""
Start a run when a task fails, for example of a flow that opens a ticket.

The task fails, unless the DAG run's configuration has more rows: ``{"rows": 3}``. The link to the
run is in the task's log.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.notifications.flows import FlowNotifier

# [START howto_notifier_flow]
open_ticket = FlowNotifier(
    {
        "message": "Task {{ ti.task_id }} of {{ dag.dag_id }} failed.",
        # Airflow may call a callback twice: this tells the flow which event it is.
        "event": "{{ dag.dag_id }}/{{ run_id }}/{{ ti.task_id }}/{{ ti.map_index }}/{{ ti.try_number }}",
    },
)
# [END howto_notifier_flow]


# [START howto_notifier_flow_callback]
@task(on_failure_callback=open_ticket)
def check_rows(params: dict) -> None:
    if params["rows"] < 1:
        raise ValueError("There are no rows")


# [END howto_notifier_flow_callback]


with DAG(
    dag_id="workflow_automation_notifier",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"rows": 0},
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    check_rows()
