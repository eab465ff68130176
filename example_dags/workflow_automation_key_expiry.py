"""
Warn of API keys that expire soon: each morning, the check of such a connection fails.

The date is the connection's field Key expires on. ``CONNECTIONS`` lists the connections to check.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pendulum
from airflow.sdk import DAG, task

from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

CONNECTIONS = ["workflow_automation_default"]


# [START howto_key_expiry]
@task(map_index_template="{{ task.op_kwargs['conn_id'] }}")
def check_key(conn_id: str, params: dict) -> str:
    expires_on = WorkflowAutomationHook(conn_id).extra.key_expires_on
    if expires_on is None:
        return f"{conn_id} does not say when its API key expires"
    days = (expires_on - datetime.now(UTC).date()).days
    message = f"The API key of {conn_id} expires on {expires_on}, in {days} days"
    if days < params["days"]:
        raise ValueError(message)
    return message


# [END howto_key_expiry]

with DAG(
    dag_id="workflow_automation_key_expiry",
    schedule="0 7 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    params={"days": 30},
    doc_md=__doc__,
    tags=["example", "workflow automation"],
):
    check_key.expand(conn_id=CONNECTIONS)
