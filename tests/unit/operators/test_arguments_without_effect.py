"""Arguments that would be ignored: an error where the DAG is parsed, if its author gave them."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import DAG, TaskGroup, task

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.operators.flows import TriggerFlowOperator

HOUR = timedelta(hours=1)

WAIT = {"wait_for_completion": True}
ASK = {"on_unknown_start": "ask"}

NEEDS = [
    ("completion_timeout", HOUR, WAIT, "wait_for_completion=True"),
    ("completion_timeout", timedelta(days=1), WAIT, "wait_for_completion=True"),
    ("callback_input", "report_to", WAIT, "wait_for_completion=True"),
    ("callback_input", "callback_url", WAIT, "wait_for_completion=True"),
    ("ask_timeout", HOUR, ASK, "on_unknown_start='ask'"),
    ("notifiers", [print], ASK, "on_unknown_start='ask'"),
]


class Forwarding(TriggerFlowOperator):
    """Has a default of its own, and passes it on."""

    def __init__(self, *, completion_timeout=HOUR, **kwargs):
        super().__init__(completion_timeout=completion_timeout, **kwargs)


class Waiting(TriggerFlowOperator):
    """Waits, whatever it is given."""

    def __init__(self, **kwargs):
        super().__init__(wait_for_completion=True, **kwargs)


class Named(TriggerFlowOperator):
    """Changes nothing."""


def dag(**options):
    return DAG("dag", schedule=None, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), **options)


def plain(arguments):
    return TriggerFlowOperator(task_id="trigger", **arguments)


def of_a_subclass(arguments):
    return Named(task_id="trigger", **arguments)


def mapped(arguments):
    return TriggerFlowOperator.partial(task_id="trigger", **arguments).expand(inputs=[{"n": 1}, {"n": 2}])


def mapped_subclass(arguments):
    return Named.partial(task_id="trigger", **arguments).expand(inputs=[{"n": 1}])


def mapped_over_several(arguments):
    return TriggerFlowOperator.partial(task_id="trigger").expand_kwargs([{"inputs": {}}, arguments])


def mapped_over_itself(arguments):
    return TriggerFlowOperator.partial(task_id="trigger").expand(
        **{name: [value] for name, value in arguments.items()}
    )


def operator_of(result: Any) -> Any:
    """Return the operator of a decorated function that was called or mapped."""
    return result.operator


def group(name: str, **options: Any) -> Any:
    return TaskGroup(name, **options)


def function(n: int) -> dict[str, Any]:
    return {"n": n}


def decorated(arguments):
    return operator_of(trigger_flow_task(**arguments)(function)(1))


def decorated_as_task(arguments):
    return operator_of(task.trigger_flow(**arguments)(function)(1))


def overridden(arguments):
    return operator_of(trigger_flow_task(function).override(**arguments)(1))


def mapped_function(arguments):
    return operator_of(trigger_flow_task(**arguments)(function).expand(n=[1, 2]))


def mapped_function_over_several(arguments):
    return operator_of(trigger_flow_task(**arguments)(function).expand_kwargs([{"n": 1}]))


def mapped_function_overridden(arguments):
    return operator_of(trigger_flow_task(function).override(**arguments).expand(n=[1]))


WAYS = [
    plain,
    of_a_subclass,
    mapped,
    mapped_subclass,
    mapped_over_several,
    mapped_over_itself,
    decorated,
    decorated_as_task,
    overridden,
    mapped_function,
    mapped_function_over_several,
    mapped_function_overridden,
]

every_way = pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)


@every_way
@pytest.mark.parametrize(("name", "value", "needed", "words"), NEEDS)
def test_without_what_it_needs_it_is_an_error_that_says_so(make, name, value, needed, words):
    with (
        dag(),
        pytest.raises(ValueError, match=f"^{name} has no effect without {words}: add {words}, or leave"),
    ):
        make({name: value})


@every_way
@pytest.mark.parametrize(("name", "value", "needed", "words"), NEEDS)
def test_with_what_it_needs_it_is_none(make, name, value, needed, words):
    with dag():
        make({name: value, **needed})


@every_way
@pytest.mark.parametrize("owner", ["dag", "task group", "task"])
def test_what_all_tasks_share_is_none(make, owner):
    shared = {
        "completion_timeout": HOUR,
        "ask_timeout": HOUR,
        "notifiers": [print],
        "callback_input": "there",
    }
    arguments: dict[str, Any] = {"inputs": [{}]} if make is mapped_over_itself else {}
    if owner == "task":
        arguments["default_args"] = shared
    if make in (mapped_over_itself, mapped_over_several) and owner == "task":
        pytest.skip("default_args cannot be mapped")
    with (
        dag(default_args=shared if owner == "dag" else {}),
        group("group", default_args=shared if owner == "task group" else {}),
    ):
        make(arguments)


@every_way
@pytest.mark.parametrize("owner", ["dag", "task group"])
def test_what_it_needs_may_be_shared(make, owner):
    with (
        dag(default_args=WAIT if owner == "dag" else {}),
        group("outer", default_args=WAIT if owner == "task group" else {}),
        group("inner"),
    ):
        make({"completion_timeout": HOUR})


@pytest.mark.parametrize("needed", [{"wait_for_completion": False}, {"on_unknown_start": "start_again"}])
def test_what_is_turned_off_is_not_there(needed):
    arguments = {"completion_timeout": HOUR} if "wait_for_completion" in needed else {"ask_timeout": HOUR}
    with pytest.raises(ValueError, match="has no effect"):
        plain({**arguments, **needed})


@pytest.mark.parametrize("notifiers", [None, (), []])
@pytest.mark.parametrize("make", [plain, mapped, decorated, mapped_function])
def test_no_notifiers_are_none(make, notifiers):
    with dag():
        make({"notifiers": notifiers})


def task_instances(operator, *resolved):
    """Return what Airflow makes of a mapped task, where it runs."""
    return [operator.unmap(values) for values in resolved]


def test_task_instances_of_one_mapped_task_may_differ():
    with dag():
        operator = TriggerFlowOperator.partial(task_id="trigger", completion_timeout=HOUR).expand(
            wait_for_completion=[True, False]
        )
        waits = task_instances(operator, {"wait_for_completion": True}, {"wait_for_completion": False})
    assert [found.wait_for_completion for found in waits] == [True, False]


def test_what_only_an_upstream_task_knows_is_checked_when_it_runs():
    with dag():

        @task
        def arguments() -> list[dict[str, Any]]:
            return []

        operator = TriggerFlowOperator.partial(task_id="trigger", ask_timeout=HOUR).expand_kwargs(arguments())
        with pytest.raises(ValueError, match="ask_timeout has no effect"):
            task_instances(operator, {"inputs": {}})


def test_a_mapped_task_runs_with_what_all_tasks_share():
    with dag(default_args={"completion_timeout": HOUR}):
        (found,) = task_instances(mapped({}), {"inputs": {"n": 1}})
        assert found.completion_timeout == HOUR


def test_what_a_subclass_passes_on_was_not_given():
    assert Forwarding(task_id="trigger").completion_timeout == HOUR
    with dag():
        assert Forwarding.partial(task_id="trigger").expand(inputs=[{}])
    with pytest.raises(ValueError, match="completion_timeout has no effect"):
        Forwarding(task_id="trigger", completion_timeout=HOUR)


def test_a_subclass_may_add_what_is_needed():
    assert Waiting(task_id="trigger", completion_timeout=HOUR).completion_timeout == HOUR
    with dag():
        operator = Waiting.partial(task_id="trigger", completion_timeout=HOUR).expand(inputs=[{}])
        (found,) = task_instances(operator, {"inputs": {}})
    assert found.wait_for_completion


def test_a_copy_is_none_that_was_given_more():
    operator = plain({})
    for copied in (copy.copy(operator), copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))):
        assert copied.completion_timeout == timedelta(days=1)


def test_a_mapped_task_is_airflows_own():
    """Its type, its name and its warning stay."""
    with pytest.warns(UserWarning, match="Task 'trigger' was never mapped"):
        TriggerFlowOperator.partial(task_id="trigger", inputs={})
    with dag(), pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        TriggerFlowOperator.partial(task_id="trigger", nothing=1)
    assert type(trigger_flow_task(function)).__name__ == "_TaskDecorator"
