"""The text of an error, line by line, and what one keeps that is made of another, or copied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider import exceptions
from workflow_automation_provider.exceptions import RejectedError, RunFailedError, RunTimeoutError
from workflow_automation_provider.execution.errors import task_error

KINDS = [getattr(exceptions, name) for name in exceptions.__all__ if name.endswith("Error")]
of_every_kind = pytest.mark.parametrize("kind", KINDS)


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


def final(error):
    """Return the error to fail a task with; only a few are left to a retry."""
    context: Any = {"task_state_store": object()}
    return task_error(error, context, what_to_do="Wait.")


@of_every_kind
@pytest.mark.parametrize(
    "make", [final, lambda e: e.with_facts(next_step="Compare the inputs.\nWait.")]
)
def test_an_error_that_is_made_of_another_keeps_its_facts_and_its_cause(kind, make):
    with pytest.raises(kind) as caught:
        raise full(kind) from KeyError("why")
    before = dict(vars(caught.value))
    assert before.items() >= FACTS.items()
    made = make(caught.value)
    assert vars(caught.value) == before
    assert isinstance(made, kind)
    assert type(made).__name__ == kind.__name__
    assert vars(made) == {**before, "next_step": "Compare the inputs.\nWait."}
    assert (made.args, made.__cause__) == (caught.value.args, caught.value.__cause__)
    assert make is not final or made.__traceback__ is None


def test_an_error_that_fails_a_task_without_a_retry_already_is_kept():
    """As one of a start inside a task, where it ends an operator as well."""
    first = final(full(RejectedError))
    assert isinstance(first, AirflowFailException)
    assert final(first) is first


@of_every_kind
@pytest.mark.parametrize(
    ("make", "copied"),
    [
        (full, copy.copy),
        (full, lambda error: pickle.loads(pickle.dumps(error))),
        (lambda kind: final(full(kind)), copy.copy),
    ],
    ids=["copied", "pickled", "of a task, copied"],
)
def test_errors_can_be_copied_and_pickled(kind, make, copied):
    error = make(kind)
    again = copied(error)
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


lines = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=9)


@given(lines, lines, lines, lines, lines, lines)
def test_the_text_has_a_line_for_each_part(message, quote, next_step, conn_id, flow_id, run_id):
    where: dict[str, Any] = {"conn_id": conn_id, "flow_id": flow_id, "run_id": run_id}
    error = RejectedError(message, quote=quote, next_step=next_step, **where)
    names = zip(("Connection", "Flow", "Run"), where.values(), strict=True)
    parts = [f"[rejected] {message}"]
    if quote:
        parts.append(f"The service said: {quote}")
    parts.append("No run was started.")
    if next_step:
        parts.append(next_step)
    parts += [f"{name}: {value}" for name, value in names if value]
    assert str(error).split("\n") == parts
