"""What OpenLineage's provider tells of the operators, in real Airflow, to a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("airflow.providers.openlineage")

# In a process of its own: Airflow reads the configuration once.
PREAMBLE = """\
from __future__ import annotations
import pendulum
from airflow.providers.common.compat.sdk import DAG, task
from workflow_automation_provider.taskflow import trigger_flow_once
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

START = pendulum.datetime(2026, 1, 1, tz="UTC")
"""


@pytest.fixture
def events(airflow_home, workflow_automation_service, workflow_automation_connection, tmp_path):
    """Run a DAG that fails; the events of its tasks, by task and kind, and the text of all events."""

    def run(source):
        path = airflow_home / "dags" / "lineage.py"
        path.write_text(
            f"{PREAMBLE}\n{textwrap.dedent(source)}\nif __name__ == '__main__':\n    dag.test()\n"
        )
        emitted = tmp_path / "events.jsonl"
        transport = {"type": "file", "log_file_path": str(emitted), "append": True}
        env = {
            **os.environ,
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__DISABLED": "false",
        }
        try:
            done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True)
        finally:
            path.unlink()
        assert emitted.exists(), done.stdout + done.stderr
        text = emitted.read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return {(event["job"]["name"].partition(".")[2], event["eventType"]): event for event in found}, text

    return run


def names(datasets):
    return [(dataset["namespace"], dataset["name"]) for dataset in datasets]


def of_flow(service, run_id=None):
    host, _, path = service.base_url.partition("://")[2].partition("/")
    run = f"/runs/{run_id}" if run_id else ""
    return f"workflow-automation://{host}", f"{path}/flows/demo-flow{run}"


def test_what_is_told_of_each_task(events, workflow_automation_service, tmp_path):
    service = workflow_automation_service
    for name in ("a.csv", "b c.csv"):
        (tmp_path / name).write_text("1234")
    (tmp_path / "items.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    service.faults.add("echo_key", inputs={"n": "rejected"})
    found, text = events(f"""
        @task
        def once():
            return trigger_flow_once("report", inputs={{"n": "once"}})

        @task
        def by_hook(run):
            with WorkflowAutomationHook() as hook:
                hook.trigger_flow({{"n": "hook"}})
                hook.upload_files(run["run_id"], ["{tmp_path}/a.csv"])

        with DAG("lineage", schedule=None, start_date=START) as dag:
            trigger = TriggerFlowOperator(task_id="trigger", inputs={{"n": "operator"}})
            UploadFilesOperator(task_id="upload", run_id=trigger.output, files="{tmp_path}/*.csv")
            by_hook(once())
            TriggerFlowBatchOperator(
                task_id="batch", batch="{tmp_path}/items.jsonl", output_path="{tmp_path}/runs.jsonl"
            )
            TriggerFlowOperator(task_id="rejected", inputs={{"n": "rejected"}})
    """)
    runs = {run.inputs["n"]: of_flow(service, run.run_id) for run in service.runs}

    event = found["trigger", "COMPLETE"]
    assert (names(event["inputs"]), names(event["outputs"])) == ([], [runs["operator"]])
    run_id = runs["operator"][1].rpartition("/")[2]
    facets = event["outputs"][0]["facets"]
    assert facets["documentation"]["description"] == f"{service.url}/runs/{run_id}"

    event = found["upload", "COMPLETE"]
    assert names(event["inputs"]) == [("file", f"{tmp_path}/a.csv"), ("file", f"{tmp_path}/b c.csv")]
    assert names(event["outputs"]) == [runs["operator"]]
    statistics = event["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (statistics["fileCount"], statistics["size"]) == (2, 8)

    event = found["batch", "COMPLETE"]
    assert names(event["inputs"]) == [("file", f"{tmp_path}/items.jsonl")]
    assert names(event["outputs"]) == [of_flow(service), ("file", f"{tmp_path}/runs.jsonl")]

    # By Airflow's hook lineage collector, which is the same for all tasks of this process.
    assert runs["once"] in names(found["once", "COMPLETE"]["outputs"])
    event = found["by_hook", "COMPLETE"]
    assert ("file", f"{tmp_path}/a.csv") in names(event["inputs"])
    assert {runs["hook"], runs["once"]} <= {*names(event["outputs"])}

    assert ("rejected", "FAIL") in found
    assert "rejected" not in runs
    assert service.keys[0].value not in text
