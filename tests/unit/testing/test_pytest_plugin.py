"""The fixtures for DAG authors. What they do in a pytest run of its own is tested in tests/crash/test_pytest_plugin.py."""

from __future__ import annotations

import json
import os

import httpx
import pytest

from workflow_automation_provider.testing import DEMO_KEY, Key

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
        self, workflow_automation_connect, workflow_automation_connection, workflow_automation_service
    ):
        assert workflow_automation_service.keys == (A, B)
        assert workflow_automation_connection == "workflow_automation_default"
        assert workflow_automation_connect("second", B, extra={"timeout": 5}) == "second"
        plain = {"conn_type": "workflow_automation", "host": workflow_automation_service.base_url}
        assert connections() == {
            "WORKFLOW_AUTOMATION_DEFAULT": {**plain, "password": "a", "extra": {"flow_id": "flow-a"}},
            "SECOND": {**plain, "password": "b", "extra": {"flow_id": "flow-b", "timeout": 5}},
        }
        with pytest.raises(ValueError, match="pass one of the keys"):
            workflow_automation_connect("third", Key("c", "flow-c"))


@pytest.mark.since_3_3
@pytest.mark.parametrize("first", ["workflow_automation_connection", "workflow_automation_callback_base_url"])
def test_connections_have_the_endpoint_whichever_is_made_first(request, first, workflow_automation_connect):
    request.getfixturevalue(first)
    url = request.getfixturevalue("workflow_automation_callback_base_url")
    request.getfixturevalue("workflow_automation_connection")
    workflow_automation_connect("second", extra={"timeout": 5})
    workflow_automation_connect("third", DEMO_KEY, extra={"callback_base_url": "https://airflow.example"})
    assert {name: found["extra"] for name, found in connections().items()} == {
        "WORKFLOW_AUTOMATION_DEFAULT": {"flow_id": "demo-flow", "callback_base_url": url},
        "SECOND": {"flow_id": "demo-flow", "callback_base_url": url, "timeout": 5},
        "THIRD": {"flow_id": "demo-flow", "callback_base_url": "https://airflow.example"},
    }
    assert httpx.put(f"{url}/workflow-automation/callback", trust_env=False).status_code == 405
