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
    ("options", "of_a_wait", "of_a_call"),
    [
        ({}, OF_A_WAIT, OF_A_CALL),
        ({"on_unknown_start": "claim"}, OF_A_WAIT, {}),
        ({"wait_for_completion": True}, {}, {}),
    ],
)
def test_of_a_start(world, options, of_a_wait, of_a_call):
    given = {"default_args": OF_A_WAIT, **OF_A_CALL, **options}
    task = world(trigger(**given))
    process = task.try_()
    assert unused(process) == {*of_a_wait, *of_a_call}
    for name in of_a_wait:
        assert f"{name} {NO_EFFECT} wait_for_completion=True." in process.log
    for name in of_a_call:
        needed = "wait_for_completion=True or on_unknown_start='claim'"
        assert f"{name} {NO_EFFECT} {needed}." in process.log
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
