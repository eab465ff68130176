"""
What asset events tell of runs, uploads and batches, and what a DAG that they start reads.

As docs/assets.md has it.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from uuid import UUID

import airflow.sdk.execution_time.macros
import pytest
from airflow.providers.openlineage.plugins.macros import lineage_parent_id
from airflow.providers.openlineage.plugins.openlineage import OpenLineageProviderPlugin

from code_blocks import read_code_blocks
from doc_pages import ROOT
from workflow_automation_provider.assets import create_asset
from workflow_automation_provider.lineage import MAX_INPUTS

PAGE = ROOT / "docs" / "assets.md"


def event_extra(service, *, index=0):
    run = service.runs[index]
    return {
        "run_id": run.run_id,
        "run_link": f"{service.url}/runs/{run.run_id}",
        "flow_id": run.flow_id,
    }


@pytest.mark.since_3_3
def test_each_operator_reports_what_the_page_lists(
    run_dag, service, workflow_automation_callback_base_url, tmp_path
):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("1234")
    path = str(tmp_path / "runs.jsonl")
    service.callbacks.add(result={"rows": 3})
    service.faults.add("reject", inputs={"n": 1})
    result = run_dag(f"""
        def outlet(name):
            return {{"task_id": name, "outlets": [Asset(f"file:///{{name}}")]}}

        with DAG("events", schedule=None):
            trigger = TriggerFlowOperator(inputs={{}}, wait_for_completion=True, **outlet("run"))
            upload = UploadFilesOperator(run_id=trigger.output, files="{tmp_path}/*.csv", **outlet("uploaded"))
            batch = TriggerFlowBatchOperator(
                batch=[{{"n": 0}}, {{"n": 1}}, {{"n": 2}}], output_path={path!r}, on_rejected="skip", **outlet("batch")
            )
            mapped = TriggerFlowOperator.partial(**outlet("mapped")).expand(inputs=[{{"n": 3}}, {{"n": 4}}])
            upload >> batch >> mapped
    """)
    counts = {"flow_id": "demo-flow", "total": 3, "started": 2, "rejected": 1}
    events = result.asset_events()
    assert events == [
        ("file:///run", {**event_extra(service), "result": {"rows": 3}}),
        ("file:///uploaded", {**event_extra(service), "files": 2, "bytes": 8}),
        ("file:///batch", {**counts, "path": path}),
        ("file:///mapped", event_extra(service, index=3)),
        ("file:///mapped", event_extra(service, index=4)),
    ]
    page, _, _ = PAGE.read_text().partition("## Lineage")
    rows = re.findall(r"^\| `\w+` \| (.*) \|$", page, re.MULTILINE)
    shown = [
        {*re.findall(r"`(\w+)`", row)} - {"wait_for_completion", "output_path"} for row in rows
    ]
    assert [{*extra} for _, extra in events[:3]] == shown


@pytest.mark.since_3_3  # on Airflow 3.1, dag.test() fails where an outlet is a reference
def test_a_reference_to_an_asset(run_dag, service):
    result = run_dag("""
        with DAG("asset_reference", schedule=[Asset("file:///known")]):
            TriggerFlowOperator(task_id="trigger", inputs={}, outlets=[Asset.ref(uri="file:///known")])
    """)
    assert result.asset_events() == [("file:///known", event_extra(service))]


def test_the_dags_of_the_page(run_dag, service, capfd):
    block, _ = read_code_blocks(PAGE, "python")
    started = run_dag(block.text, preamble="", dag_id="start_report")
    run_dag(block.text, preamble="", dag_id="announce_report", cause=started)
    (run,) = service.runs
    assert f"{run.run_id} {service.url}/runs/{run.run_id}" in capfd.readouterr().out


def test_the_flow_is_given_its_parent(run_dag, service, monkeypatch):
    """By a macro that Airflow has where OpenLineage has a transport, which it has not here."""
    name = OpenLineageProviderPlugin.name
    found = SimpleNamespace(lineage_parent_id=lineage_parent_id)
    monkeypatch.setattr(airflow.sdk.execution_time.macros, name, found, raising=False)
    _, block = read_code_blocks(PAGE, "python")
    run_dag(block.text, preamble="")
    (run,) = service.runs
    namespace, job, parent = run.inputs["parent"].split("/")
    assert (namespace, job) == ("default", "report_with_parent.trigger")
    assert UUID(parent)


def test_what_the_page_names():
    text = PAGE.read_text()
    assert re.findall(r"\*\*At most (\d+) inputs\*\*", text) == [str(MAX_INPUTS)]
    (call,) = re.findall(r"`(create_asset\(.*\))`", text)
    assert f"`{eval(call, {'create_asset': create_asset}).uri}`" in text
