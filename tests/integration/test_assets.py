"""What asset events tell of runs, uploads and batches, and what a DAG that they start reads."""

from __future__ import annotations

import pytest

PREAMBLE = """\
from __future__ import annotations
import json
import pendulum
from airflow.sdk import DAG, Asset, task
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

START = pendulum.datetime(2026, 1, 1, tz="UTC")
"""


@pytest.fixture
def run(run_dag, workflow_automation_connection):
    return lambda source, **options: run_dag(source, preamble=PREAMBLE, **options)


def told(service, *, index=0):
    run = service.runs[index]
    return {"run_id": run.run_id, "run_link": f"{service.url}/runs/{run.run_id}", "flow_id": run.flow_id}


def test_each_mapped_task_tells_of_its_run(run, workflow_automation_service):
    result = run("""
        with DAG("mapped_events", schedule=None, start_date=START):
            TriggerFlowOperator.partial(task_id="trigger", outlets=[Asset("file:///report")]).expand(
                inputs=[{"n": 0}, {"n": 1}, {"n": 2}]
            )
    """)
    extras = [extra for _, extra in result.asset_events()]
    assert len(extras) == 3
    runs = range(len(workflow_automation_service.runs))
    assert all(told(workflow_automation_service, index=index) in extras for index in runs)


def test_an_upload(run, workflow_automation_service, tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("1234")
    result = run(f"""
        with DAG("upload_event", schedule=None, start_date=START):
            trigger = TriggerFlowOperator(task_id="trigger", inputs={{}})
            UploadFilesOperator(
                task_id="upload",
                run_id=trigger.output,
                files="{tmp_path}/*.csv",
                outlets=[Asset("file:///uploaded")],
            )
    """)
    expected = {**told(workflow_automation_service), "files": 2, "bytes": 8}
    assert result.asset_events() == [("file:///uploaded", expected)]


def test_a_batch_tells_its_counts(run, workflow_automation_service, tmp_path):
    workflow_automation_service.faults.add("reject", inputs={"n": 1})
    path = str(tmp_path / "runs.jsonl")
    result = run(f"""
        with DAG("batch_event", schedule=None, start_date=START):
            TriggerFlowBatchOperator(
                task_id="batch",
                batch=[{{"n": 0}}, {{"n": 1}}, {{"n": 2}}],
                output_path={path!r},
                on_rejected="skip",
                outlets=[Asset("file:///batch")],
            )
    """)
    counts = {"flow_id": "demo-flow", "total": 3, "started": 2, "rejected": 1}
    assert result.asset_events() == [("file:///batch", {**counts, "path": path})]


@pytest.mark.since_3_3  # on Airflow 3.1, dag.test() fails where an outlet is a reference
def test_a_reference_to_an_asset(run, workflow_automation_service):
    result = run("""
        with DAG("asset_reference", schedule=[Asset("file:///known")], start_date=START):
            TriggerFlowOperator(task_id="known", inputs={"n": 0}, outlets=[Asset("file:///known")])
    """)
    assert result.state == "success"
    result = run("""
        with DAG("asset_reference", schedule=[Asset("file:///known")], start_date=START):
            TriggerFlowOperator(task_id="trigger", inputs={"n": 1}, outlets=[Asset.ref(uri="file:///known")])
    """)
    assert result.asset_events() == [("file:///known", told(workflow_automation_service, index=1))]


@pytest.mark.since_3_3
def test_the_result_of_a_run(run, workflow_automation_service, workflow_automation_callback_base_url):
    workflow_automation_service.callbacks.add(result={"rows": 3}, delay=0.2)
    result = run("""
        with DAG("result_event", schedule=None, start_date=START):
            TriggerFlowOperator(
                task_id="trigger", inputs={}, wait_for_completion=True, outlets=[Asset("file:///report")]
            )
    """)
    expected = {**told(workflow_automation_service), "result": {"rows": 3}}
    assert result.asset_events() == [("file:///report", expected)]
