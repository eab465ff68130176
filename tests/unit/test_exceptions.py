"""The text of an error, line by line, and what a callback reads from it."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider import exceptions
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)

KINDS = [getattr(exceptions, name) for name in exceptions.__all__ if name.endswith("Error")]
of_every_kind = pytest.mark.parametrize("kind", KINDS)


def begin(kind):
    code = kind("It failed.").code
    return f"[{code}] " if code else ""


def full(kind):
    error = kind(
        "It was rejected.",
        consequence="No run.",
        next_step="Compare the inputs.",
        status=400,
        retry_after=17,
    )
    error.locate("wa_prod", "demo-flow")
    return error


@of_every_kind
def test_text_has_a_line_for_each_part(kind):
    assert str(full(kind)).splitlines() == [
        f"{begin(kind)}It was rejected.",
        "No run.",
        "Compare the inputs.",
        "Connection: wa_prod",
        "Flow: demo-flow",
    ]


def test_every_error_has_a_code():
    codes = [kind("It failed.").code for kind in KINDS if kind is not WorkflowAutomationError]
    assert {*codes} <= {*Code}
    assert len(codes) == len({*codes})


@of_every_kind
def test_every_error_has_what_a_callback_reads(kind):
    error = kind("It failed.")
    assert isinstance(error, WorkflowAutomationError)
    expected = {
        ResponseUnusableError: Accepted.YES,
        RunFailedError: Accepted.YES,
        RunTimeoutError: Accepted.YES,
        OutcomeUnknownError: Accepted.MAYBE,
    }.get(kind, Accepted.NO)
    assert error.accepted is expected
    assert [error.status, error.retry_after, error.conn_id, error.flow_id] == [None] * 4
    error = full(kind)
    assert (error.status, error.retry_after) == (400, 17)
    assert (error.conn_id, error.flow_id) == ("wa_prod", "demo-flow")


@pytest.mark.parametrize(
    ("calls", "conn_id", "flow_id"),
    [
        ([("wa", "f")], "wa", "f"),
        ([("wa", None)], "wa", None),
        ([("wa", 7)], "wa", "7"),
        ([("wa", None), ("other", "f")], "wa", "f"),
        ([("wa", "f"), ("other", "g")], "wa", "f"),
        ([(None, "f")], None, "f"),
        ([(object(), None)], None, None),
    ],
)
def test_locate_keeps_what_is_noted_already(calls, conn_id, flow_id):
    error = RejectedError("Rejected.")
    for call in calls:
        error.locate(*call)
    assert (error.conn_id, error.flow_id) == (conn_id, flow_id)
    assert str(error).splitlines()[1:] == [
        *([f"Connection: {conn_id}"] if conn_id else []),
        *([f"Flow: {flow_id}"] if flow_id else []),
    ]


@of_every_kind
@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_can_be_copied_and_pickled(kind, copied):
    error = full(kind)
    again = copied(error)
    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))


lines = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=9)


@given(lines, lines, lines, lines, lines)
def test_no_line_is_empty(message, consequence, next_step, conn_id, flow_id):
    error = RejectedError(message, consequence=consequence, next_step=next_step)
    error.locate(conn_id, flow_id)
    where = [f"{name}: {value}" for name, value in (("Connection", conn_id), ("Flow", flow_id)) if value]
    parts = [part for part in (f"[rejected] {message}", consequence, next_step, *where) if part]
    assert str(error).split("\n") == (parts or [""])
