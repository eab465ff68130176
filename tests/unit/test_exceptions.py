"""The text of an error, line by line, what a callback reads from it, and what it keeps where it fails a task."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider import exceptions
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    OutcomeUnknownError,
    RejectedError,
    RunFailedError,
    RunTimeoutError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.errors import task_error

KINDS = [getattr(exceptions, name) for name in exceptions.__all__ if name.endswith("Error")]
of_every_kind = pytest.mark.parametrize("kind", KINDS)


def begin(kind):
    code = kind("It failed.").code
    return f"[{code}] " if code else ""


FACTS: dict[str, Any] = {
    "consequence": "No run.",
    "next_step": "Compare the inputs.",
    "status": 400,
    "quote": "No such luck",
    "retry_after": 17,
    "conn_id": "wa_prod",
    "flow_id": "demo-flow",
    "run_id": "7",
}


def full(kind):
    result = {"result": {"rows": 3}} if kind in (RunFailedError, RunTimeoutError) else {}
    return kind("It was rejected.", **FACTS, **result)


@of_every_kind
def test_text_has_a_line_for_each_part(kind):
    assert str(full(kind)).splitlines() == [
        f"{begin(kind)}It was rejected.",
        "The service said: No such luck",
        "No run.",
        "Compare the inputs.",
        "Connection: wa_prod",
        "Flow: demo-flow",
        "Run: 7",
    ]


def test_every_error_has_a_code():
    codes = [kind("It failed.").code for kind in KINDS if kind is not WorkflowAutomationError]
    assert {*codes} <= {*Code}
    assert len(codes) == len({*codes})


@of_every_kind
def test_every_error_has_what_a_callback_reads(kind):
    error = kind("It failed.")
    assert isinstance(error, WorkflowAutomationError)
    yes = (UnidentifiedError, RunFailedError, RunTimeoutError)
    maybe = Accepted.MAYBE if kind is OutcomeUnknownError else Accepted.NO
    assert error.accepted is (Accepted.YES if kind in yes else maybe)
    assert [error.status, error.retry_after, error.conn_id, error.flow_id] == [None] * 4
    assert vars(full(kind)).items() >= FACTS.items()


def final(error):
    """Return the error to fail a task with; only a few are left to a retry."""
    context: Any = {"task_state_store": object()}
    return task_error(error, context, what_to_do="Wait.")


@of_every_kind
@pytest.mark.parametrize("make", [final, lambda e: e.with_facts(next_step="Compare the inputs.\nWait.")])
def test_an_error_that_is_made_of_another_keeps_its_facts_and_its_cause(kind, make):
    with pytest.raises(kind) as caught:
        raise full(kind) from KeyError("why")
    before = dict(vars(caught.value))
    told = make(caught.value)
    assert vars(caught.value) == before
    assert isinstance(told, kind)
    assert type(told).__name__ == kind.__name__
    assert vars(told) == {**before, "next_step": "Compare the inputs.\nWait."}
    assert (told.args, told.__cause__) == (caught.value.args, caught.value.__cause__)
    assert make is not final or told.__traceback__ is None


def test_an_error_that_fails_a_task_without_a_retry_already_is_kept():
    """As one of a start inside a task, where it ends an operator as well."""
    first = final(full(RejectedError))
    assert isinstance(first, AirflowFailException)
    assert final(first) is first


@of_every_kind
@pytest.mark.parametrize("make", [full, lambda kind: final(full(kind))])
@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_can_be_copied_and_pickled(kind, make, copied):
    error = make(kind)
    again = copied(error)
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


lines = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=9)


@given(lines, lines, lines, lines, lines)
def test_no_line_is_empty(message, quote, next_step, conn_id, flow_id):
    error = RejectedError(message, quote=quote, next_step=next_step, conn_id=conn_id, flow_id=flow_id)
    where = [f"{name}: {value}" for name, value in (("Connection", conn_id), ("Flow", flow_id)) if value]
    said = f"The service said: {quote}" * bool(quote)
    parts = [f"[rejected] {message}", said, "No run was started.", next_step, *where]
    assert str(error).split("\n") == list(filter(None, parts))
