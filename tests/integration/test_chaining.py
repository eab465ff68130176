"""What a later task gets of a start: the whole output, a key of it, or a field of the flow's result."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.operators.flows import TriggerFlowOperator

RESULT = {"rows": 3, "files": [{"name": "a.csv"}, {"name": "b.csv"}]}


@pytest.fixture(autouse=True)
def _result(service, workflow_automation_callback_base_url):
    service.callbacks.add(result=RESULT)


def test_a_field_of_the_result_is_an_input_of_the_next_start(run_dag, service):
    result = run_dag("""
        with DAG("chain", schedule=None, start_date=START):
            first = TriggerFlowOperator(task_id="first", inputs={}, wait_for_completion=True)
            rows, files = first.output["result"]["rows"], first.output["result"]["files"]
            TriggerFlowOperator(
                task_id="second",
                inputs={"rows": rows, "deep": {"file": [files[1]["name"]]}, "text": f"{rows} of run {first.output['run_id']}"},
            )

            @task
            def after(file, whole):
                return [file, whole]

            after(files[0]["name"], first.output["result"])
    """)
    assert result.state == "success"
    first, second = service.runs
    assert second.inputs == {
        "rows": 3,
        "deep": {"file": ["b.csv"]},
        "text": f"3 of run {first.run_id}",
    }
    assert result.xcom("after") == ["a.csv", RESULT]


def test_a_field_that_is_not_there_fails_the_task_before_it_starts_anything(run_dag, service, task_errors):
    result = run_dag("""
        with DAG("missing", schedule=None, start_date=START):
            first = TriggerFlowOperator(task_id="first", inputs={}, wait_for_completion=True)
            TriggerFlowOperator(task_id="second", inputs={"a": first.output["result"]["files"][7]})
    """)
    assert result.task_state("second") == "failed"
    assert len(service.runs) == 1
    (error,) = task_errors
    assert "first" in str(error)
    assert "result" in str(error)


def test_a_key_that_no_start_has_is_an_error_of_the_dag():
    with DAG("wrong", schedule=None):
        first = TriggerFlowOperator(task_id="first")
        with pytest.raises(ValueError, match=r"first has no 'rows'.*output\['result'\]\['rows'\]"):
            first.output["rows"]


def no_inputs():
    return {}


@pytest.mark.parametrize("kind", ["decorated", "mapped"])
def test_a_field_by_airflows_own_output_is_an_error_of_the_dag(kind):
    with DAG("wrong", schedule=None):
        output: Any = (
            trigger_flow_task(task_id="first")(no_inputs)()
            if kind == "decorated"
            else TriggerFlowOperator.partial(task_id="first").expand(inputs=[{}]).output
        )
        TriggerFlowOperator(task_id="whole", inputs={"a": output["result"]})
        with pytest.raises(ValueError, match="first has no 'rows'"):
            TriggerFlowOperator(task_id="second", inputs={"a": [output["result"]["rows"]]})
