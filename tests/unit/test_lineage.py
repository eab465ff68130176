"""What is told of files, in what number, and what not."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from airflow.providers.common.compat.lineage import hook as compat
from airflow.sdk import Asset
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider import lineage
from workflow_automation_provider.hooks.files.sources import resolve
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.lineage import MAX_INPUTS, uris_of
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from .starts import WithoutTextError, trigger


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("/data/a.csv", "file:///data/a.csv"),
        ("a.csv", f"{Path.cwd().as_uri()}/a.csv"),
        ("/data/*.csv", "file:///data/%2A.csv"),
        ("file:///data/a.csv", "file:///data/a.csv"),
        ("/a b/é=1;~x.csv", "file:///a%20b/%C3%A9%3D1%3B~x.csv"),
        (Path("/a b/c d"), Path("/a b/c d").as_uri()),
        ("file:///a b/c.csv", "file:///a%20b/c.csv"),
        ("s3://conn_id@bucket/a b/c.csv", "s3://bucket/a b/c.csv"),
        ("s3://conn_id@bucket/a/b.csv", "s3://bucket/a/b.csv"),
        ("s3://conn_id@bucket/a/*.csv", "s3://bucket/a/*.csv"),
        (Asset("s3://bucket/key"), "s3://bucket/key"),
        ("https://host:8443/é.csv", "https://host:8443/é.csv"),
        ({"name": "note"}, None),
        (None, None),
    ],
)
def test_a_source(source, uri):
    assert uris_of(source) == ([uri] if uri else [])


@pytest.mark.parametrize(
    "source",
    [
        "zip://a.csv::https://me:pass@host/a.zip",
        "simplecache::s3://bucket/key",
        " https://me:pass@host/x",
        "/data/a#b",
        "/data/\ud800",
        {"name": "note"},
    ],
)
def test_what_may_reveal_a_login_or_has_no_place_is_left_out(source):
    assert uris_of([source, "/data/a"]) == ["file:///data/a"]


# What no URI of a test has but by its secret.
PIECE = "Zq7"
SIGNS = ["/", "@", ":", "?", "#", "%", "&", "=", "*", "[", "%40", "%2F", "%3f", "\\", " ", "é", "."]
SECRETS = st.lists(st.sampled_from(SIGNS), min_size=1, max_size=6).map(
    lambda signs: PIECE + "".join(f"{sign}{PIECE}" for sign in signs)
)
SCHEMES = st.sampled_from(
    ["sftp", "https", "http", "s3", "gs", "abfs", "ftp", "file", "HTTPS", "S3", "Sftp"]
)
PARAMETERS = st.sampled_from(
    ["sig", "X-Amz-Signature", "x-goog-signature", "Signature", "token", "sv"]
)


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
            assert not reveals(uris_of(url)), url
            assert not reveals(uris_of([f"{url}/{number}" for number in range(60)])), url

    @given(
        SCHEMES,
        st.integers(0, 99999),
        st.sampled_from(["/", "?", "#", "/x?", "/x/"]),
        st.booleans(),
    )
    def test_passwords_that_begin_like_a_port(self, scheme, port, sign, is_at_encoded):
        at = "%40" if is_at_encoded else "@"
        found = uris_of(f"{scheme}://me:{port}{sign}{PIECE}{at}host/x")
        assert not any(f"me:{port}" in uri for uri in found)
        assert not reveals(found)

    @given(
        SCHEMES,
        PARAMETERS,
        SECRETS,
        st.sampled_from(["?", "#"]),
        st.sampled_from(["", "conn@", "me:pw@"]),
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
            assert not reveals(uris_of(source)), source
            assert not reveals(uris_of([source, *(f"/data/{n}/x" for n in range(60))])), source

    @given(st.text(), SCHEMES)
    def test_any_text_has_a_uri_or_none(self, text, scheme):
        for source in (text, f"{scheme}://{text}", f"{scheme}://host/{text}"):
            for uri in uris_of([source]):
                uri.encode()
                assert not urlsplit(uri).query


def test_resolved_files(tmp_path):
    (tmp_path / "\udcff").mkdir()
    for name in ("a", "b", "\udcff/c"):
        (tmp_path / name).write_text("a")
    found = uris_of(resolve([f"{tmp_path}/**", f"file://{tmp_path}/a"]))
    assert found == [(tmp_path / name).as_uri() for name in ("a", "b")]


@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="@?#%\\/:")))
def test_the_uri_of_a_local_file_is_that_of_its_path(name):
    path = Path("/a b") / f"x{name}"
    assert uris_of([path]) == [path.as_uri()]


def test_of_many_files_the_first_are_reported():
    found = uris_of(f"/data/{n}" for n in range(MAX_INPUTS + 1))
    assert found == [f"file:///data/{n}" for n in range(MAX_INPUTS)]


def flow_of(service):
    return f"workflow-automation://{service.base_url.partition('://')[2]}/flows/demo-flow"


def test_operators_tell_the_collector(service, context, collected, tmp_path):
    (tmp_path / "a").write_text("a")
    trigger(files=f"{tmp_path}/[a]").execute(context())
    flow, uri = flow_of(service), (tmp_path / "a").as_uri()
    assert collected() == ([uri], [flow])
    UploadFilesOperator(task_id="upload", run_id="1001", files=f"{tmp_path}/[a]").execute(
        context(task_id="upload")
    )
    output = tmp_path / "results"
    TriggerFlowBatchOperator(task_id="batch", batch=[{}], output_path=str(output)).execute(
        context(task_id="batch")
    )
    assert collected() == ([uri] * 2, [flow] * 3 + [output.as_uri()])


def test_taskflow_and_hook_tell_the_collector(service, context, collected, tmp_path, monkeypatch):
    for name in ("openlineage", "airflow.providers.openlineage"):
        monkeypatch.setitem(sys.modules, name, None)  # nothing of it is needed
    (tmp_path / "a").write_text("a")
    trigger_flow_once("once", context=context())
    hook = WorkflowAutomationHook()
    hook.trigger_flow()
    hook.upload_files("1002", f"{tmp_path}/a")
    uri = (tmp_path / "a").as_uri()
    assert collected() == ([uri], [flow_of(service)] * 2)  # one by each hook


def test_an_unknown_flow_is_not_reported(service, context, collected, workflow_automation_connect):
    workflow_automation_connect(extra={"flow_id": None})
    trigger().execute(context())
    trigger_flow_once("once", context=context())
    assert collected() == ([], [])


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (lambda now: trigger().execute(now), RuntimeError("no collector")),
        (lambda now: trigger_flow_once("once", context=now), WithoutTextError("no collector")),
    ],
)
def test_a_collector_that_fails_is_only_logged(service, context, monkeypatch, log, start, error):
    def fail():
        raise error

    monkeypatch.setattr(compat, "get_hook_lineage_collector", fail)
    monkeypatch.setattr(lineage, "_is_read", lambda: True)
    assert start(context())["run_id"] == "1001"
    assert "lineage is incomplete" in (text := log())
    assert type(error).__name__ in text


def test_without_a_reader_no_collector_is_made(service, context, monkeypatch):
    from airflow.sdk import plugins_manager

    made = []
    monkeypatch.setattr(compat, "get_hook_lineage_collector", lambda: made.append(1))
    monkeypatch.setattr(plugins_manager, "get_hook_lineage_readers_plugins", list)
    trigger().execute(context())
    assert not made
