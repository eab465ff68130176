"""An argument that does nothing is a warning: ``default_args`` may give it to all tasks."""

from __future__ import annotations

import re

import pytest

from sentences import NO_EFFECT
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

from ..starts import trigger

pytestmark = pytest.mark.since_3_3

OF_A_WAIT = {"completion_timeout": 60, "heartbeat_timeout": 30, "on_run_failed": "start_again"}
OF_A_CALL = {"callback_input": "url", "claim_timeout": 5}
OF_A_BATCH = {"callback_input": "url", "completion_timeout": 60, "on_run_failed": "skip"}


def unused(process):
    """Return the arguments of which a log says that they have no effect."""
    return {*re.findall(rf"(\w+) {NO_EFFECT}", process.log)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {*OF_A_WAIT, *OF_A_CALL}),
        ({"on_unknown_start": "claim"}, {*OF_A_WAIT}),
        ({"wait_for_completion": True}, set()),
    ],
)
def test_of_a_start(world, options, expected):
    given = {"default_args": OF_A_WAIT, **OF_A_CALL, **options}
    task = world(trigger(**given))
    assert unused(task.try_()) == expected
    assert len(task.flow.runs) == 1


def test_of_a_batch(world):
    task = world(
        TriggerFlowBatchOperator(task_id="trigger", batch=[{}], retries=2, default_args=OF_A_BATCH)
    )
    assert unused(task.try_()) == {*OF_A_BATCH}
    assert task.state == "success"


def test_a_default_is_no_warning(world):
    task = world(trigger(claim_timeout=60))
    assert unused(task.try_()) == set()
