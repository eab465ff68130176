"""
TriggerFlowOperator where a person gives a failed task its run.

It is returned, once.
"""

from __future__ import annotations

import re

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entry_keys import ADOPTED, SECOND_START
from workflow_automation_provider.exceptions import Accepted, InvalidRequestError
from workflow_automation_provider.execution.errors import how_to_continue
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import MAYBE, mentions, requests, trigger

IN_FULL = {"run_id": "77", "run_link": "http://there/77", "flow_id": "other"}


def fail(service, store, context, fault):
    """Have the first try end so, or well."""
    if fault:
        service.faults.add(fault)
        with pytest.raises(AirflowFailException):
            trigger().execute(context(store))
    else:
        trigger().execute(context(store))


@pytest.fixture
def cleared(store, context):
    return context(store, try_number=2, max_tries=4)


@pytest.mark.parametrize(
    ("entry", "run"),
    [
        (" 77\n", {"run_id": "77"}),
        ({"run_id": 77}, {"run_id": "77"}),
        (IN_FULL, IN_FULL),
        ({"run_id": "77", "run_link": None, "flow_id": " "}, {"run_id": "77"}),
    ],
)
def test_is_returned(service, store, context, cleared, log, entry, run):
    fail(service, store, context, "garbage")
    store.entries[ADOPTED] = entry
    assert trigger().execute(cleared) == {"flow_id": "demo-flow", **run}
    assert store.entries[SECOND_START]["run"] == run
    assert ADOPTED not in store.entries
    assert requests(service) == 1
    assert cleared["ti"].pushed == {}
    assert mentions(log(), "run 77", "entered")


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (" ", "has the run_id ' '"),
        (True, "has the run_id True"),
        (["77"], r"has the run_id \['77'\]"),
        ({}, "has the run_id None"),
        ({"run_id": "77", "link": "there"}, "has 'link'"),
    ],
)
def test_that_is_none_is_rejected(service, store, cleared, entry, found):
    store.entries[ADOPTED] = entry
    with pytest.raises(InvalidRequestError, match=f"entry {ADOPTED} .* {found}:"):
        trigger().execute(cleared)
    assert requests(service) == 0
    assert store.entries[ADOPTED] == entry


@pytest.mark.parametrize(
    ("fault", "accepted", "words"),
    [
        (None, Accepted.YES, r"But try 1 \(.* run 1001, http"),
        ("drop_after", Accepted.MAYBE, rf"But try 1 \(.*{MAYBE}"),
        ("reject", Accepted.NO, "^Nothing was sent.$"),
    ],
)
def test_that_is_none_does_not_hide_what_an_earlier_try_did(
    service, store, context, fault, accepted, words
):
    fail(service, store, context, fault)
    store.entries[ADOPTED] = ""
    with pytest.raises(InvalidRequestError) as caught:
        trigger().execute(context(store, try_number=2))
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is accepted
    assert re.search(words, caught.value.consequence)
    assert (how_to_continue(None if fault else "1001") in caught.value.next_step) is (
        fault != "reject"
    )
    assert requests(service) == 1


def test_is_used_once(service, store, context, cleared):
    trigger().execute(context(store))
    store.entries[ADOPTED] = "77"
    assert trigger().execute(cleared)["run_id"] == "77"
    assert trigger().execute(context(store, try_number=3, max_tries=4))["run_id"] == "77"
    assert trigger().execute(context(store, try_number=4, max_tries=7))["run_id"] == "1002"


def test_that_cannot_be_recorded_is_not_lost(service, store, context, cleared):
    trigger().execute(context(store))
    store.entries[ADOPTED] = "77"
    store.failures["set start"] = 1
    with pytest.raises(RuntimeError, match="store"):
        trigger().execute(cleared)
    assert trigger().execute(context(store, try_number=3, max_tries=4))["run_id"] == "77"
    assert requests(service) == 1


def test_is_looked_for_again(service, store, context):
    """After a 404."""
    store.entries[ADOPTED] = "77"
    store.lost = [ADOPTED]
    assert trigger().execute(context(store, try_number=2)) == {"run_id": "77"}
    assert requests(service) == 0


def test_of_a_start_inside_a_task(service, store, context):
    """By the name of the start."""
    now = context(store, task_id="customers", try_number=2)
    store.entries[f"{ADOPTED}/ada"] = "77"
    assert trigger_flow_once("ada", context=now)["run_id"] == "77"
    assert f"{ADOPTED}/ada" not in store.entries
    assert trigger_flow_once("bob", context=now)["run_id"] == "1001"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip) | st.integers()
)
def test_any_id_is_returned_as_it_is(service, store, context, run_id):
    store.entries.clear()
    store.entries[ADOPTED] = {"run_id": run_id}
    assert trigger().execute(context(store, try_number=2)) == {"run_id": str(run_id).strip()}
