"""trigger_flow_once with a context of its own: what a function within a task starts, and what it keeps of it."""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    InvalidRequestError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.errors import how_to_continue
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import MAYBE, mentions, requests, trigger

KEY, OUTCOME = "workflow_automation_start/1/0", "workflow_automation_outcome/1/0"
LOOK = "Look in the workflow's list of runs."


@pytest.fixture
def start(store, context):
    """Start a run as a try of the task "customers" does."""

    def start(name="ada", *, now=None, try_number=1, **options):
        now = now or context(store, task_id="customers", try_number=try_number)
        return trigger_flow_once(name, context=now, **{"send_retry_timeout": 0, **options})

    return start


def test_a_later_try_returns_the_runs_of_an_earlier_one(service, store, context, start):
    first = context(store, task_id="customers")
    runs = [start(name, now=first) for name in ("ada", "bob")]
    again = context(store, task_id="customers", try_number=2)

    assert [start(name, now=again) for name in ("ada", "bob")] == runs
    assert runs[0] == {"run_id": "1001", "run_link": f"{service.url}/runs/1001", "flow_id": "demo-flow"}
    assert {*store.entries} == {f"{KEY}/ada", f"{OUTCOME}/ada", f"{KEY}/bob", f"{OUTCOME}/bob"}
    assert requests(service) == 2


def test_without_a_store_the_log_says_once_what_that_means(service, context, start, log):
    now = context(task_id="customers")
    assert [start(name, now=now)["run_id"] for name in ("ada", "bob")] == ["1001", "1002"]
    assert log().count("before Airflow 3.3") == 1


def test_two_of_one_name_at_once(service, store, context, start):
    """Without a store as well, and whatever comes of the first."""
    now = context(task_id="customers")
    service.faults.add("delay", seconds=0.5)
    service.faults.add("busy")

    def start_one(_):
        try:
            return start(now=now)["run_id"]
        except InvalidRequestError:
            return "rejected"

    with ThreadPoolExecutor() as threads:
        assert sorted(threads.map(start_one, range(2))) == ["1001", "rejected"]
    with pytest.raises(BusyError):
        start("bob", now=now)
    with pytest.raises(InvalidRequestError, match="'bob' was already used"):
        start("bob", now=now, inputs={"customer": "bob"})
    assert requests(service) == 2


@pytest.mark.parametrize(
    ("other", "fault", "accepted", "words"),
    [
        ({"inputs": {"customer": "bob"}}, None, Accepted.YES, "run 1001, http"),
        ({"flow_id": "demo-flow"}, "garbage", Accepted.YES, "run_id is unknown"),
        # Here, another would start.
        ({"on_unknown_start": "start_again", "send_retry_timeout": -1}, "drop_after", Accepted.MAYBE, MAYBE),
    ],
)
def test_what_is_wrong_does_not_hide_what_an_earlier_try_did(service, start, other, fault, accepted, words):
    inputs = {"customer": "ada"}
    if fault:
        service.faults.add(fault)
    with contextlib.suppress(OutcomeUnknownError, UnidentifiedError):
        start(inputs=inputs)
    with pytest.raises(InvalidRequestError) as caught:
        start(**{"inputs": inputs, **other}, try_number=2)

    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is accepted
    assert mentions(caught.value.consequence, "But try 1 (", words)
    assert how_to_continue(None if fault else "1001", "ada") in caught.value.next_step
    assert requests(service) == 1


def test_a_start_has_an_entry_of_its_own_beside_the_tasks_operator(service, store, context, start):
    """Even where it has the name of the task: a subclass of the operator may start more than its own run."""
    for try_number in (1, 2):
        now = context(store, try_number=try_number)
        assert trigger().execute(now)["run_id"] == "1001"
        assert start("trigger", now=now)["run_id"] == "1002"
    assert set(store.entries) == {KEY, OUTCOME, f"{KEY}/trigger", f"{OUTCOME}/trigger"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": None}, "name is None"),
        ({"name": "\udc80"}, r"name is '\\udc80'"),
        ({"on_unknown_start": "retry"}, "on_unknown_start 'retry'"),
        ({"send_retry_timeout": -1}, "send_retry_timeout is -1"),
        ({"inputs": None}, "inputs is None"),
        ({"workflow_automation_conn_id": None}, "workflow_automation_conn_id is None"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_recorded(service, store, start, arguments, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        start(**{"flow_id": "a-flow", **arguments})

    assert isinstance(caught.value, AirflowFailException)
    assert "Flow: a-flow" in str(caught.value).splitlines()
    assert store.entries == {}
    assert service.journal.requests() == []


def test_the_page_names_the_longest_name(store, start):
    page = (Path(__file__).parents[3] / "docs" / "taskflow.md").read_text(encoding="utf-8")
    (longest,) = re.findall(r"at most (\d+) characters", page)
    start("a" * int(longest))
    assert f"{KEY}/{'a' * int(longest)}" in store.entries
    with pytest.raises(InvalidRequestError, match=f"at most {longest} characters"):
        start("a" * (int(longest) + 1))


def test_outside_of_a_task_there_is_no_context():
    with pytest.raises(RuntimeError):
        trigger_flow_once("ada")


# What an earlier try may have started -----------------------------------------------------------------------


def test_a_doubt_is_part_of_the_error_of_a_later_try(service, start):
    service.faults.add("drop_after")
    service.faults.add("reject")
    with pytest.raises(OutcomeUnknownError):
        start(on_unknown_start="start_again")
    with pytest.raises(RejectedError, match=f"But try 1 .*{MAYBE}") as caught:
        start(on_unknown_start="start_again", try_number=2)

    assert caught.value.accepted is Accepted.MAYBE
    assert LOOK in caught.value.consequence
    assert how_to_continue(name="ada") in caught.value.next_step
    with pytest.raises(OutcomeUnknownError, match=f"Try 1 .*{MAYBE}"):
        start(try_number=3)
