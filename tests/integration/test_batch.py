"""Batches in real Airflow: from XComs, templates and files, mapped, and what they return."""

from __future__ import annotations

import pytest


@pytest.fixture
def run(run_dag, service):
    def run(dag_id, tasks):
        result = run_dag(f"""
            from pathlib import Path
            from airflow.sdk import ObjectStoragePath
            from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator as Batch

            with DAG({dag_id!r}, schedule=None, start_date=START, params={{"name": "Ada"}}):
                {tasks}
        """)
        assert result.state == "success"
        return result

    return run


def customers(service):
    return sorted(run.inputs["customer"] for run in service.runs)


def test_a_list_with_templates(run, service):
    result = run(
        "batch_list",
        """Batch(task_id="batch", batch=[{"customer": "{{ params.name }}"}, {"customer": "Grace"}])""",
    )
    runs = {run.inputs["customer"]: run.run_id for run in service.runs}
    assert [(item["index"], item["status"], item["run_id"]) for item in result.xcom("batch")] == [
        (0, "started", runs["Ada"]),
        (1, "started", runs["Grace"]),
    ]
    counts = {"total": 2, "started": 2, "rejected": 0, "unknown": 0, "remaining": 0}
    assert result.xcom("batch", key="progress") == counts


def test_the_results_of_a_mapped_task_and_files_for_each_run(run, service):
    run(
        "batch_mapped_xcom",
        """
                @task
                def row(name):
                    return {"customer": name}

                batch = Batch(task_id="batch", batch=row.expand(name=["Ada", "Grace"]), flow_id="demo-flow")
                UploadFilesOperator.partial(task_id="upload", files=[{"name": "terms"}]).expand(run_id=batch.output)
        """,
    )
    assert customers(service) == ["Ada", "Grace"]
    assert sorted(upload.run_id for upload in service.uploads) == sorted(run.run_id for run in service.runs)


def test_mapped_over_batches_of_each_kind(run, service, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"customer": "Barbara"}\n\n{"customer": "Edsger"}\n')
    result = run(
        "batch_mapped",
        f"""
                files = [Path({str(path)!r}), ObjectStoragePath("file://{path}")]
                Batch(task_id="path", batch=files[0])
                Batch(task_id="storage", batch=files[1])
                Batch.partial(task_id="batch").expand(
                    batch=[[{{"customer": "Ada"}}, {{"customer": "Grace"}}], [{{"customer": "Alan"}}]]
                )
        """,
    )
    assert [len(result.xcom("batch", map_index=index)) for index in range(2)] == [2, 1]
    assert customers(service) == ["Ada", "Alan", "Barbara", "Barbara", "Edsger", "Edsger", "Grace"]
