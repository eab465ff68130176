"""The hook as a DAG author uses it: trigger, upload, test the connection, name files."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from workflow_automation_provider.client.errors import (
    FileUnavailableError,
    InvalidRequestError,
    RefusedError,
)
from workflow_automation_provider.hooks.sources import resolve
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.testing import DEMO_KEY

# Trigger and upload -------------------------------------------------------------------------------------


@pytest.fixture
def hook(workflow_automation_connection):
    with WorkflowAutomationHook(workflow_automation_connection) as hook:
        yield hook


def test_trigger(hook, workflow_automation_service):
    by_key = hook.trigger_flow({"when": datetime(2026, 1, 2, tzinfo=UTC)})
    by_path = hook.trigger_flow({}, "other-flow")
    runs = workflow_automation_service.runs
    assert [(r.run_id, r.flow_id, r.by) for r in runs] == [
        (by_key.run_id, "demo-flow", "key"),
        (by_path.run_id, "other-flow", "path"),
    ]
    assert runs[0].inputs == {"when": "2026-01-02T00:00:00+00:00"}


def test_default_connection(workflow_automation_connection, workflow_automation_service):
    with WorkflowAutomationHook() as hook:
        hook.trigger_flow({})
    assert len(workflow_automation_service.runs) == 1


def test_upload(hook, workflow_automation_service, tmp_path):
    (tmp_path / "a.csv").write_text("x")
    run = hook.trigger_flow({})
    answer = hook.upload_files(run.run_id, [tmp_path / "a.csv", {"url": "u"}], "demo-flow")
    assert answer == "2 files received"
    (upload,) = workflow_automation_service.uploads
    assert (upload.run_id, upload.flow_id) == (run.run_id, "demo-flow")
    assert upload.files == [{"name": "a.csv", "content_type": "text/csv", "content": "eA=="}, {"url": "u"}]


def test_upload_takes_flow_id_and_format_from_the_connection(connect, workflow_automation_service, tmp_path):
    (tmp_path / "a").write_text("é")
    extra = {"flow_id": "demo-flow", "file_format": {"n": "name", "t": "text"}}
    hook = connect(host=workflow_automation_service.base_url, password=DEMO_KEY.value, extra=extra)
    hook.upload_files(hook.trigger_flow({}).run_id, tmp_path / "a")
    assert workflow_automation_service.uploads[0].files == [{"n": "a", "t": "é"}]


def test_upload_without_flow_id(connect, recording, key):
    server = recording()
    hook = connect(host=server.base_url, password=key)
    with pytest.raises(InvalidRequestError, match=r"flow_id.*'wa_test'.*Nothing was sent"):
        hook.upload_files("1", [{}])
    assert server.requests == []


def test_upload_of_a_missing_file_sends_nothing(hook, workflow_automation_service, tmp_path):
    with pytest.raises(FileUnavailableError, match="missing"):
        hook.upload_files("1", [{}, tmp_path / "missing"], "demo-flow")
    assert workflow_automation_service.journal.requests() == []


def test_close_and_go_on(hook, workflow_automation_service):
    first = hook.get_conn()
    assert hook.get_conn() is first
    hook.close()
    hook.close()
    assert hook.trigger_flow({}).run_id == "1001"
    assert hook.get_conn() is not first
    with pytest.raises(RuntimeError, match="closed"):
        first._http.head(workflow_automation_service.url)


def test_threads_over_one_client_each_get_their_own_run(hook, workflow_automation_service):
    client = hook.get_conn()
    together = threading.Barrier(32)

    def start(number):
        together.wait(10)
        return number, client.trigger_flow({"number": number}, "demo-flow").run_id

    with ThreadPoolExecutor(32) as pool:
        started = dict(pool.map(start, range(32)))
    assert {r.inputs["number"]: r.run_id for r in workflow_automation_service.runs} == started
    assert len(set(started.values())) == len(workflow_automation_service.journal.requests()) == 32


# Test connection ----------------------------------------------------------------------------------------


def test_good_connection_is_tested_without_key_and_without_a_run(connect, recording, key):
    server = recording()
    ok, message = connect(host=server.base_url, password=key).test_connection()
    assert ok
    assert "cannot be checked without starting a run" in message
    ((method, path, headers, body),) = server.requests
    assert (method, path, body) == ("HEAD", "/api", b"")
    assert "x-api-key" not in headers
    assert key not in repr(headers) + message


def test_testing_starts_nothing(hook, workflow_automation_service):
    ok, message = hook.test_connection()
    assert ok, message
    assert workflow_automation_service.runs == []
    assert [(r.method, r.key_sent) for r in workflow_automation_service.journal.requests()] == [
        ("HEAD", False)
    ]


def test_connection_without_key(connect, recording):
    ok, message = connect(host=recording().base_url).test_connection()
    assert ok
    assert "no API key" in message


def test_redirected_connection_is_not_followed(connect, recording, key):
    server, other = recording(), recording()
    server.status, server.headers = 308, {"Location": other.base_url}
    ok, message = connect(host=server.base_url, password=key).test_connection()
    assert ok
    assert other.base_url in message
    assert other.requests == []


def test_connection_refused(connect, recording, key):
    server = recording()
    server.close()
    ok, message = connect(host=server.base_url, password=key).test_connection()
    assert not ok
    assert "got no answer" in message


def test_wrong_certificate(connect, recording, authority, key):
    server = recording(authority.server_context("other.example"))
    extra = {"ca_bundle": authority.bundle}
    ok, message = connect(host=server.base_url, password=key, extra=extra).test_connection()
    assert not ok
    assert "CERTIFICATE_VERIFY_FAILED" in message
    assert server.requests == []


def test_expired_key(connect, recording, key):
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    hook = connect(host=recording().base_url, password=key, extra={"key_expires_on": yesterday})
    ok, message = hook.test_connection()
    assert not ok
    assert f"expired on {yesterday}" in message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": ""}, "base URL"),
        ({"host": "service.example", "extra": {"time_out": 1}}, "time_out"),
        ({"host": "service.example", "login": "x"}, "login"),
    ],
)
def test_wrong_settings(connect, fields, words):
    ok, message = connect(**fields).test_connection()
    assert not ok
    assert words in message
    assert "'wa_test'" in message


def test_connection_that_does_not_exist():
    ok, message = WorkflowAutomationHook("nobody_made_it").test_connection()
    assert not ok
    assert "cannot be read" in message


# Sources ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("b.csv", "a.csv", "c.txt", ".hidden.csv", "[x].csv", "x.csv", "sub/d.csv", "sub/deep/e.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(files):
    return [
        element if isinstance(element, dict) else element.open().read().decode() for element in resolve(files)
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("a.csv", ["a.csv"]),
        (["b.csv", "a.csv"], ["b.csv", "a.csv"]),
        (("b.csv", Path("a.csv")), ["b.csv", "a.csv"]),
        (Path("sub/d.csv"), ["sub/d.csv"]),
        ("?.csv", ["a.csv", "b.csv", "x.csv"]),
        ("*.csv", ["[x].csv", "a.csv", "b.csv", "x.csv"]),
        (Path("*.txt"), ["c.txt"]),
        ("[ab].csv", ["a.csv", "b.csv"]),
        ("[x].csv", ["[x].csv"]),
        ("**/*.csv", ["[x].csv", "a.csv", "b.csv", "sub/d.csv", "sub/deep/e.csv", "x.csv"]),
        ("sub/**", ["sub/d.csv", "sub/deep/e.csv"]),
        (["a.csv", "a.csv"], ["a.csv", "a.csv"]),
        ({"any": "mapping"}, [{"any": "mapping"}]),
        ([{"any": ["*"]}, "a.csv"], [{"any": ["*"]}, "a.csv"]),
        ({"a.csv"}, ["a.csv"]),
    ],
)
def test_sources(folder, files, expected):
    assert contents(files) == expected


def test_sources_of_a_generator(folder):
    assert contents(name for name in ("b.csv", "a.csv")) == ["b.csv", "a.csv"]


def test_what_a_file_is_told_as(folder):
    (file,) = resolve(folder / "sub" / "d.csv")
    assert (file.name, file.size, file.content_type) == ("d.csv", 9, "text/csv")
    (folder / "no_ending").touch()
    assert resolve("no_ending")[0].content_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ("missing.csv", "'missing.csv' cannot be read: No such file"),
        (["a.csv", "missing/x"], "'missing/x' cannot be read"),
        ("*.xml", r"files\[0\]: the glob '\*\.xml' matches no file"),
        (["a.csv", "nothing/*"], r"files\[1\]: the glob"),
        ("sub", "'sub' is a directory.*sub/\\*"),
        ("s*", "'sub' is a directory"),
        ("/", "is a directory"),
        ("fifo", "no regular file"),
        ("dangling", "is a link to .nowhere., which is not there"),
        ("a\0b", "cannot be read"),
    ],
)
def test_files_that_are_not_there(folder, files, words):
    os.mkfifo("fifo")
    Path("dangling").symlink_to("nowhere")
    with pytest.raises(FileUnavailableError, match=f"{words}.*Nothing was sent"):
        resolve(files)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "files is empty"),
        (iter(()), "files is empty"),
        (None, "files is a NoneType"),
        (7, "files is a int"),
        (b"a.csv", "files"),
        (["a.csv", None], r"files\[1\] is a NoneType"),
        (["a.csv", ["b.csv"]], r"files\[1\] is a list"),
        ([b"a.csv"], r"files\[0\] is a bytes"),
        ("", r"files\[0\] is an empty path"),
        (["a.csv", "  "], r"files\[1\] is an empty path"),
    ],
)
def test_sources_that_are_none(folder, files, words):
    with pytest.raises(InvalidRequestError, match=words):
        resolve(files)


def test_refusal_reaches_the_author(hook, workflow_automation_service):
    workflow_automation_service.faults.add("refuse", status=422, body={"error": "no such input: spedd"})
    with pytest.raises(RefusedError, match="no such input: spedd"):
        hook.trigger_flow({"spedd": 1})
