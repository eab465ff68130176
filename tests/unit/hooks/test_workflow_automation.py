"""The hook: trigger and upload, at once or in two steps, the test of a connection, and its form."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from workflow_automation_provider.client.settings import CONNECTION_FIELDS, Settings
from workflow_automation_provider.exceptions import (
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
)
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.testing import DEMO_KEY

# Trigger and upload -------------------------------------------------------------------------------


def test_upload(connect, service, tmp_path):
    """The connection has the flow and the format, if they are not given."""
    (tmp_path / "a.csv").write_text("é")
    hook = connect(**service.airflow_connection(extra={"file_format": {"n": "name", "t": "size"}}))
    run = hook.trigger_flow({})
    assert hook.upload_files(run.run_id, [tmp_path / "a.csv", {"url": "u"}]) == "2 files received"
    (upload,) = service.uploads
    assert (upload.run_id, upload.flow_id) == (run.run_id, "demo-flow")
    assert upload.files == [{"n": "a.csv", "t": 2}, {"url": "u"}]


@pytest.mark.parametrize(
    ("fields", "send", "kind", "words"),
    [
        ({}, lambda hook: hook.trigger_flow(None), InvalidRequestError, "inputs"),
        ({}, lambda hook: hook.trigger_flow({}, "x" * 70_000), InvalidRequestError, "flow_id"),
        (
            {},
            lambda hook: hook.upload_files("1", [{}, "/no/file"]),
            FileUnavailableError,
            "/no/file",
        ),
        ({"extra": {}}, lambda hook: hook.upload_files("1", [{}]), InvalidRequestError, "flow_id"),
        ({"password": None}, lambda hook: hook.trigger_flow({}), InvalidRequestError, "API key"),
    ],
)
def test_what_cannot_be_sent_is_found_before_sending(connect, service, fields, send, kind, words):
    hook = connect(**{**service.airflow_connection(), **fields})
    with pytest.raises(kind, match=rf"(?s){words}.*Nothing was sent.*Connection: wa_test"):
        send(hook)
    assert service.journal.requests() == []
    assert hook.trigger_flow({}, "demo-flow").run_id == "1001"


@pytest.mark.parametrize(
    ("inputs", "is_warned"),
    [
        ({"inputs": {"a": 1}, "b": 2}, True),
        ({"inputs": "a"}, False),
        ({"a": {"inputs": {}}}, False),
    ],
)
def test_inputs_in_inputs_are_warned_of_and_sent(hook, service, log, inputs, is_warned):
    """As in the ``data`` of an HttpOperator; a flow may have an input of that name."""
    hook.trigger_flow(inputs)
    assert ("'inputs'" in log()) is is_warned
    assert service.runs[0].inputs == inputs


@pytest.mark.parametrize("before", ["the client", "the request"])
def test_stopped_hook_sends_nothing_for_good(hook, service, before):
    if before == "the client":
        hook.stop()
    request = hook.prepare_trigger({})
    hook.stop()
    with pytest.raises(NotSentError, match="the task was ended"):
        hook.get_conn().trigger(request)
    with pytest.raises(NotSentError, match="the task was ended"):
        hook.upload_files("1001", {"x": 1}, "demo-flow")
    assert service.journal.requests() == []


# Test connection ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("password", "words"),
    [
        (DEMO_KEY.value, "the path and the API key. The host"),
        ("", "the path and the API key. The host.* no API key"),
    ],
)
def test_a_good_connection_is_tested_without_key_and_without_a_run(
    connect, service, password, words
):
    hook = connect(**{**service.airflow_connection(), "password": password})
    ok, message = hook.test_connection()
    assert ok
    assert re.match(f"Not checked, as it takes a run: {words}", message)
    (request,) = service.journal.requests()
    assert (request.method, request.path, request.size, request.key_sent) == (
        "HEAD",
        "/api",
        0,
        False,
    )
    assert DEMO_KEY.value not in message


def test_a_bad_connection(connect, service):
    service.stop()
    for hook, words in [
        (connect(**service.airflow_connection()), "got no response"),
        (connect(conn_id="typo", extra={"time_out": 1}), "time_out"),
        (WorkflowAutomationHook("nobody_made_it"), "cannot be read"),
    ]:
        ok, message = hook.test_connection()
        assert not ok
        assert words in message


def test_the_cli_prints_the_code_of_a_failed_test(connect, service):
    """Airflow prints the message with Rich, for which text in brackets is markup."""
    service.stop()
    hook = connect(**{**service.airflow_connection(), "host": "http://[fd00::1]:9/api"})
    hook.connection.extra = '{"allow_http": true, "timeout": 0.1}'
    ok, message = hook.test_connection()
    assert not ok
    output = io.StringIO()
    Console(file=output, width=1000).print(f"[bold]failed[/bold] {message}")
    assert output.getvalue().startswith("failed (not-sent) HEAD http://(fd00::1):9/api")


# The form -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONNECTION_FIELDS)
def test_every_field_is_explained_and_may_be_left_empty(name):
    field = CONNECTION_FIELDS[name]
    assert field["label"]
    assert field["description"].endswith(".")
    assert "null" in field["schema"]["type"]
    default = getattr(Settings(), name)
    assert field["schema"].get("default", default) == default
    for example in field["schema"].get("examples", ()):
        assert getattr(Settings.read(json.dumps({name: example})), name) is not None
