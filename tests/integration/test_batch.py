"""Batches in real Airflow: from XComs, templates and files, mapped, and what they return."""

from __future__ import annotations

import json

import pytest

PREAMBLE = """\
from __future__ import annotations
import json
from pathlib import Path
import pendulum
from airflow.sdk import DAG, ObjectStoragePath, task
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator

START = pendulum.datetime(2026, 1, 1, tz="UTC")
"""


@pytest.fixture
def run(run_dag, workflow_automation_connection):
    return lambda source, **options: run_dag(source, preamble=PREAMBLE, **options)


def customers(service):
    return sorted(run.inputs["customer"] for run in service.runs)


def test_a_list_with_templates(run, workflow_automation_service):
    result = run("""
        with DAG("batch_list", schedule=None, start_date=START, params={"name": "Ada"}):
            TriggerFlowBatchOperator(
                task_id="batch", batch=[{"customer": "{{ params.name }}"}, {"customer": "Grace"}]
            )
    """)
    assert result.state == "success"
    runs = {run.inputs["customer"]: run.run_id for run in workflow_automation_service.runs}
    items = result.xcom("batch")
    assert [(item["index"], item["status"], item["run_id"]) for item in items] == [
        (0, "started", runs["Ada"]),
        (1, "started", runs["Grace"]),
    ]
    assert result.xcom("batch", key="progress") == {
        "total": 2,
        "started": 2,
        "rejected": 0,
        "unknown": 0,
        "remaining": 0,
    }


def test_an_xcom_whose_runs_get_files(run, workflow_automation_service):
    result = run("""
        with DAG("batch_xcom", schedule=None, start_date=START):

            @task
            def rows():
                return [{"customer": name} for name in ("Ada", "Grace", "Edsger")]

            batch = TriggerFlowBatchOperator(task_id="batch", batch=rows(), flow_id="demo-flow")
            UploadFilesOperator.partial(task_id="upload", files=[{"name": "terms"}]).expand(run_id=batch.output)
    """)
    assert result.state == "success"
    assert customers(workflow_automation_service) == ["Ada", "Edsger", "Grace"]
    assert sorted(upload.run_id for upload in workflow_automation_service.uploads) == sorted(
        run.run_id for run in workflow_automation_service.runs
    )


def test_the_results_of_a_mapped_task(run, workflow_automation_service):
    result = run("""
        with DAG("batch_mapped_xcom", schedule=None, start_date=START):

            @task
            def row(name):
                return {"customer": name}

            TriggerFlowBatchOperator(task_id="batch", batch=row.expand(name=["Ada", "Grace", "Edsger"]))
    """)
    assert result.state == "success"
    assert len(result.xcom("batch")) == 3
    assert customers(workflow_automation_service) == ["Ada", "Edsger", "Grace"]


def test_mapped_over_batches(run, workflow_automation_service):
    result = run("""
        with DAG("batch_mapped", schedule=None, start_date=START):
            TriggerFlowBatchOperator.partial(task_id="batch").expand(
                batch=[[{"customer": "Ada"}, {"customer": "Grace"}], [{"customer": "Edsger"}]]
            )
    """)
    assert result.state == "success"
    assert [len(result.xcom("batch", map_index=index)) for index in range(2)] == [2, 1]
    assert customers(workflow_automation_service) == ["Ada", "Edsger", "Grace"]


@pytest.mark.parametrize("path", ["Path('{path}')", "ObjectStoragePath('file://{path}')"])
def test_a_file(run, workflow_automation_service, tmp_path, path):
    rows, output = tmp_path / "rows.jsonl", tmp_path / "output.jsonl"
    rows.write_text('{"customer": "Ada"}\n\n{"customer": "Grace"}\n')
    workflow_automation_service.faults.add("reject", inputs={"customer": "Grace"})
    result = run(f"""
        with DAG("batch_file", schedule=None, start_date=START):
            TriggerFlowBatchOperator(
                task_id="batch", batch={path.format(path=rows)}, on_rejected="skip", output_path="{output}"
            )
    """)
    assert result.state == "success"
    counts = {"total": 2, "started": 1, "rejected": 1, "unknown": 0, "remaining": 0}
    assert result.xcom("batch") == {"path": str(output), **counts}
    (started, rejected) = map(json.loads, output.read_text().splitlines())
    assert started["run_id"] == workflow_automation_service.runs[0].run_id
    assert (rejected["index"], rejected["status"]) == (1, "rejected")
    assert "400" in rejected["why"]
