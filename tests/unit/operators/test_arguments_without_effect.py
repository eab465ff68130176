"""Arguments that would be ignored: an error where the DAG is parsed, or where a mapped task runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import airflow
import pendulum
import pytest
from airflow.providers.common.compat.sdk import DAG, TaskGroup, task

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.operators.flows import TriggerFlowOperator

AIRFLOW_2 = airflow.__version__.startswith("2.")
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

DEFAULTS = {
    "callback_input": "callback_url",
    "completion_timeout": timedelta(days=1),
    "ask_timeout": timedelta(days=7),
    "notifiers": None,
}
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


@pytest.mark.parametrize(("name", "value", "needed", "words"), NEEDS)
def test_without_what_it_needs_it_is_an_error_that_says_so(name, value, needed, words):
    with pytest.raises(
        ValueError, match=f"{name} has no effect without {words}: add {words}, or leave {name} out"
    ):
        executed(plain, {name: value})
    executed(plain, {name: value, **needed})


@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)
def test_each_way_to_make_a_task_is_checked(make):
    with pytest.raises(ValueError, match=r"ask_timeout has no effect"):
        executed(make, {"ask_timeout": HOUR})
    executed(make, {"ask_timeout": HOUR, **ASK})
    # What it needs may be shared.
    executed(make, {"completion_timeout": HOUR}, default_args=WAIT)
    executed(make, {"completion_timeout": HOUR}, group_args=WAIT)
    executed(make, DEFAULTS)
    with pytest.raises(ValueError, match=r"callback_input has no effect"):
        executed(make, {"callback_input": "there"}, default_args={**SHARED, "callback_input": "other"})


@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)
def test_what_all_tasks_share_is_none(make):
    is_mapped_over = make in (mapped_over_itself, mapped_over_several)
    arguments: dict[str, Any] = {"inputs": {"n": 1}} if is_mapped_over else {}
    assert executed(make, arguments, default_args=SHARED).completion_timeout == HOUR
    assert executed(make, arguments, group_args=SHARED).completion_timeout == HOUR
    # Airflow 2 makes a mapped function's own default_args its arguments.
    if not is_mapped_over and not (AIRFLOW_2 and make.__name__.startswith("mapped_function")):
        found = executed(make, {"default_args": SHARED})
        # Airflow leaves the own default_args of a mapped task out where it runs.
        assert make in MAPPED or found.completion_timeout == HOUR


@pytest.mark.parametrize("make", [plain, mapped_function])
@pytest.mark.parametrize("needed", [{"wait_for_completion": False}, {"on_unknown_start": "start_again"}])
def test_a_task_may_turn_off_what_the_others_do(make, needed):
    executed(make, needed, default_args={**SHARED, **WAIT, **ASK})
    with pytest.raises(ValueError, match="has no effect"):
        executed(
            make,
            {"completion_timeout": HOUR, "ask_timeout": HOUR, **needed},
            default_args={**WAIT, **ASK},
        )


@pytest.mark.parametrize("empty", [(), []])
def test_no_notifiers_are_the_default(empty):
    executed(plain, {"notifiers": empty})


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
