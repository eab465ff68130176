"""Arguments that both operators have."""

from __future__ import annotations

import re

import pytest

from workflow_automation_provider.execution.retry import FlowRetryPolicy
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator


def trigger(**arguments):
    return TriggerFlowOperator(task_id="trigger", inputs={}, **arguments)


def upload(**arguments):
    return UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", **arguments)


@pytest.mark.parametrize("operator", [trigger, upload])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("request_timeout", [0, -1, "5", True, [1]]),
        ("send_retry_timeout", [-1, "5", None, False]),
    ],
)
def test_seconds(operator, name, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"{name} is {re.escape(repr(value))}: expected seconds"):
            operator(**{name: value})
    assert getattr(operator(**{name: 0.5}), name) == 0.5


@pytest.mark.parametrize("operator", [trigger, upload])
@pytest.mark.parametrize("name", ["request_timeout", "send_retry_timeout"])
def test_longest_time(operator, name):
    """What fails when a request is sent fails when the DAG is parsed."""
    week = 7 * 24 * 3600
    for value in (week + 1, 10**9, 10**400, 1e300, float("inf"), float("-inf"), float("nan")):
        with pytest.raises(
            ValueError, match=rf"{name} is .*: expected seconds, .* at most {week} \(a week\)"
        ):
            operator(**{name: value})
    assert getattr(operator(**{name: week}), name) == week


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (trigger, "flow_id is None: pass an identifier, or leave it out to trigger the flow of the API key."),
        (upload, "flow_id is None: pass an identifier, or leave it out to use the connection's."),
    ],
)
def test_a_flow_id_that_is_none(operator, words):
    with pytest.raises(ValueError, match=f"{re.escape(words)}$"):
        operator(flow_id=None)
    assert operator().flow_id is None
    assert operator(flow_id="a").flow_id == "a"


@pytest.mark.parametrize("operator", [trigger, upload])
@pytest.mark.skipif(
    not hasattr(TriggerFlowOperator, "retry_policy") and not hasattr(trigger(), "retry_policy"),
    reason="Before Airflow 3.3 there are no retry policies",
)
def test_retry_policy(operator):
    own = FlowRetryPolicy()
    assert isinstance(operator().retry_policy, FlowRetryPolicy)
    assert operator(retry_policy=own).retry_policy is own
    assert operator(default_args={"retry_policy": own}).retry_policy is own


@pytest.mark.skipif(
    hasattr(trigger(), "retry_policy"), reason="From Airflow 3.3 on every operator has a retry policy"
)
def test_no_retry_policy_where_airflow_knows_none():
    assert not hasattr(trigger(), "retry_policy")
