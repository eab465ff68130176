"""Arguments that would be ignored: an error where the DAG is parsed, or where a mapped task runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import airflow
import pendulum
import pytest
from airflow.providers.common.compat.sdk import DAG, TaskGroup, task
from packaging.version import Version

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.operators.flows import TriggerFlowOperator

HOUR = timedelta(hours=1)

WAIT = {"wait_for_completion": True}
ASK = {"on_unknown_start": "ask"}

NEEDS = [
    ("completion_timeout", HOUR, WAIT, "wait_for_completion=True"),
    ("callback_input", "report_to", WAIT, "wait_for_completion=True"),
    ("ask_timeout", HOUR, ASK, "on_unknown_start='ask'"),
    ("notifiers", [print], ASK, "on_unknown_start='ask'"),
    ("notifiers", print, ASK, "on_unknown_start='ask'"),
]

SHARED = {"completion_timeout": HOUR, "ask_timeout": HOUR, "notifiers": [print], "callback_input": "there"}


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

# What Airflow makes a task instance of a mapped task with; elsewhere, the arguments themselves.
MAPPED: dict[Any, dict[str, Any]] = {
    mapped: {"inputs": {"n": 1}},
    mapped_subclass: {"inputs": {"n": 1}},
    mapped_function: {"op_kwargs": {"n": 1}},
    mapped_function_over_several: {"op_kwargs": {"n": 1}},
    mapped_function_overridden: {"op_kwargs": {"n": 1}},
}


def executed(make: Any, arguments: dict[str, Any], group_args: Any = None, **options: Any) -> Any:
    """Return what Airflow executes: of a mapped task, one of its task instances."""
    with dag(**options), group("outer", default_args=group_args), group("inner"):
        operator = make(arguments)
    # Airflow 3.0 has nothing to unmap in an operator that is not mapped.
    return operator.unmap(MAPPED.get(make, arguments)) if hasattr(operator, "unmap") else operator


every_way = pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)


@every_way
@pytest.mark.parametrize(("name", "value", "needed", "words"), NEEDS)
def test_without_what_it_needs_it_is_an_error_that_says_so(make, name, value, needed, words):
    with pytest.raises(
        ValueError, match=f"^{name} has no effect without {words}: add {words}, or leave {name} out"
    ):
        executed(make, {name: value})


@every_way
@pytest.mark.parametrize(("name", "value", "needed", "words"), NEEDS)
def test_with_what_it_needs_it_is_none(make, name, value, needed, words):
    executed(make, {name: value, **needed})


@pytest.mark.parametrize(
    "make", [way for way in WAYS if way not in (mapped_over_itself, mapped_over_several)]
)
@pytest.mark.parametrize("owner", ["dag", "task group", "task"])
def test_what_all_tasks_share_is_none(make, owner):
    if (
        owner == "task"
        and make.__name__.startswith("mapped_function")
        and Version(airflow.__version__).major == 2
    ):
        pytest.skip("Airflow 2 makes a mapped function's own default_args its arguments")
    found = executed(
        make,
        {"default_args": SHARED} if owner == "task" else {},
        default_args=SHARED if owner == "dag" else {},
        group_args=SHARED if owner == "task group" else {},
    )
    # Airflow leaves the own default_args of a mapped task out where it runs.
    if owner != "task" or make not in MAPPED:
        assert found.completion_timeout == HOUR


@pytest.mark.parametrize("make", [mapped_over_itself, mapped_over_several])
@pytest.mark.parametrize("owner", ["dag", "task group"])
def test_what_tasks_share_whose_arguments_are_mapped_is_none(make, owner):
    found = executed(
        make,
        {"inputs": {"n": 1}},
        default_args=SHARED if owner == "dag" else {},
        group_args=SHARED if owner == "task group" else {},
    )
    assert (found.inputs, found.completion_timeout) == ({"n": 1}, HOUR)


@every_way
@pytest.mark.parametrize(("name", "value", "needed", "words"), NEEDS)
def test_another_value_than_the_shared_one_is_an_error(make, name, value, needed, words):
    other = {**SHARED, name: "other" if name == "callback_input" else timedelta(hours=2)}
    with pytest.raises(ValueError, match=f"^{name} has no effect"):
        executed(make, {name: value}, default_args={**other, "notifiers": [repr]})


@every_way
@pytest.mark.parametrize("owner", ["dag", "task group"])
def test_what_it_needs_may_be_shared(make, owner):
    executed(
        make,
        {"completion_timeout": HOUR},
        default_args=WAIT if owner == "dag" else {},
        group_args=WAIT if owner == "task group" else {},
    )


@pytest.mark.parametrize("make", [plain, decorated, mapped, mapped_function])
@pytest.mark.parametrize("needed", [{"wait_for_completion": False}, {"on_unknown_start": "start_again"}])
def test_a_task_may_turn_off_what_the_others_do(make, needed):
    executed(make, needed, default_args={**SHARED, **WAIT, **ASK})
    with pytest.raises(ValueError, match="has no effect"):
        executed(
            make,
            {"completion_timeout": HOUR, "ask_timeout": HOUR, **needed},
            default_args={**WAIT, **ASK},
        )


@every_way
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("callback_input", "callback_url"),
        ("completion_timeout", timedelta(days=1)),
        ("ask_timeout", timedelta(days=7)),
        ("notifiers", None),
        ("notifiers", ()),
        ("notifiers", []),
    ],
)
def test_the_default_is_none(make, name, value):
    executed(make, {name: value})


def test_task_instances_of_one_mapped_task_are_checked_each():
    waits: dict[str, Any] = {**WAIT, "completion_timeout": HOUR}
    ignored = {"completion_timeout": HOUR}
    with dag():
        operator: Any = TriggerFlowOperator.partial(task_id="trigger").expand_kwargs([waits, {}, ignored])
    assert operator.unmap(waits).completion_timeout == HOUR
    assert not operator.unmap({}).wait_for_completion
    with pytest.raises(ValueError, match="completion_timeout has no effect"):
        operator.unmap(ignored)


def test_what_only_an_upstream_task_knows_is_checked_when_it_runs():
    with dag():

        @task
        def arguments() -> list[dict[str, Any]]:
            return []

        partial = TriggerFlowOperator.partial(task_id="trigger", ask_timeout=HOUR)
        operator: Any = partial.expand_kwargs(arguments())
    assert operator.unmap(ASK).ask_timeout == HOUR
    with pytest.raises(ValueError, match="ask_timeout has no effect"):
        operator.unmap({"inputs": {}})


def test_what_a_subclass_passes_on_is_given():
    assert Forwarding(task_id="trigger", wait_for_completion=True).completion_timeout == HOUR
    with pytest.raises(ValueError, match="completion_timeout has no effect"):
        Forwarding(task_id="trigger")


def test_a_subclass_takes_what_all_tasks_share():
    two_hours = timedelta(hours=2)
    with dag(default_args={"completion_timeout": two_hours}):
        assert Forwarding(task_id="trigger").completion_timeout == two_hours


def test_a_subclass_may_add_what_is_needed():
    assert Waiting(task_id="trigger", completion_timeout=HOUR).completion_timeout == HOUR
    with dag():
        operator: Any = Waiting.partial(task_id="trigger", completion_timeout=HOUR).expand(inputs=[{}])
    assert operator.unmap({"inputs": {}}).wait_for_completion
