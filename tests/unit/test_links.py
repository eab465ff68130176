"""
Where the link to a run comes from.

The operator remembers it, and one that has not executed asks Airflow.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from airflow.providers.common.compat.sdk import XCom
from hypothesis import given
from hypothesis import strategies as st

from sentences import NO_LINK
from workflow_automation_provider.client.urls import browser_link, web_link
from workflow_automation_provider.exceptions import RejectedError, UnidentifiedError

from .starts import mentions, trigger

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
    ("run_link", "link"),
    [
        ("/runs/7", "{host}/runs/7"),
        ("runs/7", "{host}/api/runs/7"),
        ("?run=7", "{host}/api/?run=7"),
        ("run.html?id=7/8", "{host}/api/run.html?id=7/8"),
        ("../runs/7.html", "{host}/runs/7.html"),
        ("//app.test/runs/7", "http://app.test/runs/7"),
        ("https://app.test/runs/my run", "https://app.test/runs/my%20run"),
        (" https://app.test/runs/7\n", "https://app.test/runs/7"),
        ("https://müller.test/runs/7", "https://xn--mller-kva.test/runs/7"),
        ("https://straße.test:8443/ä b?c=d e#ü", "https://xn--strae-oqa.test:8443/%C3%A4%20b?c=d%20e#%C3%BC"),
        ("https://app.test/ä?b=c%20d", "https://app.test/ä?b=c%20d"),
    ],
)  # fmt: skip
def test_link_that_a_browser_opens(service, context, asked, log, run_link, link):
    service.faults.add("response", body={"run_id": "7", "run_link": run_link})
    task, now = trigger(), context()
    assert task.execute(now)["run_link"] == run_link  # as the service wrote it
    assert link_of(task, now) == link.format(host=service.url)
    assert "button" not in log()


@pytest.mark.parametrize(
    ("run_link", "why"),
    [
        ("javascript:alert(1)", "is not the URL of a web page"),
        ("ftp://app.test/7", "is not the URL of a web page"),
        ("https:app.test", "is not a valid URL"),
        ("app.test/runs/7", "is not the URL of a web page, which begins with https://"),
        ("müller.test/runs/7", "is not the URL of a web page"),
        ("app.test:8443/runs/7", "is not the URL of a web page"),
        ("https://me@app.test/7", "contains a user name or password"),
        ("https://app.test/\tx", "contains a control character"),
        ("https:\\\\app.test", "contains a control character or a backslash"),
        ("https://[", "is not a valid URL"),
        ("https://app.test/" + "x" * 3000, "is not a valid URL, or too long"),
    ],
)
def test_the_log_explains_a_missing_button(service, context, asked, log, run_link, why):
    service.faults.add("response", body={"run_id": "7", "run_link": run_link})
    task, now = trigger(), context()
    assert task.execute(now)["run_id"] == "7"
    assert link_of(task, now) == ""
    assert mentions(log(), NO_LINK, why)


def test_a_relative_link_of_an_earlier_try_needs_the_connection(
    service, context, store, asked, log, monkeypatch
):
    """Which may be missing by now: the run is returned all the same."""
    service.faults.add("response", body={"run_id": "7", "run_link": "/runs/7"})
    trigger().execute(context(store))
    monkeypatch.delenv("AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT")
    task, now = trigger(), context(store, try_number=2)
    assert task.execute(now)["run_id"] == "7"
    assert link_of(task, now) == ""
    assert NO_LINK in log()


@given(
    st.text()
    | st.text().map("https://app.test/{}".format)
    | st.text().map("https://{}/x".format)
    | st.text().map("/{}".format)
)
def test_every_link_is_one_of_the_web(text):
    try:
        link = browser_link(text)
    except ValueError:
        return
    assert web_link(link) == link
    parts = urlsplit(link)
    assert parts.scheme in ("http", "https")
    assert (parts.hostname or "ü").isascii()
    assert browser_link(link) == link
