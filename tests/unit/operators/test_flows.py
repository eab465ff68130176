"""Arguments that are no templates are checked when the DAG is parsed: see also tests/unit/test_argument_errors.py."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.retry import FlowRetryPolicy
from workflow_automation_provider.operators.base import UNSET
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator


def trigger(**arguments):
    return TriggerFlowOperator(task_id="trigger", inputs={}, **arguments)


def upload(**arguments):
    return UploadFilesOperator(task_id="upload", run_id="1", files="a.csv", **arguments)


@pytest.mark.parametrize("name", ["files_per_request", "max_request_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1", True])
def test_limits(name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}:")):
        upload(**{name: value})


@pytest.mark.parametrize("operator", [trigger, upload])
def test_defaults(operator):
    made = operator()
    assert (made.workflow_automation_conn_id, made.flow_id) == ("workflow_automation_default", None)
    assert (made.request_timeout, made.send_retry_timeout, made.is_ended) == (None, 60.0, False)
    assert operator(flow_id="a").flow_id == "a"


def test_each_key_of_the_result_is_an_xcom():
    """It is what makes ``trigger.output["run_id"]`` work."""
    assert trigger().multiple_outputs is True
    assert trigger(multiple_outputs=False).multiple_outputs is False


def test_what_an_upload_is_given_it_keeps():
    given = {
        "file_format": "base64",
        "files_per_request": 1,
        "max_request_bytes": 2,
        "on_unknown_upload": "fail",
    }
    made = upload(**given)
    assert {name: getattr(made, name) for name in given} == given


def test_inputs_may_be_left_out():
    assert TriggerFlowOperator(task_id="trigger").inputs == {}
    assert repr(UNSET) == "not given", "as the default of the signature"


@pytest.mark.parametrize(
    ("name", "needed", "longest"),
    [
        ("completion_timeout", {"wait_for_completion": True}, timedelta(days=365)),
        ("heartbeat_timeout", {"wait_for_completion": True}, timedelta(days=365)),
        ("ask_timeout", {"on_unknown_start": "ask"}, timedelta(days=365)),
        ("claim_timeout", {"on_unknown_start": "claim"}, timedelta(days=1)),
    ],
)
def test_times(name, needed, longest):
    for value in (0, 60, "PT1H", timedelta(), longest + timedelta.resolution):
        with pytest.raises(ValueError, match=f"{name} is .* at most {longest.days} days"):
            trigger(**needed, **{name: value})
    for value in (timedelta.resolution, longest):
        assert getattr(trigger(**needed, **{name: value}), name) == value


@pytest.mark.parametrize("name", ["completion_timeout", "ask_timeout", "claim_timeout"])
def test_a_time_that_is_none(name):
    with pytest.raises(ValueError, match=f"{name} is None"):
        trigger(**{name: None})


def test_on_run_failed():
    with pytest.raises(ValueError, match="on_run_failed 'retry' is not supported"):
        trigger(wait_for_completion=True, on_run_failed="retry")


# Arguments that both operators have ----------------------------------------------------------------------


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
        with pytest.raises(ValueError, match=re.escape(f"{name} is {value!r}:")):
            operator(**{name: value})
    assert getattr(operator(**{name: 0.5}), name) == 0.5


@pytest.mark.parametrize("operator", [trigger, upload])
@pytest.mark.parametrize("name", ["request_timeout", "send_retry_timeout"])
def test_longest_time(operator, name):
    """What fails when a request is sent fails when the DAG is parsed."""
    week = 7 * 24 * 3600
    for value in (week + 1, 10**9, 10**400, 1e300, float("inf"), float("-inf"), float("nan")):
        with pytest.raises(ValueError, match=f"{name} is .*{week}"):
            operator(**{name: value})
    assert getattr(operator(**{name: week}), name) == week


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


def test_inside_another_task(service, context):
    with pytest.raises(InvalidRequestError) as caught:
        trigger(flow_id="a").execute(context(task_id="another"))
    for name in ("TriggerFlowOperator", "'trigger'", "'another'"):
        assert name in caught.value.message
    assert "trigger_flow_once" in caught.value.next_step
    assert caught.value.flow_id == "a"
    assert service.journal.requests() == []
