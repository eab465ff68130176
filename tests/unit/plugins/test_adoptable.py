"""The runs that the tab lets a person give a task: those that the task then continues with."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.execution.starts.entries import (
    Claim,
    End,
    Outcome,
    RunReports,
    Start,
)
from workflow_automation_provider.execution.starts.ledger import Facts, why_not
from workflow_automation_provider.plugins.conversation import adoptable

AT = datetime(2026, 1, 1, tzinfo=UTC)
ids = st.sampled_from(["1", "2", "3"])
maybe_ids = st.none() | ids


def outcomes():
    run = ids.map(lambda run_id: Outcome("run", AT, {"run_id": run_id}))
    others = st.sampled_from([Outcome("nothing", AT), Outcome("unidentified", AT)])
    return st.none() | run | others


def reports():
    return st.builds(
        RunReports,
        claim=st.none() | maybe_ids.map(lambda run_id: Claim(AT, run_id)),
        end=st.none() | maybe_ids.map(lambda run_id: End(AT, "success", run_id)),
        stopped=st.sampled_from([None, None, AT]),
        refused=st.lists(ids, max_size=2),
    )


def facts():
    start = st.builds(
        Start,
        try_number=st.just(1),
        number=st.just(0),
        at=st.just(AT),
        max_tries=st.just(0),
        token=st.sampled_from([None, "a" * 64]),
        run=st.none() | ids.map(lambda run_id: {"run_id": run_id}),
    )
    return st.builds(Facts, start=start, outcome=outcomes(), reports=reports())


@given(st.lists(facts(), min_size=1, max_size=3), ids)
def test_they_are_those_of_the_task(starts, run_id):
    *others, last = starts
    accepted = why_not(run_id, last, others) is None
    assert adoptable(starts).takes(run_id) is accepted


@given(st.lists(facts(), min_size=1, max_size=3))
def test_one_is_possible_only_if_there_is_one(starts):
    *others, last = starts
    found = adoptable(starts)
    is_any = any(why_not(run_id, last, others) is None for run_id in ("1", "2", "3", "new"))
    assert found.is_possible is is_any


@pytest.mark.parametrize("place", [0, 1])
def test_none_where_an_entry_cannot_be_read(place):
    starts: list[Facts | None] = [Facts(Start(1, n, AT, 0, token="a")) for n in range(2)]
    starts[place] = None
    assert not adoptable(starts).is_possible
