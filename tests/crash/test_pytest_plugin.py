"""
The fixtures for DAG authors in a pytest run of its own.

In an Airflow whose connections lead to a real service.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BACKEND = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
CONFTEST = """\
pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]
import atexit, os
atexit.register(lambda: print(os.environ["AIRFLOW__WORKERS__SECRETS_BACKEND"]))
"""
TESTS = """
import json, os
import httpx, pytest

def test_connection(workflow_automation_connection, workflow_automation_service):
    from airflow.sdk import BaseHook
    found = BaseHook.get_connection(workflow_automation_connection)
    assert found.host == workflow_automation_service.base_url

def test_after():
    assert not any(name.startswith('AIRFLOW_CONN_') for name in os.environ)

@pytest.mark.parametrize('scripted, path', [
    ({'inputs': {'day': 'friday'}}, 'callback'), ({'status': None}, 'callback'), ({'flow_id': 'x'}, 'elsewhere')])
def test_callback(workflow_automation_service, workflow_automation_callback_base_url, scripted, path):
    service, base_url = workflow_automation_service, workflow_automation_callback_base_url
    service.callbacks.add(**scripted)
    url = f'{base_url}/workflow-automation/callback?token=hush' if path == 'callback' else 'http://127.0.0.1:9/'
    inputs = {'day': 'monday', 'callback_url': url}
    httpx.post(f'{service.base_url}/flows/f/trigger', json={'inputs': inputs}, trust_env=False)
    while 'inputs' in scripted and not service.journal.callbacks():
        pass
"""


@pytest.fixture
def run_pytest(tmp_path: Path) -> Callable[..., str]:
    """
    Run the tests, with nothing but the plugin.

    Return what is printed, and the secrets backend at the end.
    """
    home = tmp_path / "airflow"
    home.mkdir()
    connection = {"conn_type": "workflow_automation", "host": "https://real.invalid"}
    (home / "connections.json").write_text(json.dumps({"workflow_automation_default": connection}))
    arguments = json.dumps({"connections_file_path": str(home / "connections.json")})
    (home / "airflow.cfg").write_text(
        f"[secrets]\nbackend = {BACKEND}\nbackend_kwargs = {arguments}\n"
    )
    env = {
        **{name: text for name, text in os.environ.items() if not name.startswith("AIRFLOW_")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__WORKERS__SECRETS_BACKEND": BACKEND,
        "AIRFLOW__WORKERS__SECRETS_BACKEND_KWARGS": arguments,
    }

    def run(conftest: str, *options: str) -> str:
        (tmp_path / "conftest.py").write_text(CONFTEST + conftest)
        (tmp_path / "test_it.py").write_text(TESTS)
        options = ("-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:anyio", *options)
        command = [sys.executable, "-m", "pytest", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
        printed, _, after = done.stdout.strip().rpartition("\n")
        assert after == BACKEND, done.stdout + done.stderr
        return printed

    return run


def test_the_service_is_asked_and_no_callback_may_be_missing(
    run_pytest: Callable[..., str],
) -> None:
    """A test fails whose run would call the endpoint, but for the callback that is missing."""
    printed = run_pytest("")
    assert "5 passed, 1 error" in printed, printed
    assert "no callback matches run 1001 of flow f" in printed
    assert "'day': 'monday'" in printed
    assert "'inputs': {'day': 'friday'}" in printed
    assert "hush" not in printed


def test_a_secrets_backend_that_is_asked_anyway_fails_the_test(
    run_pytest: Callable[..., str],
) -> None:
    """
    Airflow was imported, and has read a connection.

    Before the plugin could turn the backends off.
    """
    printed = run_pytest(
        "from airflow.sdk import BaseHook\n"
        'assert BaseHook.get_connection("workflow_automation_default").host == "https://real.invalid"\n',
        "-k",
        "test_connection",
    )
    assert "'workflow_automation_default' from a secrets backend" in printed
