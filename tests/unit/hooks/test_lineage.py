"""What is told of files, in what number, and what not."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from airflow.providers.common.compat.lineage import hook as compat
from airflow.providers.common.compat.sdk import Asset
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.hooks import lineage
from workflow_automation_provider.hooks.file_sources import resolve
from workflow_automation_provider.hooks.lineage import MAX_INPUTS, inputs_of
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import WithoutTextError, mentions, trigger

try:
    HookLineageCollector = importlib.import_module("airflow.sdk.lineage").HookLineageCollector
except ImportError:  # before Airflow 3.2
    HookLineageCollector = importlib.import_module("airflow.lineage.hook").HookLineageCollector


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("/data/a.csv", "file:///data/a.csv"),
        (Path("/data/a.csv"), "file:///data/a.csv"),
        ("a.csv", f"{Path.cwd().as_uri()}/a.csv"),
        ("/data/*.csv", "file:///data"),
        ("/data/20[0-9]/**/x?", "file:///data"),
        ("/*", "file:///"),
        ("*.csv", Path.cwd().as_uri()),
        ("/data/a b#?.csv".replace("?", "%"), "file:///data/a%20b%23%25.csv"),
        ("s3://conn_id@bucket/a/b.csv", "s3://bucket/a/b.csv"),
        ("s3://conn_id@bucket/a/*.csv", "s3://bucket/a"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket/*", "s3://bucket"),
        (Asset("s3://bucket/key"), "s3://bucket/key"),
        ("https://me:word@host/a.csv", "https://host/a.csv"),
        ("https://host/a.csv#part", "https://host/a.csv"),
        ("https://host:8443/a.csv?X-Amz-Signature=abc", "https://host:8443/a.csv"),
        ("HTTPS://host/a.csv?X-Amz-Signature=abc", "https://host/a.csv"),
        ("https://host/b/o?X-Goog-Credential=me%40project&X-Goog-Signature=abc", "https://host/b/o"),
        ("S3://conn_id@bucket/key", "s3://bucket/key"),
        ("sftp://me:p%40ss@host/x", "sftp://host/x"),
        ("sftp://me:p@ss@host/x", "sftp://host/x"),
        ("https://me@corp:pa%3Fss@host/x", "https://host/x"),
        ("hdfs:///data/a.csv", "hdfs:///data/a.csv"),
        ("s3://bucket/day=1/a.csv", "s3://bucket/day=1/a.csv"),
        ("s3://bucket/20??/a.csv", "s3://bucket"),
    ],
)
def test_a_source(source, uri):
    assert inputs_of(source) == [uri]


@pytest.mark.parametrize(
    "source",
    [
        "sftp://me:pa/ss@host/x",
        "sftp://me:12/34@host/x",
        "SFTP://me:pa/ss@host/x",
        "sftp://me:pa/ss%40host/x",
        "sftp://me:pass%40host/x",
        "https://me:pa?ss@host/x",
        "https://me:12?34@host/x",
        "https://me:12#34%40host/x",
        "https://me:pa/s*s@host/x",
        "sftp://host?sig=ab@c",
        "https://host/a%3FX-Amz-Signature=abc",
        "https://host/a%253fX-Amz-Signature=abc",
        "https://host/a&X-Amz-Signature=abc",
        "s3://c@b/k#sig=abc",
        "s3://c@b/k;token=abc",
        "https://host/a;jsessionid=abc",
        "https://host/a&api_key=abc",
        "https://host/apikey=abc/a",
        "https://host/a;AccountKey=abc",
        "https://host/a;sig%3Dabc",
        "https://host/a;sig%253dabc",
        "ftp://host/pwd=abc/a",
        "zip://a.csv::https://me:pass@host/a.zip",
        "simplecache::s3://bucket/key",
        "sftp:/me:pass@host/x",
        "//me:pass@host/x",
        " https://me:pass@host/x",
        "/data/\ud800",
        "s3://bucket/\ud800",
    ],
)
def test_what_may_reveal_a_login_or_has_no_text_is_left_out(source):
    assert inputs_of([source, "/data/a"]) == ["file:///data/a"]


# What no URI of a test has but by its secret.
PIECE = "Zq7"
SECRETS = st.lists(
    st.sampled_from(
        ["/", "@", ":", "?", "#", "%", "&", "=", "*", "[", "%40", "%2F", "%3f", "\\", " ", "é", "."]
    ),
    min_size=1,
    max_size=6,
).map(lambda signs: PIECE + "".join(f"{sign}{PIECE}" for sign in signs))
SCHEMES = st.sampled_from(["sftp", "https", "http", "s3", "gs", "abfs", "ftp", "file", "HTTPS", "S3", "Sftp"])
PARAMETERS = st.sampled_from(["sig", "X-Amz-Signature", "x-goog-signature", "Signature", "token", "sv"])


def reveals(uris):
    text = " ".join(uris)
    for _ in range(3):
        text += unquote(text)
    return PIECE.lower() in text.lower()


class TestSecrets:
    """Whatever the URL, none of its password or signature is told, be it encoded or not."""

    @given(SCHEMES, SECRETS, st.booleans(), st.sampled_from(["me", "", "me%40corp", "me@corp"]))
    def test_passwords(self, scheme, secret, is_encoded, user):
        password = quote(secret, safe="") if is_encoded else secret
        for path in ("/x", "/x/*.csv", "/x?sv=1", ""):
            url = f"{scheme}://{user}:{password}@host{path}"
            for source in (url, Asset(url) if is_encoded and path == "/x" and scheme == "sftp" else url):
                assert not reveals(inputs_of(source)), source
                assert not reveals(inputs_of([f"{url}/{number}" for number in range(60)])), source

    @given(SCHEMES, st.integers(0, 99999), st.sampled_from(["/", "?", "#", "/x?", "/x/"]), st.booleans())
    def test_passwords_that_begin_like_a_port(self, scheme, port, sign, is_at_encoded):
        at = "%40" if is_at_encoded else "@"
        found = inputs_of(f"{scheme}://me:{port}{sign}{PIECE}{at}host/x")
        assert not any(f"me:{port}" in uri for uri in found)
        assert not reveals(found)

    @given(
        SCHEMES, PARAMETERS, SECRETS, st.sampled_from(["?", "#"]), st.sampled_from(["", "conn@", "me:pw@"])
    )
    def test_signatures(self, scheme, parameter, secret, sign, login):
        signature = secret.replace("/", "%2F")
        for source in (
            f"{scheme}://{login}host/x{sign}{parameter}={signature}",
            f"{scheme}://{login}host/x/{sign}a=b&{parameter}={secret}",
            f"{scheme}://{login}host{sign}{parameter}={secret}",
            f"{scheme}://{login}host/x{quote(sign)}{parameter}={secret}",
            f"zip://x.csv::{scheme}://{login}host/x{sign}{parameter}={secret}",
        ):
            assert not reveals(inputs_of(source)), source
            assert not reveals(inputs_of([source, *(f"/data/{n}/x" for n in range(60))])), source

    @given(st.text(), SCHEMES)
    def test_any_text_has_a_uri_or_none(self, text, scheme):
        for source in (text, f"{scheme}://{text}", f"{scheme}://host/{text}"):
            for uri in inputs_of([source]):
                lineage._dataset(uri)
                assert not urlsplit(uri).query


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
    few = [f"/data/{n}" for n in range(MAX_INPUTS)]
    assert inputs_of(few) == [f"file://{path}" for path in few]
    assert inputs_of([*few, "/data/more"]) == ["file:///data"]
    assert inputs_of(f"/data/{n % 3}/{n}" for n in range(100_000)) == [f"file:///data/{n}" for n in range(3)]


def test_many_folders_are_told_up_to_the_bound():
    found = inputs_of(f"/data/{n}/file" for n in range(100_000))
    assert found == [f"file:///data/{n}" for n in range(MAX_INPUTS)]


@given(st.lists(st.text(st.characters(exclude_characters="/*?[\0", codec="utf-8"), min_size=1), min_size=1))
def test_a_path_is_told_as_it_is(parts):
    path = str(Path("/", *parts))
    uris = inputs_of(path)
    if re.search(":.*@", path, re.DOTALL):  # which may be a login
        assert uris == []
    else:
        assert [unquote(urlsplit(uri).path) for uri in uris] == [path]


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


@pytest.mark.parametrize(
    "start", [lambda now: trigger().execute(now), lambda now: trigger_flow_once("once", context=now)]
)
@pytest.mark.parametrize("error", [RuntimeError("no collector"), WithoutTextError("no collector")])
def test_a_collector_that_fails_is_only_told_of(service, context, monkeypatch, log, start, error):
    def fail():
        raise error

    monkeypatch.setattr(compat, "get_hook_lineage_collector", fail)
    monkeypatch.setattr(lineage, "_is_read", lambda: True)
    assert start(context())["run_id"] == "1001"
    assert "are incomplete" in (text := log()) or "could not be collected" in text
    assert type(error).__name__ in text


@pytest.mark.parametrize("error", [RuntimeError("no place"), WithoutTextError("no place")])
def test_an_upload_is_sent_whatever_its_lineage(service, context, monkeypatch, log, tmp_path, error):
    def fail(_):
        raise error

    (tmp_path / "a").write_text("1234")
    monkeypatch.setattr(lineage, "_place", fail)
    monkeypatch.setattr(lineage, "_is_read", lambda: True)
    trigger(files=f"{tmp_path}/a").execute(context())
    assert [upload.run_id for upload in service.uploads] == ["1001"]
    assert mentions(text := log(), "lineage events", "incomplete")
    assert text.count("incomplete") == 1
    assert type(error).__name__ in text


def test_a_uri_that_airflow_rejects_costs_no_other(service, context, collected, tmp_path):
    folder = tmp_path.joinpath(*["語" * 80] * 5)  # more than the 3000 characters of Airflow 2
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
