"""
What a type checker knows of ``@task.trigger_flow`` and of the operators' arguments.

Checked by mypy in ``make lint``, never run.

An ignored error that mypy no longer sees is an error itself.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import assert_type

from airflow.sdk import XComArg, literal, task

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator


@trigger_flow_task
def bare(customer: str, number: int = 1) -> dict[str, object]:
    return {"customer": customer, "number": number}


@trigger_flow_task(
    flow_id="flow", retries=3, wait_for_completion=True, completion_timeout=timedelta(days=1)
)
def with_arguments(customer: str) -> dict[str, str]:
    return {"customer": customer}


assert_type(bare("Ada", number=2), XComArg)
assert_type(with_arguments.function("Ada"), dict[str, str])
assert_type(bare.partial(number=2).expand(customer=["Ada"]), XComArg)
assert_type(bare.override(task_id="other")("Ada"), XComArg)
assert_type(bare.function("Ada"), dict[str, object])

bare(5)  # type: ignore[arg-type]
bare()  # type: ignore[call-arg, misc]
trigger_flow_task(on_unknown_start="explode")  # type: ignore[call-overload]
trigger_flow_task(inputs={})  # type: ignore[call-overload]


@trigger_flow_task  # type: ignore[type-var]
def text() -> str:
    return "inputs"


# By its name, Airflow's own types know that it is a decorator of tasks.
@task.trigger_flow(flow_id="flow")
def by_name(customer: str) -> dict[str, str]:
    return {"customer": customer}


assert_type(by_name("Ada"), XComArg)
assert_type(by_name.function("Ada"), dict[str, str])

TriggerFlowOperator(task_id="a", completion_timeout=3600, send_retry_timeout=timedelta(minutes=1))

read: dict[str, str] = json.loads('{"filename": "name", "body": "base64"}')
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format=read)
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format={"body": "base64"})
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format="data_url")
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format="b64")  # type: ignore[arg-type]
UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", file_format={"size": 1})  # type: ignore[dict-item]


# What an earlier task returns, in place of each templated argument or within it.
@task
def some() -> list[dict[str, str]]:
    return []


first = TriggerFlowOperator(
    task_id="first",
    inputs=some(),
    flow_id=some(),
    workflow_automation_conn_id=some(),
    files=["a.csv", some(), literal("{{.csv")],
)
TriggerFlowOperator(task_id="second", inputs={"a": first.output["result"]["rows"]}, files=some())
UploadFilesOperator(
    task_id="upload",
    run_id=first.output,
    files=first.output["result"]["files"],
    flow_id=first.output["flow_id"],
    workflow_automation_conn_id=some(),
)
UploadFilesOperator(task_id="upload_more", run_id=some(), files=[some(), {"a": some()}])
TriggerFlowBatchOperator(
    task_id="batch",
    batch=some(),
    flow_id=some(),
    workflow_automation_conn_id=some(),
    output_path=some(),
)
TriggerFlowBatchOperator(task_id="more", batch=[{"a": some()}, some(), literal({"a": "{{"})])
trigger_flow_task(flow_id=some(), workflow_automation_conn_id=some(), files=[some()])
UploadFilesOperator(task_id="wrong", run_id=1, files="a.csv")  # type: ignore[arg-type]
TriggerFlowBatchOperator(task_id="wrong", batch={"a": 1})  # type: ignore[arg-type]
