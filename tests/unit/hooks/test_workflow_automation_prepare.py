"""A trigger in two steps: prepared and checked first, sent later, or not at all once the hook was stopped."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    NotSentError,
)


@pytest.mark.parametrize(("flow_id", "by"), [(None, "key"), ("other-flow", "path")])
def test_prepared_request_is_sent_once_when_asked(hook, workflow_automation_service, flow_id, by):
    request = hook.prepare_trigger({"when": datetime(2026, 1, 2, tzinfo=UTC)}, flow_id)
    assert workflow_automation_service.journal.requests() == []
    run = hook.send_trigger(request)
    (started,) = workflow_automation_service.runs
    assert (started.run_id, started.by) == (run.run_id, by)
    assert started.inputs == {"when": "2026-01-02T00:00:00+00:00"}


def test_prepared_request_does_not_hold_the_key_or_show_the_inputs(connect, recording, key):
    hook = connect(host=recording().base_url, password=key)
    request = hook.prepare_trigger({"salary": 7})
    assert key.encode() not in request.content
    assert key not in f"{request} {request.title}"
    assert "salary" not in repr(request)


@pytest.mark.parametrize(
    ("inputs", "flow_id", "words"),
    [
        ({"x": object()}, "f", "inputs"),
        (None, "f", "inputs"),
        ({}, "", "flow_id"),
        ({}, "x" * 70_000, "flow_id"),
    ],
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
