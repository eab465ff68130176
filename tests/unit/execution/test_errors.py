"""How a task ends: whether Airflow may retry it, and what the error knows. What it says is in golden/task_errors.txt."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    OutcomeUnknownError,
    RejectedError,
    RunFailedError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.errors import task_error


def ended(error, **options):
    context: Any = {"task_state_store": object()}
    failed = task_error(error, context, **options)
    assert failed.__traceback__ is None
    return failed


@pytest.mark.parametrize(
    "error",
    [
        RejectedError("Rejected.", status=400, conn_id="wa", flow_id="f"),
        OutcomeUnknownError("Unknown.", next_step="Look.", quote="No", retry_after=7),
        RunFailedError("Failed.", run_id="7", result={"rows": 3}),
    ],
)
def test_an_error_that_a_retry_cannot_help_keeps_its_facts_and_its_cause(error):
    error.__cause__ = KeyError("a user's own")
    facts = dict(vars(error))
    failed = ended(error)

    assert isinstance(failed, AirflowFailException)
    assert isinstance(failed, type(error))
    assert type(failed).__name__ == type(error).__name__
    assert vars(error) == facts
    assert {name: vars(failed)[name] for name in facts} | {"next_step": error.next_step} == facts
    assert failed.next_step.startswith(error.next_step)
    assert (failed.args, failed.__cause__) == (error.args, error.__cause__)


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_without_a_retry_can_be_copied_and_pickled(copied):
    failed = ended(RunFailedError("Failed.", run_id="7", result=3))
    again = copied(failed)
    assert (type(again), str(again), vars(again)) == (type(failed), str(failed), vars(failed))


def test_an_error_that_fails_without_a_retry_already_is_kept():
    """As one of a start inside a task, where it ends an operator as well."""
    first = ended(RejectedError("Rejected."))
    assert ended(first) is first


def test_what_an_earlier_try_did_counts_where_this_one_started_nothing():
    earlier = UnidentifiedError("try 1 started run 77.", run_id="77")
    assert ended(BusyError("busy"), earlier=earlier).accepted is Accepted.YES
    assert ended(OutcomeUnknownError("unknown"), earlier=earlier).accepted is Accepted.MAYBE
