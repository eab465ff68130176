"""What OpenLineage's provider tells of the operators, in real Airflow, to a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from workflow_automation_provider.testing import LocalService

pytest.importorskip("airflow.providers.openlineage")

# In a process of its own: Airflow reads the configuration once.
PREAMBLE = """\
from __future__ import annotations
import pendulum
from airflow.sdk import DAG
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

START = pendulum.datetime(2026, 1, 1, tz="UTC")
"""


Events = Callable[[str], tuple[dict[Any, Any], str]]


@pytest.fixture
def events(airflow_home: Path, workflow_automation_connection: object, tmp_path: Path) -> Events:
    """Run a DAG that fails; the events of its tasks, by task and kind, and the text of all events."""

    def run(source: str) -> tuple[dict[Any, Any], str]:
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
            done = subprocess.run(
                [sys.executable, str(path)], env=env, capture_output=True, text=True, check=False
            )
        finally:
            path.unlink()
        assert emitted.exists(), done.stdout + done.stderr
        text = emitted.read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return {(event["job"]["name"].partition(".")[2], event["eventType"]): event for event in found}, text

    return run


def names(datasets: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(dataset["namespace"], dataset["name"]) for dataset in datasets]


def of_flow(service: LocalService) -> tuple[str, str]:
    host, _, path = service.base_url.partition("://")[2].partition("/")
    return f"workflow-automation://{host}", f"{path}/flows/demo-flow"


def test_what_is_told_of_each_task(
    events: Events, workflow_automation_service: LocalService, tmp_path: Path
) -> None:
    service = workflow_automation_service
    for name in ("a.csv", "b c.csv"):
        (tmp_path / name).write_text("1234")
    (tmp_path / "items.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    service.faults.add("echo_key", inputs={"n": "rejected"})
    found, text = events(f"""
        with DAG("lineage", schedule=None, start_date=START) as dag:
            trigger = TriggerFlowOperator(task_id="trigger", inputs={{"n": "operator"}})
            upload = UploadFilesOperator(task_id="upload", run_id=trigger.output, files="{tmp_path}/*.csv")
            batch = TriggerFlowBatchOperator(
                task_id="batch", batch="{tmp_path}/items.jsonl", output_path="{tmp_path}/runs.jsonl"
            )
            upload >> batch >> TriggerFlowOperator(task_id="rejected", inputs={{"n": "rejected"}})
    """)
    # The collector is the same for all tasks of this process.
    files = [f"{tmp_path}/{name}" for name in ("a.csv", "b c.csv", "items.jsonl")]
    for task, read in (("trigger", []), ("upload", files[:2]), ("batch", files)):
        event = found[task, "COMPLETE"]
        assert names(event["inputs"]) == [("file", file) for file in read]
        assert {*names(event["outputs"])} >= {of_flow(service)}
    assert ("file", f"{tmp_path}/runs.jsonl") in names(event["outputs"])
    assert ("rejected", "FAIL") in found
    assert service.keys[0].value not in text
