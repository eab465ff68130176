"""The fixtures for DAG authors, each in a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_pytest_plugin(pytester_like):
    assert pytester_like.returncode == 0, pytester_like.stdout + pytester_like.stderr


@pytest.fixture
def pytester_like(tmp_path):
    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]\n'
    )
    (tmp_path / "test_it.py").write_text(
        "import json, os\n"
        "def test_it(workflow_automation_connection, workflow_automation_service):\n"
        "    assert workflow_automation_connection == 'workflow_automation_default'\n"
        "    connection = json.loads(os.environ['AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT'])\n"
        "    assert connection == {'conn_type': 'workflow_automation',\n"
        "        'host': workflow_automation_service.base_url, 'password': 'demo-key',\n"
        "        'extra': {'flow_id': 'demo-flow'}}\n"
        "    assert workflow_automation_service.keys[0].flow_id == 'demo-flow'\n"
        "    assert workflow_automation_service.runs == []\n"
        "def test_after():\n"
        "    assert 'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT' not in os.environ\n"
    )
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:anyio",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
