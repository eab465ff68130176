"""Arguments that would be ignored: an error where the DAG is parsed, or where a mapped task runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import DAG

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.operators.flows import TriggerFlowOperator

HOUR = timedelta(hours=1)

WAIT = {"wait_for_completion": True}
ASK = {"on_unknown_start": "ask"}
CLAIM = {"on_unknown_start": "claim"}
SHARED = {"completion_timeout": HOUR, "ask_timeout": HOUR, "notifiers": [print], "callback_input": "there"}


def dag(**options):
    return DAG("dag", schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), **options)


def plain(arguments: dict[str, Any]) -> Any:
    return TriggerFlowOperator(task_id="trigger", **arguments)


def mapped(arguments: dict[str, Any]) -> Any:
    operator: Any = TriggerFlowOperator.partial(task_id="trigger", **arguments).expand(inputs=[{"n": 1}])
    return operator.unmap({"inputs": {"n": 1}})


def function(n: int) -> dict[str, Any]:
    return {"n": n}


def decorated(arguments: dict[str, Any]) -> Any:
    result: Any = trigger_flow_task(**arguments)(function)(1)
    return result.operator


def mapped_function(arguments: dict[str, Any]) -> Any:
    result: Any = trigger_flow_task(**arguments)(function).expand(n=[1])
    return result.operator.unmap({"op_kwargs": {"n": 1}})


WAYS = pytest.mark.parametrize("make", [plain, mapped, decorated, mapped_function])


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("completion_timeout", HOUR, WAIT),
        ("callback_input", "report_to", WAIT),
        ("callback_input", "report_to", CLAIM),
        ("heartbeat_timeout", HOUR, WAIT),
        ("on_run_failed", "start_again", WAIT),
        ("claim_timeout", HOUR, CLAIM),
        ("ask_timeout", HOUR, ASK),
        ("notifiers", [print], ASK),
        ("notifiers", print, ASK),
    ],
)
def test_without_what_it_needs_it_is_an_error(name, value, needed):
    ((argument, enabling),) = needed.items()
    with pytest.raises(ValueError, match=f"{name} .* {argument}={enabling!r}"):
        plain({name: value})
    plain({name: value, **needed})


@pytest.mark.parametrize("empty", [(), [], None])
def test_a_default_is_no_error(empty):
    plain(
        {
            "callback_input": "callback_url",
            "completion_timeout": timedelta(days=1),
            "heartbeat_timeout": None,
            "on_run_failed": "fail",
            "claim_timeout": timedelta(seconds=60),
            "ask_timeout": timedelta(days=7),
            "notifiers": empty,
        }
    )


@WAYS
def test_each_way_to_make_a_task_is_checked(make):
    with dag(), pytest.raises(ValueError, match="ask_timeout has no effect"):
        make({"ask_timeout": HOUR})


@WAYS
def test_what_all_tasks_share_is_no_error_but_what_differs_from_it_is(make):
    with dag(default_args=SHARED):
        assert make({}).completion_timeout == HOUR
    with dag(default_args=SHARED), pytest.raises(ValueError, match="callback_input has no effect"):
        make({"callback_input": "elsewhere"})


@WAYS
def test_what_it_needs_may_be_shared(make):
    with dag(default_args=WAIT):
        assert make({"completion_timeout": HOUR}).completion_timeout == HOUR


def test_task_instances_of_one_mapped_task_are_checked_each():
    waits: dict[str, Any] = {**WAIT, "completion_timeout": HOUR}
    ignored = {"completion_timeout": HOUR}
    with dag():
        operator: Any = TriggerFlowOperator.partial(task_id="trigger").expand_kwargs([waits, {}, ignored])
    assert operator.unmap(waits).completion_timeout == HOUR
    assert not operator.unmap({}).wait_for_completion
    with pytest.raises(ValueError, match="completion_timeout has no effect"):
        operator.unmap(ignored)
