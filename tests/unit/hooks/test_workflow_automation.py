"""The hook as a DAG author uses it: trigger, upload, test the connection."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from workflow_automation_provider.exceptions import (
    FileUnavailableError,
    InvalidRequestError,
)
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.testing import DEMO_KEY

# Trigger and upload -------------------------------------------------------------------------------------


def test_trigger(hook, workflow_automation_service):
    by_key = hook.trigger_flow({"when": datetime(2026, 1, 2, tzinfo=UTC)})
    by_path = hook.trigger_flow({}, "other-flow")
    runs = workflow_automation_service.runs
    assert [(r.run_id, r.flow_id, r.by) for r in runs] == [
        (by_key.run_id, "demo-flow", "key"),
        (by_path.run_id, "other-flow", "path"),
    ]
    assert runs[0].inputs == {"when": "2026-01-02T00:00:00+00:00"}


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
    extra = {"flow_id": "demo-flow", "file_format": {"n": "name", "t": "size"}}
    hook = connect(host=workflow_automation_service.base_url, password=DEMO_KEY.value, extra=extra)
    hook.upload_files(hook.trigger_flow({}).run_id, tmp_path / "a")
    assert workflow_automation_service.uploads[0].files == [{"n": "a", "t": 2}]


def test_upload_without_flow_id(connect, recording, key):
    server = recording()
    hook = connect(host=server.base_url, password=key)
    with pytest.raises(InvalidRequestError, match=r"(?s)flow_id.*Nothing was sent.*Connection: wa_test"):
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
    hook.get_conn()
    together = threading.Barrier(32)

    def start(number):
        together.wait(10)
        return number, hook.trigger_flow({"number": number}, "demo-flow").run_id

    with ThreadPoolExecutor(32) as pool:
        started = dict(pool.map(start, range(32)))
    assert {r.inputs["number"]: r.run_id for r in workflow_automation_service.runs} == started
    assert len(set(started.values())) == len(workflow_automation_service.journal.requests()) == 32


# Test connection ----------------------------------------------------------------------------------------


def test_good_connection_is_tested_without_key_and_without_a_run(connect, recording, key):
    server = recording()
    ok, message = connect(host=server.base_url, password=key).test_connection()
    assert ok
    assert message.startswith("Not checked, as it takes a run: the path and the API key.")
    ((method, path, headers, body),) = server.requests
    assert (method, path, body) == ("HEAD", "/api", b"")
    assert "x-api-key" not in headers
    assert key not in repr(headers) + message


def test_connection_without_key(connect, recording):
    ok, message = connect(host=recording().base_url).test_connection()
    assert ok
    assert "no API key" in message
    assert message.startswith("Not checked, as it takes a run: the path.")


def test_redirected_connection_is_not_followed(connect, recording, key):
    server, other = recording(), recording()
    server.status, server.headers = 308, {"Location": other.base_url}
    ok, message = connect(host=server.base_url, password=key).test_connection()
    assert ok
    assert other.base_url in message
    assert other.requests == []


def test_connection_rejected(connect, recording, key):
    server = recording()
    server.close()
    ok, message = connect(host=server.base_url, password=key).test_connection()
    assert not ok
    assert "got no response" in message


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
    assert "Connection: wa_test" in message


def test_connection_that_does_not_exist():
    ok, message = WorkflowAutomationHook("nobody_made_it").test_connection()
    assert not ok
    assert "cannot be read" in message
