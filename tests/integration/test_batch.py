"""Batches in real Airflow: from XComs, templates and files, mapped, and what they return."""

from __future__ import annotations


def test_batches_of_each_kind(run_dag, service, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"customer": "Barbara"}\n\n{"customer": "Edsger"}\n')
    result = run_dag(f"""
        Batch = TriggerFlowBatchOperator

        @task
        def row(name):
            return {{"customer": name}}

        with DAG("batches", schedule=None, params={{"name": "Ada"}}):
            Batch(task_id="templates", batch=[{{"customer": "{{{{ params.name }}}}"}}, {{"customer": "Grace"}}])
            Batch(task_id="path", batch=Path({str(path)!r}))
            Batch(task_id="storage", batch=ObjectStoragePath("file://{path}"))
            Batch.partial(task_id="mapped").expand(batch=[[{{"customer": "A"}}, {{"customer": "B"}}], [{{"customer": "C"}}]])
            rows = Batch(task_id="rows", batch=row.expand(name=["D", "E"]), flow_id="demo-flow")
            UploadFilesOperator.partial(task_id="upload", files=[{{"name": "terms"}}]).expand(run_id=rows.output)
    """)
    customers = {run.run_id: run.inputs["customer"] for run in service.runs}

    def started(task_id, map_index=-1):
        items = result.xcom(task_id, map_index=map_index)
        assert [(item["index"], item["status"]) for item in items] == [
            (number, "started") for number in range(len(items))
        ]
        return [customers[item["run_id"]] for item in items]

    assert started("templates") == ["Ada", "Grace"]
    assert started("path") == started("storage") == ["Barbara", "Edsger"]
    assert [started("mapped", index) for index in range(2)] == [["A", "B"], ["C"]]
    assert started("rows") == ["D", "E"]
    assert sorted(customers[upload.run_id] for upload in service.uploads) == ["D", "E"]
    assert len(service.runs) == 11
    counts = {
        "total": 2,
        "started": 2,
        "rejected": 0,
        "unknown": 0,
        "unidentified": 0,
        "not_started": 0,
    }
    assert result.xcom("templates", key="progress") == counts
