"""
The same flow, started with this provider, with Airflow's HttpOperator and with requests.

Docs/comparison.md.
"""

from __future__ import annotations

import json
from datetime import timedelta

import pendulum
import requests
from airflow.providers.http.operators.http import HttpOperator
from airflow.sdk import DAG, BaseHook, task

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator

OPTIONS = {
    "start_date": pendulum.datetime(2026, 1, 1, tz="UTC"),
    "default_args": {"retries": 3, "retry_delay": timedelta(seconds=1)},
}
INPUTS = {"case": "{{ run_id }}"}

PROVIDER = {"task_id": "trigger", "workflow_automation_conn_id": "compared"}
HTTP = {
    "task_id": "trigger",
    "http_conn_id": "compared_http",  # the key is in its extra, which HttpHook sends as headers
    "endpoint": "api/trigger",
    "headers": {"Content-Type": "application/json"},
}

with DAG("compare_provider", schedule=None, **OPTIONS):
    TriggerFlowOperator(inputs=INPUTS, **PROVIDER)

with DAG("compare_claim", schedule=None, **OPTIONS):
    TriggerFlowOperator(inputs=INPUTS, on_unknown_start="claim", **PROVIDER)

with DAG("compare_http", schedule=None, **OPTIONS):
    body = json.dumps({"inputs": INPUTS})
    HttpOperator(data=body, response_filter=lambda response: response.json(), **HTTP)


class FlowHook(BaseHook):
    def __init__(self):
        super().__init__()
        connection = self.get_connection("compared")
        self.url = f"{connection.host}/trigger"
        self.session = requests.Session()
        self.session.headers["X-API-Key"] = connection.password

    def trigger(self, inputs):
        response = self.session.post(self.url, json={"inputs": inputs}, timeout=60)
        response.raise_for_status()
        return response.json()


with DAG("compare_by_hand", schedule=None, **OPTIONS):

    @task(task_id="trigger")
    def start(case):
        return FlowHook().trigger({"case": case})

    start("{{ run_id }}")


@task
def items(dag_run=None):
    """Return the items of a batch."""
    return [{"case": dag_run.run_id, "item": number} for number in range(dag_run.conf["items"])]


with DAG("compare_provider_batch", schedule=None, **OPTIONS):
    TriggerFlowBatchOperator(batch=items(), **PROVIDER)

with DAG("compare_http_batch", schedule=None, **OPTIONS):

    @task
    def bodies(rows):
        return [json.dumps({"inputs": row}) for row in rows]

    HttpOperator.partial(**HTTP).expand(data=bodies(items()))

with DAG("compare_by_hand_batch", schedule=None, **OPTIONS):

    @task(task_id="trigger")
    def start_all(rows):
        hook = FlowHook()
        return [hook.trigger(row)["run_id"] for row in rows]

    start_all(items())
