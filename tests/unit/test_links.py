"""Where the link to a run comes from: the task's own process remembers it, every other asks Airflow."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import XCom

from workflow_automation_provider.exceptions import RejectedError

from .starts import trigger

STORED = "https://service.example/stored"


@pytest.fixture
def asked(monkeypatch):
    """Return the XComs that Airflow was asked for, each with its key and task instance."""
    calls = []

    def get_value(*, key, ti_key):
        calls.append((key, ti_key))
        return STORED

    monkeypatch.setattr(XCom, "get_value", get_value)
    return calls


def link_of(operator, context):
    """Ask for the link as Airflow 3 does at the end of a task: with the task instance as its key."""
    (link,) = operator.operator_extra_links
    return link.get_link(operator, ti_key=context["ti"])


def test_each_task_instance_of_a_process_has_its_own(service, context, asked):
    """Also where they share an operator; the task's own process does not ask."""
    task = trigger()
    tries = [context(map_index=0), context(map_index=1), context(map_index=1, try_number=2)]
    links = [(task.execute(now)["run_link"], link_of(task, now)) for now in tries]
    assert [own for own, _ in links] == [found for _, found in links]
    assert len({*links, STORED}) == 4
    assert asked == []
    there = context()
    assert link_of(task, there) == STORED  # as in another process
    assert asked == [("_link_FlowRunLink", there["ti"])]


def test_a_try_that_started_nothing_has_none_of_another(service, context, asked):
    task, first, second = trigger(), context(), context(try_number=2)
    task.execute(first)
    service.faults.add("reject")
    with pytest.raises(RejectedError):
        task.execute(second)
    assert link_of(task, second) == ""
    assert asked == []  # Airflow would log an error for an XCom that is not there


@pytest.mark.parametrize("run_link", [None, "javascript:alert(1)"])
def test_a_run_without_a_web_link(service, context, asked, run_link):
    service.faults.add("response", body={"run_id": "7", "run_link": run_link})
    task, now = trigger(), context()
    task.execute(now)
    assert link_of(task, now) == ""
    assert now["ti"].pushed == {}


def test_a_link_that_could_not_be_stored_is_there_for_airflow_to_store(service, context, asked):
    task, now = trigger(), context(push_error=RuntimeError("Airflow is not there"))
    run = task.execute(now)
    assert link_of(task, now) == run["run_link"]
