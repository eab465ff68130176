"""
trigger_flow_once with a context of its own.

What a function within a task starts, and what it keeps of it.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from entry_keys import FIRST_OUTCOME, FIRST_START
from workflow_automation_provider.exceptions import (
    BusyError,
    InvalidRequestError,
    OutcomeUnknownError,
)
from workflow_automation_provider.taskflow import trigger_flow_once

from ...starts import mentions, requests, trigger


def test_a_later_try_returns_what_an_earlier_one_started(service, store, context):
    """Also beside the operator that calls it, as a subclass may, and by the name of its task."""
    for number in (1, 2):
        now = context(store, try_number=number)
        runs = [
            trigger().execute(now),
            *(trigger_flow_once(name, context=now) for name in ("trigger", "ada")),
        ]
        assert runs == [
            {"run_id": run_id, "run_link": f"{service.url}/runs/{run_id}", "flow_id": "demo-flow"}
            for run_id in ("1001", "1002", "1003")
        ]
    names = ("", "/trigger", "/ada")
    assert {*store.entries} == {
        f"{key}{name}" for key in (FIRST_START, FIRST_OUTCOME) for name in names
    }
    assert requests(service) == 3


def test_an_earlier_start_of_the_name_is_mentioned_with_its_outcome(service, store, context):
    """Which a process has recorded that lived on beside the next try."""
    for number in (1, 2, 3):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError) as caught:
            trigger_flow_once(
                "ada", on_unknown_start="start_again", context=context(store, try_number=number)
            )
        started = {"status": "started", "at": "2026-01-01T00:00:00Z", "run": {"run_id": "77"}}
        store.entries[f"{FIRST_OUTCOME}/ada"] = started if number == 2 else None
    assert mentions(str(caught.value), "Before, try 1", "started run 77")


def test_a_damaged_start_is_named_by_its_own_key(store, context):
    key = f"{FIRST_START}/ada"
    store.entries[key] = {"at": 7}
    with pytest.raises(InvalidRequestError, match=key):
        trigger_flow_once("ada", context=context(store, try_number=2))


def test_two_of_one_name_at_once(service, context, log):
    """Without a store, which the log says once, and whatever comes of the first."""
    now = context(task_id="customers")
    service.faults.add("delay", seconds=0.5)
    service.faults.add("busy")

    def start(name):
        try:
            return trigger_flow_once(name, context=now, send_retry_timeout=0)["run_id"]
        except InvalidRequestError:
            return "rejected"

    with ThreadPoolExecutor() as threads:
        assert sorted(threads.map(start, ["ada", "ada"])) == ["1001", "rejected"]
    with pytest.raises(BusyError):
        start("bob")
    assert start("bob") == "rejected"
    assert requests(service) == 2
    assert log().count("before Airflow 3.3") == 1


def test_the_page_names_the_longest_name(service, store, context):
    page = (Path(__file__).parents[4] / "docs" / "taskflow.md").read_text(encoding="utf-8")
    (longest,) = re.findall(r"at most (\d+) characters", page)
    now = context(store)
    trigger_flow_once("a" * int(longest), context=now)
    assert f"{FIRST_START}/{'a' * int(longest)}" in store.entries
    with pytest.raises(InvalidRequestError, match=f"1 to {longest} characters"):
        trigger_flow_once("a" * (int(longest) + 1), context=now)


def test_outside_of_a_task_there_is_no_context():
    with pytest.raises(RuntimeError):
        trigger_flow_once("ada")
