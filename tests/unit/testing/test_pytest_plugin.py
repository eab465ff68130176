"""
The fixtures for DAG authors, and a context without Airflow's database.

What the fixtures do in a pytest run of its own is tested in tests/crash/test_pytest_plugin.py.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from importlib.util import find_spec
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.testing import DEMO_KEY, Key
from workflow_automation_provider.testing.context import StateStore, make_context

from .conftest import Caller

A, B = Key("a", "flow-a"), Key("b", "flow-b")


def connections():
    return {
        name.removeprefix("AIRFLOW_CONN_"): json.loads(value)
        for name, value in os.environ.items()
        if name.startswith("AIRFLOW_CONN_")
    }


class TestOwnKeys:
    @pytest.fixture
    def workflow_automation_keys(self):
        return [A, B]

    def test_each_connection_has_its_own(
        self,
        workflow_automation_connect,
        workflow_automation_connection,
        workflow_automation_service,
    ):
        assert workflow_automation_service.keys == (A, B)
        assert workflow_automation_connection == "workflow_automation_default"
        assert workflow_automation_connect("second", B, extra={"timeout": 5}) == "second"
        plain = {"conn_type": "workflow_automation", "host": workflow_automation_service.base_url}
        assert connections() == {
            "WORKFLOW_AUTOMATION_DEFAULT": {
                **plain,
                "password": "a",
                "extra": {"flow_id": "flow-a"},
            },
            "SECOND": {**plain, "password": "b", "extra": {"flow_id": "flow-b", "timeout": 5}},
        }
        with pytest.raises(ValueError, match="pass one of the keys"):
            workflow_automation_connect("third", Key("c", "flow-c"))


class TestOwnFlows:
    @pytest.fixture
    def workflow_automation_flows(self):
        return ["flow-a"]

    def test_another_is_not_found(self, workflow_automation_service):
        with httpx.Client(base_url=workflow_automation_service.url, trust_env=False) as http:
            call = Caller(http)
            flows = ("flow-a", "demo-flow", "flow-b")
            found = [call.by_path(flow_id=flow).status_code for flow in flows]
        assert found == [201, 201, 404]


@pytest.mark.since_3_3
@pytest.mark.parametrize(
    "first", ["workflow_automation_connection", "workflow_automation_callback_base_url"]
)
def test_connections_have_the_endpoint_whichever_is_made_first(
    request, first, workflow_automation_connect
):
    request.getfixturevalue(first)
    url = request.getfixturevalue("workflow_automation_callback_base_url")
    request.getfixturevalue("workflow_automation_connection")
    workflow_automation_connect("second", extra={"timeout": 5})
    workflow_automation_connect(
        "third", DEMO_KEY, extra={"callback_base_url": "https://airflow.example"}
    )
    assert {name: found["extra"] for name, found in connections().items()} == {
        "WORKFLOW_AUTOMATION_DEFAULT": {"flow_id": "demo-flow", "callback_base_url": url},
        "SECOND": {"flow_id": "demo-flow", "callback_base_url": url, "timeout": 5},
        "THIRD": {"flow_id": "demo-flow", "callback_base_url": "https://airflow.example"},
    }
    assert httpx.put(f"{url}/workflow-automation/callback", trust_env=False).status_code == 405


TASK = SimpleNamespace(task_id="trigger", retries=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_the_variables():
    store = StateStore()
    context = make_context(TASK, store=store, try_number=2, ds="2026-01-31")
    assert context.keys() == {"ti", "dag_run", "task", "task_state_store", "ds"}
    assert (context["task"], context["task_state_store"], context["ds"]) == (
        TASK,
        store,
        "2026-01-31",
    )
    ti, dag_run = context["ti"], context["dag_run"]
    assert (ti.task_id, ti.try_number, ti.max_tries, ti.xcoms) == ("trigger", 2, 3, {})
    assert (dag_run.start_date, dag_run.clear_number) == (datetime(2026, 1, 1, tzinfo=UTC), 0)
    ti.xcom_push(key="a", value=1)
    assert ti.xcoms == {"a": 1}
    other = make_context(TASK, store=None, dag_run="mine")
    assert other.keys() == {"ti", "dag_run", "task"}
    assert (other["dag_run"], other["ti"].id == ti.id) == ("mine", False)


@given(st.text(), JSON)
def test_the_store_returns_what_was_set(key, value):
    store = StateStore()
    assert store.get(key) is None
    assert store.get(key, "default") == "default"
    store.set(key, value, retention="any")
    found = store.get(key, "default")
    assert found == value
    assert found is not value or not isinstance(value, list | dict)
    store.delete(key)
    store.delete(key)
    assert store.get(key) is None


@pytest.fixture
def operators():
    return pytest.importorskip("workflow_automation_provider.operators.flows")


@pytest.mark.usefixtures("workflow_automation_connection")
def test_operators_run_without_a_database(
    operators, workflow_automation_service, workflow_automation_context, tmp_path, monkeypatch
):
    """With templates; any connection to a database fails the test."""

    def no_database(*_, **__):
        raise AssertionError("The database was asked")

    monkeypatch.setattr("sqlalchemy.engine.Engine.connect", no_database)
    task = operators.TriggerFlowOperator(task_id="trigger", files=[f"{tmp_path}/{{{{ ds }}}}.csv"])
    (tmp_path / "2026-01-31.csv").write_text("a,b\n")
    context = workflow_automation_context(task, ds="2026-01-31")
    task.render_template_fields(context)
    result = task.execute(context)
    (uploaded,) = workflow_automation_service.uploads
    assert uploaded.run_id == result["run_id"]
    assert [file["name"] for file in uploaded.files] == ["2026-01-31.csv"]


@pytest.mark.since_3_3
@pytest.mark.usefixtures("workflow_automation_connection")
def test_a_retry_and_a_new_task_instance(operators, workflow_automation_context):
    def execute(try_number, task_id="trigger"):
        trigger = operators.TriggerFlowOperator(task_id=task_id, inputs={}, retries=1)
        return trigger.execute(workflow_automation_context(trigger, try_number=try_number))[
            "run_id"
        ]

    found = [execute(1), execute(2), execute(2, "other"), execute(2), execute(1), execute(2)]
    assert found == ["1001", "1001", "1002", "1001", "1003", "1003"]


def test_there_is_a_store_where_airflow_has_one(workflow_automation_context):
    has_one = find_spec("airflow.models.task_state_store") is not None
    for context in (workflow_automation_context(TASK), make_context(TASK)):
        assert ("task_state_store" in context) is has_one
    if has_one:
        make_context(TASK)["task_state_store"].set("key", 1)
        assert make_context(TASK)["task_state_store"].get("key") is None
