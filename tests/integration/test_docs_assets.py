"""What docs/assets.md shows works, and its table is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from code_blocks import read_code_blocks
from workflow_automation_provider.assets import create_asset
from workflow_automation_provider.execution.asset_events import MAX_LINK
from workflow_automation_provider.hooks.lineage import MAX_INPUTS

PAGE = Path(__file__).parents[2] / "docs" / "assets.md"


def test_the_dags_of_the_page(run_dag, workflow_automation_service, workflow_automation_connection, capfd):
    (block,) = read_code_blocks(PAGE, "python")
    started = run_dag(block.text, preamble="", dag_id="start_report")
    continued = run_dag(block.text, preamble="", dag_id="announce_report", cause=started)

    assert (started.state, continued.state) == ("success", "success")
    (run,) = workflow_automation_service.runs
    assert f"{run.run_id} {workflow_automation_service.url}/runs/{run.run_id}" in capfd.readouterr().out


def test_the_keys_of_the_page(run_dag, workflow_automation_service, workflow_automation_connection, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    result = run_dag(
        f"""
        with DAG("keys_of_events", schedule=None, start_date=START):
            trigger = TriggerFlowOperator(task_id="trigger", inputs={{}}, outlets=[Asset("file:///trigger")])
            uploaded = UploadFilesOperator(
                task_id="upload",
                run_id=trigger.output,
                files="{tmp_path}/a.txt",
                outlets=[Asset("file:///upload")],
            )
            uploaded >> TriggerFlowBatchOperator(
                task_id="batch",
                batch=[{{}}],
                output_path="{tmp_path}/runs.jsonl",
                outlets=[Asset("file:///batch")],
            )
        """,
        preamble="""\
import pendulum
from airflow.sdk import DAG, Asset
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

START = pendulum.datetime(2026, 1, 1, tz="UTC")
""",
    )
    page, _, _ = PAGE.read_text().partition("## Lineage")
    rows = re.findall(r"^\| `\w+` \| (.*) \|$", page, re.MULTILINE)
    told = [{*re.findall(r"`(\w+)`", row)} - {"wait_for_completion", "result", "output_path"} for row in rows]
    assert [{*extra} for _, extra in result.asset_events()] == told


def test_the_bounds_of_the_page():
    assert re.findall(r"\*\*At most (\d+) inputs\*\*", PAGE.read_text()) == [str(MAX_INPUTS)]
    assert re.findall(r"more than (\d+) characters", PAGE.read_text()) == [str(MAX_LINK)]


def test_the_uri_of_the_page():
    (call,) = re.findall(r"`(create_asset\(.*\))`", PAGE.read_text())
    assert f"`{eval(call, {'create_asset': create_asset}).uri}`" in PAGE.read_text()
