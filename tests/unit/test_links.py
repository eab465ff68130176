"""
Where the link to a run comes from.

The operator remembers it, and one that has not executed asks Airflow.
"""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import XCom

from sentences import NO_LINK
from workflow_automation_provider.client.urls import MAX_LINK
from workflow_automation_provider.exceptions import RejectedError, UnidentifiedError

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
    """
    Ask for the link as Airflow 3 does at the end of a task.

    With the task instance as its key.
    """
    (link,) = operator.operator_extra_links
    return link.get_link(operator, ti_key=context["ti"])


def test_each_task_instance_of_a_process_has_its_own(service, context, asked):
    """Also where they share an operator; one that has executed does not ask."""
    task = trigger()
    tries = [context(map_index=0), context(map_index=1), context(map_index=1, try_number=2)]
    links = [(task.execute(now)["run_link"], link_of(task, now)) for now in tries]
    assert [own for own, _ in links] == [found for _, found in links]
    assert len({*links, STORED}) == 4
    assert asked == []
    there = context()
    assert link_of(trigger(), there) == STORED  # as where a trigger has failed
    assert asked == [("_link_FlowRunLink", there["ti"])]


def test_a_try_that_started_nothing_has_none_of_another(service, context, asked):
    task, first, second = trigger(), context(), context(try_number=2)
    task.execute(first)
    service.faults.add("reject")
    with pytest.raises(RejectedError):
        task.execute(second)
    assert link_of(task, second) == ""
    assert asked == []  # Airflow would log an error for an XCom that is not there


def test_a_task_that_waited_and_lost_its_run_keeps_the_stored_link(context, store, asked):
    task, now = trigger(), context(store)
    with pytest.raises(UnidentifiedError):
        task.execute_complete(now)
    assert link_of(task, now) == STORED


@pytest.mark.parametrize("run_link", [None, "javascript:alert(1)"])
def test_a_run_without_a_web_link(service, context, asked, run_link):
    service.faults.add("response", body={"run_id": "7", "run_link": run_link})
    task, now = trigger(), context()
    task.execute(now)
    assert link_of(task, now) == ""
    assert now["ti"].pushed == {}


def test_airflow_stores_a_link_that_the_task_could_not(service, context, asked):
    task, now = trigger(), context(push_error=RuntimeError("Airflow is not there"))
    run = task.execute(now)
    assert link_of(task, now) == run["run_link"]


@pytest.mark.parametrize(
    "run_link",
    [
        "https://app.test/runs/7",
        " https://app.test/runs/7\n",
        "https://[::1]:8443/ä?b=c%20d#e",
        "HTTP://app.test",
        "https://app.test/".ljust(len("https://app.test") + MAX_LINK, "x"),
    ],
)
def test_a_link_is_that_of_the_service(service, context, asked, log, run_link):
    service.faults.add("response", body={"run_id": "7", "run_link": run_link})
    task, now = trigger(), context()
    assert task.execute(now)["run_link"] == run_link
    assert link_of(task, now) == run_link.strip()
    assert NO_LINK not in log()


@pytest.mark.parametrize(
    "run_link",
    [
        "javascript:alert(1)",
        "ftp://app.test/7",
        "https:app.test",
        "app.test/runs/7",
        "/runs/7",
        "//app.test/runs/7",
        "https://app.test/my run",
        "https://müller.test/runs/7",
        "https://me@app.test/7",
        "https://app.test/\tx",
        "https:\\\\app.test",
        "https://[",
        "https://app.test/".ljust(len("https://app.test") + MAX_LINK + 1, "x"),
    ],
)
def test_the_log_explains_a_missing_button(service, context, asked, log, run_link):
    service.faults.add("response", body={"run_id": "7", "run_link": run_link})
    task, now = trigger(), context()
    assert task.execute(now)["run_link"] == run_link
    assert link_of(task, now) == ""
    assert NO_LINK in log()
