"""The entries of a start: what is written can be read, and what cannot be read is reported."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.record.entries import (
    LastMessage,
    Outcome,
    Revoked,
    Start,
    entry_of,
    read_entry,
    read_message,
    read_reports,
    read_start,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
START = {"at": AT.isoformat(), "max_tries": 2}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=5,
)
fields = st.sampled_from([*Start.__struct_fields__, "status", "claim", "end", "stopped", "refused"])
objects = st.dictionaries(fields | st.text(st.characters()), json_values, max_size=4)


class Text(str):
    """A text as libraries make them, such as NumPy."""


class Time(datetime):
    """A time as libraries make them that stop the clock in tests."""


def test_a_text_and_a_time_of_a_derived_class_are_written():
    at = Time(2026, 1, 1, tzinfo=UTC)
    start = Start(1, 0, at, max_tries=0, conn_id=Text("there"), flow_id=Text("flow"))
    entry = entry_of(start)
    assert {type(value) for value in entry.values()} == {str, int}
    assert read_start((1, 0), json.loads(json.dumps(entry))) == start


@given(json_values | objects.map(lambda given: {**START, **given}))
def test_what_cannot_be_read_is_reported_as_damaged(value):
    readers = [
        lambda: read_start((1, 0), value),
        lambda: read_reports("token", value),
        lambda: read_entry(Outcome, "key", value),
        lambda: read_entry(Revoked, "key", value),
    ]
    for read in readers:
        with contextlib.suppress(InvalidRequestError):
            read()


@pytest.mark.parametrize("place", ["at", "\ud800"])
def test_half_of_a_surrogate_pair_is_damage(place):
    damaged = {**START, place: "\ud800"}
    with pytest.raises(InvalidRequestError, match="start/1/0"):
        read_start((1, 0), damaged)
    with pytest.raises(InvalidRequestError, match="report/token"):
        read_reports("token", {"claim": damaged})


@pytest.mark.parametrize(
    "fields",
    [
        {"run": {"run_link": "https://there.example/1"}},
        {"callback_url": "https://airflow.example"},
        {"mailbox": "s3://bucket/mailbox"},
    ],
)
def test_a_start_that_lacks_what_its_other_fields_need_is_damaged(fields):
    with pytest.raises(InvalidRequestError, match="start/1/0"):
        read_start((1, 0), {**START, **fields})


@given(json_values | objects)
def test_a_message_that_cannot_be_read_decides_nothing(value):
    assert isinstance(read_message(value), LastMessage)


@given(json_values)
def test_a_result_is_read_as_it_was_written(value):
    reports = {"end": {"at": AT.isoformat(), "status": "success", "result": value}}
    read = read_reports("token", reports)
    assert read.end is not None
    assert json.dumps(read.end.result) == json.dumps(value)
    assert json.dumps(entry_of(read).get("end", {}).get("result")) == json.dumps(value)
