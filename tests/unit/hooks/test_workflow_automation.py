"""The hook: trigger and upload, at once or in two steps, the test of a connection, and its form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from workflow_automation_provider.client.settings import CONNECTION_FIELDS, FIELD_BEHAVIOUR, Settings
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError, NotSentError
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.testing import DEMO_KEY

# Trigger and upload -------------------------------------------------------------------------------------


def test_trigger(hook, workflow_automation_service):
    """A prepared request is sent when asked, and one that is not prepared at once."""
    request = hook.prepare_trigger({"when": datetime(2026, 1, 2, tzinfo=UTC)})
    assert workflow_automation_service.journal.requests() == []
    assert "when" not in repr(request)
    by_key, by_path = hook.send_trigger(request), hook.trigger_flow({}, "other-flow")
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


@pytest.mark.parametrize(
    ("inputs", "flow_id", "words"),
    [({"x": object()}, "f", "inputs"), (None, "f", "inputs"), ({}, "x" * 70_000, "flow_id")],
)
def test_what_cannot_be_sent_is_found_before_sending(
    hook, workflow_automation_service, inputs, flow_id, words
):
    with pytest.raises(InvalidRequestError, match=words):
        hook.prepare_trigger(inputs, flow_id)
    assert workflow_automation_service.journal.requests() == []


def test_missing_key_is_found_before_sending(connect, recording):
    server = recording()
    hook = connect(host=server.base_url)
    with pytest.raises(InvalidRequestError, match="API key"):
        hook.prepare_trigger({})
    assert hook.send_trigger(hook.prepare_trigger({}, "demo-flow")).run_id == "7"
    assert len(server.requests) == 1


@pytest.mark.parametrize("before", ["the client", "the request", "sending"])
def test_stopped_hook_sends_nothing_for_good(hook, workflow_automation_service, before):
    if before == "the client":
        hook.stop()
    hook.get_conn()
    if before == "the request":
        hook.stop()
    request = hook.prepare_trigger({})
    hook.stop()
    for _ in range(2):
        with pytest.raises(NotSentError, match="the task was ended"):
            hook.send_trigger(request)
        with pytest.raises(NotSentError, match="the task was ended"):
            hook.upload_files("1001", {"x": 1}, "demo-flow")
        hook.close()  # a new client is no way out
    assert workflow_automation_service.journal.requests() == []


# Test connection ----------------------------------------------------------------------------------------


def test_good_connection_is_tested_without_key_and_without_a_run(connect, recording, key):
    server = recording()
    ok, message = connect(host=recording().base_url).test_connection()
    assert ok
    assert message.startswith("Not checked, as it takes a run: the path.")
    assert "no API key" in message
    ok, message = connect(host=server.base_url, password=key).test_connection()
    assert ok
    assert message.startswith("Not checked, as it takes a run: the path and the API key.")
    ((method, path, headers, body),) = server.requests
    assert (method, path, body) == ("HEAD", "/api", b"")
    assert "x-api-key" not in headers
    assert key not in repr(headers) + message


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


def test_wrong_settings(connect):
    ok, message = connect(host="service.example", extra={"time_out": 1}).test_connection()
    assert not ok
    assert "time_out" in message
    assert "Connection: wa_test" in message


def test_connection_that_does_not_exist():
    ok, message = WorkflowAutomationHook("nobody_made_it").test_connection()
    assert not ok
    assert "cannot be read" in message


# The form ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONNECTION_FIELDS)
def test_every_field_is_explained_and_may_be_left_empty(name):
    field = CONNECTION_FIELDS[name]
    assert field["label"]
    assert field["description"].endswith(".")
    assert "null" in field["schema"]["type"]
    default = getattr(Settings(), name)
    assert field["schema"].get("default", default) == default


@pytest.mark.parametrize("name", CONNECTION_FIELDS)
def test_placeholders_are_values_that_work(name):
    written = FIELD_BEHAVIOUR["placeholders"].get(name)
    extra = Settings.read(json.dumps({name: written}))
    assert written is None or getattr(extra, name) is not None


def test_older_forms_are_told_the_same():
    behaviour = WorkflowAutomationHook.get_ui_field_behaviour()
    assert behaviour == {
        "hidden_fields": FIELD_BEHAVIOUR["hidden-fields"],
        "relabeling": FIELD_BEHAVIOUR["relabeling"],
        "placeholders": FIELD_BEHAVIOUR["placeholders"],
    }
