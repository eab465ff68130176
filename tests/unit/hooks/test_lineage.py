"""What is told of files, in what number, and what not."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from airflow.providers.common.compat.lineage import hook as compat
from airflow.providers.common.compat.sdk import Asset, HookLineageCollector
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.execution.start import trigger_flow_once
from workflow_automation_provider.hooks import lineage
from workflow_automation_provider.hooks.file_sources import resolve
from workflow_automation_provider.hooks.lineage import MOST_INPUTS, inputs_of
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator

from ..starts import trigger


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("/data/a.csv", "file:///data/a.csv"),
        (Path("/data/a.csv"), "file:///data/a.csv"),
        ("a.csv", f"file://{Path.cwd()}/a.csv"),
        ("/data/*.csv", "file:///data"),
        ("/data/20[0-9]/**/x?", "file:///data"),
        ("/*", "file:///"),
        ("*.csv", f"file://{Path.cwd()}"),
        ("/data/a b#?.csv".replace("?", "%"), "file:///data/a%20b%23%25.csv"),
        ("s3://conn_id@bucket/a/b.csv", "s3://bucket/a/b.csv"),
        ("s3://conn_id@bucket/a/*.csv", "s3://bucket/a"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket/*", "s3://bucket"),
        (Asset("s3://bucket/key"), "s3://bucket/key"),
        ("https://me:word@host/a.csv", "https://host/a.csv"),
        ("https://host/a.csv#part", "https://host/a.csv"),
    ],
)
def test_a_source(source, uri):
    assert inputs_of(source) == [uri]


def test_what_has_no_place_is_left_out():
    assert inputs_of([{"name": "note"}, "/data/a"]) == ["file:///data/a"]
    assert inputs_of({"name": "note"}) == []
    assert inputs_of(None) == []


def test_a_file_that_is_listed_twice_is_told_once():
    assert inputs_of(["/data/a", "/data/a"]) == ["file:///data/a"]


def test_resolved_files(tmp_path):
    for name in ("a", "b", "\udcff"):
        (tmp_path / name).write_text("a")
    found = inputs_of(resolve([f"{tmp_path}/*", f"file://{tmp_path}/a"]))
    assert found == [f"file://{tmp_path}/{name}" for name in ("a", "b", "%FF")]


def test_many_files_are_told_as_their_folders():
    few = [f"/data/{n}" for n in range(MOST_INPUTS)]
    assert inputs_of(few) == [f"file://{path}" for path in few]
    assert inputs_of([*few, "/data/more"]) == ["file:///data"]
    assert inputs_of(f"/data/{n % 3}/{n}" for n in range(100_000)) == [f"file:///data/{n}" for n in range(3)]


def test_many_folders_are_told_up_to_the_bound():
    found = inputs_of(f"/data/{n}/file" for n in range(100_000))
    assert found == [f"file:///data/{n}" for n in range(MOST_INPUTS)]


@given(st.lists(st.text(st.characters(exclude_characters="/*?[\0", codec="utf-8"), min_size=1), min_size=1))
def test_a_path_is_told_as_it_is(parts):
    path = str(Path("/", *parts))
    (uri,) = inputs_of(path)
    if "://" not in path:
        assert unquote(urlsplit(uri).path) == path


@pytest.fixture
def collected(monkeypatch):
    """What Airflow's collector got, as it is where something reads it."""
    collector = HookLineageCollector()
    monkeypatch.setattr(compat, "get_hook_lineage_collector", lambda: collector)
    monkeypatch.setattr(lineage, "_is_read", lambda: True)
    if compat._lacks_asset_methods(collector):  # on Airflow 2
        compat._add_asset_naming_compatibility_layer(collector)

    def read():
        found = collector.collected_assets
        return [info.asset.uri for info in found.inputs], [info.asset.uri for info in found.outputs]

    return read


def of_run(service, run_id=None):
    run = f"/runs/{run_id}" if run_id else ""
    return f"workflow-automation://{service.base_url.partition('://')[2]}/flows/demo-flow{run}"


def test_operators_tell_the_collector(service, context, collected, tmp_path):
    (tmp_path / "a").write_text("a")
    trigger(files=f"{tmp_path}/a").execute(context())
    run = of_run(service, 1001)
    assert collected() == ([f"file://{tmp_path}/a"], [run])
    UploadFilesOperator(task_id="upload", run_id="1001", files=f"{tmp_path}/[a]").execute(
        context(task_id="upload")
    )
    TriggerFlowBatchOperator(task_id="batch", batch=[{}]).execute(context(task_id="batch"))
    assert collected() == ([f"file://{tmp_path}/a"] * 2, [run, run, of_run(service)])


def test_taskflow_and_hook_tell_the_collector(service, context, collected, tmp_path):
    (tmp_path / "a").write_text("a")
    trigger_flow_once("once", context=context())
    with WorkflowAutomationHook() as hook:
        hook.trigger_flow()
        hook.upload_files("1002", f"{tmp_path}/a")
    runs = [of_run(service, number) for number in (1001, 1002)]
    assert collected() == ([f"file://{tmp_path}/a"], runs)


def test_a_run_of_an_unknown_flow_is_not_told(service, context, collected, workflow_automation_connect):
    workflow_automation_connect("no_flow", extra={"flow_id": None})
    trigger(workflow_automation_conn_id="no_flow").execute(context())
    trigger_flow_once("once", workflow_automation_conn_id="no_flow", context=context())
    assert collected() == ([], [])


def test_the_key_is_in_no_uri(service, context, collected, tmp_path):
    key = service.keys[0].value
    service.faults.add("response", body={"run_id": key, "run_link": f"https://there/{key}"})
    trigger().execute(context())
    assert collected() == ([], [of_run(service)])


@pytest.mark.parametrize("start", [trigger().execute, lambda now: trigger_flow_once("once", context=now)])
def test_a_collector_that_fails_is_only_told_of(service, context, monkeypatch, log, start):
    def fail():
        raise RuntimeError("no collector")

    monkeypatch.setattr(compat, "get_hook_lineage_collector", fail)
    monkeypatch.setattr(lineage, "_is_read", lambda: True)
    assert start(context())["run_id"] == "1001"
    assert "are incomplete" in (text := log()) or "could not be collected" in text


def test_a_uri_that_airflow_rejects_costs_no_other(service, context, collected, tmp_path):
    folder = tmp_path.joinpath(*["語" * 80] * 3)
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("a")
    trigger(files=f"{folder}/a.csv").execute(context())
    assert collected() == ([], [of_run(service, "1001")])


def test_without_a_reader_no_collector_is_made(service, context, monkeypatch):
    manager = pytest.importorskip("airflow.sdk.plugins_manager")
    made = []
    monkeypatch.setattr(compat, "get_hook_lineage_collector", lambda: made.append(1))
    monkeypatch.setattr(manager, "get_hook_lineage_readers_plugins", list)
    trigger().execute(context())
    assert not made


def test_nothing_of_openlineage_is_needed(service, context, monkeypatch, log):
    for name in ("openlineage", "airflow.providers.openlineage"):
        monkeypatch.setitem(sys.modules, name, None)
    trigger().execute(context())
    trigger_flow_once("once", context=context())
    assert "are incomplete" not in log()
    assert "could not be collected" not in log()


class TestFacets:
    """What OpenLineage's provider asks an operator for; tests/integration/test_lineage.py has the events."""

    @pytest.fixture(autouse=True)
    def _openlineage(self):
        pytest.importorskip("airflow.providers.openlineage")

    def test_before_the_end_there_are_none(self):
        facets = trigger().get_openlineage_facets_on_complete(None)
        assert (facets.inputs, facets.outputs) == ([], [])

    def test_files_of_many_are_bounded(self, service, context, tmp_path):
        folder = tmp_path / "files"
        folder.mkdir()
        for number in range(60):
            (folder / f"{number}").write_text("a")
        trigger().execute(context())
        task = UploadFilesOperator(task_id="upload", run_id="1001", files=f"{folder}/*")
        task.execute(context(task_id="upload"))
        facets = task.get_openlineage_facets_on_complete(None)
        assert [(found.namespace, found.name) for found in facets.inputs] == [("file", str(folder))]
        assert facets.outputs[0].outputFacets["outputStatistics"].fileCount == 60
