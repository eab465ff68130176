"""What the tries of a task add to the events of its assets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.client.urls import MAX_LINK
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.base import link_of
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import WithoutTextError, mentions, trigger

REPORT = Asset("file:///report")


@pytest.fixture
def events():
    return OutletEventAccessors()


def event_extra(service, number=1001):
    return {
        "run_id": str(number),
        "run_link": f"{service.url}/runs/{number}",
        "flow_id": "demo-flow",
    }


def test_the_run_of_an_earlier_try_without_the_connection(
    service, store, context, events, monkeypatch
):
    trigger().execute(context(store))
    run = trigger_flow_once("once", context=context(store))

    def fail(_):
        raise RuntimeError("The secrets backend is not there")

    monkeypatch.setattr(WorkflowAutomationHook, "get_connection", fail)
    trigger(outlets=[REPORT]).execute({**context(store, try_number=2), "outlet_events": events})
    assert events[REPORT].extra == event_extra(service)
    assert trigger_flow_once("once", context=context(store, try_number=2)) == run


def test_other_outlets_are_left_alone(service, context, events):
    trigger(outlets=[object(), REPORT]).execute({**context(), "outlet_events": events})
    assert events[REPORT].extra == event_extra(service)
    assert len(events) == 1


LONGEST_LINK = "https://there/".ljust(len("https://there") + MAX_LINK, "a")


@pytest.mark.parametrize(
    ("body", "known"),
    [({"accepted": True}, {}), ({"run_id": "7", "run_link": f"{LONGEST_LINK}a"}, {"run_id": "7"})],
)
def test_what_is_not_known_or_could_not_be_stored_is_left_out(
    service, context, events, body, known
):
    """The whole response of a run without a run_id is in the result, not in the event."""
    service.faults.add("response", body=body)
    trigger(outlets=[REPORT]).execute({**context(), "outlet_events": events})
    assert events[REPORT].extra == {**known, "flow_id": "demo-flow"}


def test_a_batch_of_an_unknown_flow(service, context, events, log, workflow_automation_connect):
    workflow_automation_connect("no_flow", extra={"flow_id": None})
    task: Any = TriggerFlowBatchOperator(
        task_id="batch", batch=[{}], workflow_automation_conn_id="no_flow", outlets=[REPORT]
    )
    task.execute({**context(task_id="batch"), "outlet_events": events})
    assert "flow_id" not in events[REPORT].extra
    assert "incomplete" not in log()


@pytest.mark.parametrize("error", [RuntimeError("no events"), WithoutTextError("no events")])
def test_a_failure_is_only_logged(service, context, log, error):
    """What it is about is a run that was started."""

    class Broken(dict[object, object]):
        def __getitem__(self, key):
            raise error

    result = trigger(outlets=[REPORT]).execute({**context(), "outlet_events": Broken()})
    assert result["run_id"] == "1001"
    assert mentions(text := log(), "asset events", "incomplete")
    assert type(error).__name__ in text


@pytest.mark.parametrize("link", [object(), LONGEST_LINK], ids=["object", "longest"])
def test_an_upload_tells_the_link_that_it_was_given(service, context, events, link):
    trigger().execute(context())
    run = {"run_id": "1001", "run_link": link}
    task: Any = UploadFilesOperator(
        task_id="upload", run_id=run, files=[{"a": 1}], outlets=[REPORT]
    )
    task.execute({**context(task_id="upload"), "outlet_events": events})
    link = {"run_link": link} if link == LONGEST_LINK else {}
    assert events[REPORT].extra == {
        "run_id": "1001",
        "flow_id": "demo-flow",
        "files": 1,
        "bytes": 0,
        **link,
    }


@given(st.text() | st.text().map("https://app.test/{}".format))
def test_any_text_can_be_stored_or_is_left_out(link):
    extra = link_of({"run_link": link})
    assert extra in ({}, {"run_link": link.strip()})
    assert len(json.dumps(extra)) < 13 * MAX_LINK
    str(extra.get("run_link")).encode()
