"""
``@task.trigger_flow`` with a context of its own.

When the function is called, and what becomes of what it returns.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from typing import Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.exceptions import (
    BusyError,
    InvalidRequestError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.operators.flows import TriggerFlowOperator

from ..starts import WithoutTextError, requests


def operator_of(result: Any) -> Any:
    """Return the operator of a decorated function that was called."""
    return result.operator


class Function:
    """A function to decorate, which counts its calls and returns or raises what it is told."""

    def __init__(self):
        self.calls = 0
        self.returns: list[object] = [{"a": 1}]

    def operator(self, **arguments):
        def trigger():
            self.calls += 1
            returned = self.returns[min(self.calls, len(self.returns)) - 1]
            if isinstance(returned, Exception):
                raise returned
            return returned() if callable(returned) else returned

        decorate = trigger_flow_task(**{"send_retry_timeout": 0, **arguments})
        return operator_of(decorate(trigger)())


@pytest.fixture
def function():
    return Function()


def inputs_of(service):
    return [run.inputs for run in service.runs]


class TestInputs:
    def test_arguments_precede_the_context(self, service, context):
        @trigger_flow_task
        def trigger(customer, *, ti, task, **more):
            return {"customer": customer, "of": ti.task_id, "task": task, "more": "dag_run" in more}

        now = context()
        operator_of(cast("Any", trigger)("Ada", task="mine")).execute(now)
        assert inputs_of(service) == [
            {"customer": "Ada", "of": "trigger", "task": "mine", "more": True}
        ]
        assert now["task"] != "mine"

    def test_the_function_may_write_the_files(self, service, store, context, function, tmp_path):
        path = tmp_path / "rows.csv"
        function.returns = [lambda: path.write_text("a,b") and {"a": 1}]
        function.operator(files=str(path)).execute(context(store))
        assert [file["name"] for upload in service.uploads for file in upload.files] == ["rows.csv"]

    @pytest.mark.parametrize("text", ["{{ n }}", "{% for", "report.sql"])
    def test_text_that_looks_like_a_template_is_sent_as_it_is(
        self, service, context, function, text
    ):
        """It may come from outside, and a template can read variables and connections."""
        returned = {text: [text, {"deep": text}]}
        function.returns = [returned]
        operator = function.operator()
        operator.execute({**context(), "n": 1})
        assert inputs_of(service) == [returned]
        assert operator.inputs == returned

    @pytest.mark.parametrize("value", [None, [1]])
    def test_must_be_a_mapping(self, service, context, function, value):
        function.returns = [value]
        with pytest.raises(InvalidRequestError, match="trigger") as caught:
            function.operator().execute(context())
        assert isinstance(caught.value, AirflowFailException)
        assert "Return {}" in str(caught.value)
        assert requests(service) == 0

    @pytest.mark.parametrize(
        ("fault", "state", "is_shown"),
        [(None, "success", True), ("reject", "failed", True), ("busy", "up_for_retry", False)],
    )
    def test_are_shown_unless_the_task_is_retried(
        self, service, context, function, fault, state, is_shown
    ):
        if fault:
            service.faults.add(fault)
        operator = function.operator()
        now = context()
        with contextlib.suppress(WorkflowAutomationError):
            operator.execute(now)
        now["ti"].state = state
        assert operator.overwrite_rtif_after_execution is is_shown

    def test_are_not_shown_where_there_are_none(self, service, context, function):
        function.returns = [RuntimeError("not there")]
        operator = function.operator()
        assert operator.inputs == "DYNAMIC (set during execution)"
        with pytest.raises(RuntimeError):
            operator.execute(context())
        assert not operator.overwrite_rtif_after_execution


class TestTries:
    def test_a_retry_that_starts_a_run_calls_it_again(self, service, store, context, function):
        function.returns = [{"a": 1}, {"a": 2}]
        service.faults.add("busy")
        with pytest.raises(BusyError):
            function.operator().execute(context(store))
        function.operator().execute(context(store, try_number=2))
        assert function.calls == 2
        assert inputs_of(service) == [{"a": 2}]

    def test_requests_that_are_sent_again_do_not_call_it(self, service, store, context, function):
        service.faults.add("busy")
        function.operator(send_retry_timeout=60).execute(context(store))
        assert (function.calls, requests(service)) == (1, 2)

    @pytest.mark.parametrize("is_lost", [False, True])
    def test_a_task_that_continues_does_not_call_it(self, world, function, is_lost):
        """Not even without the task's record."""
        task = world(function.operator(wait_for_completion=True, retries=2))
        task.try_()
        for key in [*task.rows.entries] if is_lost else ():
            task.rows.store(None, "delete", key)
        task.try_()
        state = "failed" if is_lost else "awaiting_input"
        assert (task.state, function.calls, len(task.flow.runs)) == (state, 1, 1)


@pytest.mark.parametrize(
    "error",
    [
        AirflowSkipException("nothing to do"),
        OutcomeUnknownError("of something else"),
        WithoutTextError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_the_function_stay_as_they_are(service, store, context, function, error):
    """Even those that a start would raise: they are not about this one."""
    function.returns = [error]
    with pytest.raises(type(error)) as caught:
        function.operator(on_unknown_start="start_again").execute(context(store))
    assert caught.value is error
    assert error.__context__ is None
    assert not isinstance(error, AirflowFailException)
    assert store.entries == {}
    assert requests(service) == 0


class TestArguments:
    def test_reach_the_operator(self, function):
        operator = function.operator(
            flow_id="f", wait_for_completion=True, callback_input="url", retries=7, task_id="mine"
        )
        assert (operator.flow_id, operator.callback_input, operator.retries) == ("f", "url", 7)
        assert operator.task_id == "mine"
        assert operator.multiple_outputs is True
        assert function.operator(multiple_outputs=False).multiple_outputs is False

    def test_annotated_functions(self):
        @trigger_flow_task
        def trigger() -> typing.Mapping[str, str]:
            return {}

        assert operator_of(trigger()).multiple_outputs is True

    def test_types_are_those_of_the_operator(self):
        """What an editor shows are the operator's arguments, with its defaults and types."""
        _, with_arguments = typing.get_overloads(trigger_flow_task)
        shown = dict(inspect.signature(with_arguments).parameters)
        taken = dict(inspect.signature(TriggerFlowOperator).parameters)
        del shown["python_callable"], shown["inputs"], taken["inputs"]
        assert shown == taken
