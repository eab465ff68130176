"""What the tries of a task add to the events of its assets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.base import MAX_LINK, link_of
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import WithoutTextError, mentions, trigger

REPORT = Asset("file:///report")


@pytest.fixture
def events():
    return OutletEventAccessors()


def having(events: object, context: dict[str, Any]) -> Any:
    """Return a context with events."""
    return {**context, "outlet_events": events}


def told(service, number=1001):
    return {"run_id": str(number), "run_link": f"{service.url}/runs/{number}", "flow_id": "demo-flow"}


@pytest.fixture
def lose_connection(monkeypatch):
    """Have no hook read a connection anymore."""

    def lose():
        def fail(_):
            raise RuntimeError("The secrets backend is not there")

        monkeypatch.setattr(WorkflowAutomationHook, "get_connection", fail)

    return lose


def test_the_run_of_an_earlier_try_without_the_connection(service, store, context, events, lose_connection):
    trigger().execute(context(store))
    lose_connection()
    trigger(outlets=[REPORT]).execute(having(events, context(store, try_number=2)))
    assert events[REPORT].extra == told(service)


def test_taskflow_returns_the_run_of_an_earlier_try_without_the_connection(
    service, store, context, lose_connection
):
    run = trigger_flow_once("once", context=context(store))
    lose_connection()
    assert trigger_flow_once("once", context=context(store, try_number=2)) == run


def test_other_outlets_are_left_alone(service, context, events):
    trigger(outlets=[object(), REPORT]).execute(having(events, context()))
    assert events[REPORT].extra == told(service)
    assert len(events) == 1


def test_what_is_not_known_is_left_out(service, context, events):
    """The whole response of a run without a run_id is in the result, not in the event."""
    service.faults.add("response", body={"accepted": True})
    trigger(outlets=[REPORT]).execute(having(events, context()))
    assert events[REPORT].extra == {"flow_id": "demo-flow"}


def test_a_batch_of_an_unknown_flow(service, context, events, log, workflow_automation_connect):
    workflow_automation_connect("no_flow", extra={"flow_id": None})
    task = TriggerFlowBatchOperator(
        task_id="batch", batch=[{}], workflow_automation_conn_id="no_flow", outlets=[REPORT]
    )
    task.execute(having(events, context(task_id="batch")))
    assert "flow_id" not in events[REPORT].extra
    assert "incomplete" not in log()


@pytest.mark.parametrize("error", [RuntimeError("no events"), WithoutTextError("no events")])
def test_a_failure_is_only_told_of(service, context, log, error):
    """What it is about is a run that was started."""

    class Broken(dict[object, object]):
        def __getitem__(self, key):
            raise error

    result = trigger(outlets=[REPORT]).execute(having(Broken(), context()))
    assert result["run_id"] == "1001"
    assert mentions(text := log(), "asset events", "incomplete")
    assert type(error).__name__ in text


LONGEST_LINK = "https://there/".ljust(MAX_LINK, "a")


@pytest.mark.parametrize(
    ("link", "is_told"),
    [
        (object(), False),
        ("", False),
        ("https://there/\ud800", False),
        (LONGEST_LINK, True),
        (f"{LONGEST_LINK}a", False),
    ],
    ids=["object", "empty", "surrogate", "longest", "too long"],
)
def test_a_link_that_airflow_could_not_store_is_left_out(service, context, events, tmp_path, link, is_told):
    trigger().execute(context())
    (tmp_path / "a.txt").write_text("abc")
    run = {"run_id": "1001", "run_link": link}
    task = UploadFilesOperator(task_id="upload", run_id=run, files=f"{tmp_path}/a.txt", outlets=[REPORT])
    assert task.execute(having(events, context(task_id="upload")))["files"] == 1
    extra = events[REPORT].extra
    assert ("run_link" in extra) is is_told
    assert extra["run_id"] == "1001"
    json.dumps(extra).encode()


def test_such_a_link_of_a_trigger_is_left_out(service, context, events):
    service.faults.add("response", body={"run_id": "7", "run_link": f"{LONGEST_LINK}a"})
    trigger(outlets=[REPORT]).execute(having(events, context()))
    assert events[REPORT].extra == {"run_id": "7", "flow_id": "demo-flow"}


@given(st.text(max_size=2 * MAX_LINK))
def test_any_text_can_be_stored_or_is_left_out(link):
    told = link_of({"run_link": link})
    assert told in ({}, {"run_link": link})
    assert len(json.dumps(told)) < 13 * MAX_LINK
    str(told.get("run_link")).encode()
