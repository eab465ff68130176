"""References to the output of a start, in the arguments of later tasks."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator


def no_inputs():
    return {}


def test_the_output_of_a_start_that_pushes_none_is_an_error_of_the_dag():
    """The next flow would be started with None as its input."""
    silent: Any = {"do_xcom_push": False}
    with DAG("silent", schedule=None):
        single = TriggerFlowOperator(task_id="single", **silent)
        decorated: Any = trigger_flow_task(task_id="decorated", **silent)(no_inputs)()
        mapped: Any = TriggerFlowOperator.partial(task_id="mapped", **silent).expand(inputs=[{}])
        with pytest.raises(ValueError, match="single has no output with do_xcom_push"):
            TriggerFlowOperator(task_id="next", inputs={"a": single.output["run_id"]})
        for number, output in enumerate((decorated, decorated["run_id"], mapped.output)):
            takers: list[tuple[Any, dict[str, Any]]] = [
                (TriggerFlowOperator, {"inputs": {"a": output}}),
                (TriggerFlowOperator, {"files": [output]}),
                (TriggerFlowBatchOperator, {"batch": [{"a": output}]}),
                (UploadFilesOperator, {"run_id": output, "files": "a"}),
            ]
            for taker, (operator, arguments) in enumerate(takers):
                with pytest.raises(ValueError, match="has no output with do_xcom_push"):
                    operator(task_id=f"taker_{number}_{taker}", **arguments)


def test_a_key_that_no_start_has_is_an_error_of_the_dag():
    """By the output of the operator, which says more, or by Airflow's own."""
    with DAG("wrong", schedule=None):
        single = TriggerFlowOperator(task_id="first")
        with pytest.raises(ValueError, match=r"first has no 'rows'.*output\['result'\]\['rows'\]"):
            single.output["rows"]
        with pytest.raises(ValueError, match=r"first has no 'result' without wait_for_completion"):
            single.output["result"]
        decorated: Any = trigger_flow_task(task_id="decorated", wait_for_completion=True)(
            no_inputs
        )()
        mapped: Any = TriggerFlowOperator.partial(task_id="mapped").expand(inputs=[{}]).output
        for number, output in enumerate((decorated, mapped)):
            TriggerFlowOperator(task_id=f"whole_{number}", inputs={"a": output["result"]})
            with pytest.raises(ValueError, match=f"{output.operator.task_id} has no 'rows'"):
                TriggerFlowOperator(
                    task_id=f"field_{number}", inputs={"a": [output["result"]["rows"]]}
                )
