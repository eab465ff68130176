"""Arguments that are no templates are checked when the DAG is parsed: see also tests/unit/test_argument_errors.py."""

from __future__ import annotations

import pytest

from workflow_automation_provider.execution.retry import FlowRetryPolicy
from workflow_automation_provider.operators.base import UNSET
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator


def trigger(**arguments):
    return TriggerFlowOperator(task_id="trigger", inputs={}, **arguments)


def upload(**arguments):
    return UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", **arguments)


@pytest.mark.parametrize("operator", [trigger, upload])
def test_defaults(operator):
    made = operator()
    assert (made.workflow_automation_conn_id, made.flow_id) == ("workflow_automation_default", None)
    assert (made.send_retry_timeout, made.is_ended) == (60.0, False)
    assert operator(flow_id="a").flow_id == "a"


def test_each_key_of_the_result_is_an_xcom():
    """It is what makes ``trigger.output["run_id"]`` work."""
    assert trigger().multiple_outputs is True
    assert trigger(multiple_outputs=False).multiple_outputs is False


def test_inputs_may_be_left_out():
    assert TriggerFlowOperator(task_id="trigger").inputs == {}
    assert repr(UNSET) == "not given", "as the default of the signature"


# Arguments that both operators have ----------------------------------------------------------------------


@pytest.mark.parametrize("operator", [trigger, upload])
def test_retry_policy(operator):
    own = FlowRetryPolicy()
    assert isinstance(operator().retry_policy, FlowRetryPolicy)
    assert operator(retry_policy=own).retry_policy is own
    assert operator(default_args={"retry_policy": own}).retry_policy is own
