"""Parsing a DAG file imports nothing that only its tasks need, and a trigger nothing that only an upload needs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# What was imported when the flow was triggered, and when a file was uploaded after that.
SCRIPT = """
import json, sys
from pathlib import Path

{begin}
run_id = trigger()
by_trigger = sorted(sys.modules)
upload(run_id, {files})
Path({result!r}).write_text(json.dumps([by_trigger, sorted(sys.modules)]))
"""

CLIENT = """
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.protocol import trigger_request
client = FlowClient("{base_url}", api_key="{key}")
def trigger():
    return client.send(trigger_request(client.base_url, {{}}, "demo-flow")).run_id
def upload(run_id, files):
    client.send(*client.upload_requests(run_id, files, "demo-flow"))
"""

HOOK = """
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
hook = WorkflowAutomationHook()
def trigger():
    return hook.trigger_flow({{}}, "demo-flow").run_id
def upload(run_id, files):
    hook.upload_files(run_id, files, "demo-flow")
"""


@pytest.fixture
def imported(service, tmp_path):
    """Trigger a flow, then upload a file, in a fresh interpreter; return the modules imported after each."""

    def run(begin, files):
        begin = begin.format(base_url=service.base_url, key=service.keys[0].value)
        result = tmp_path / "modules.json"
        script = SCRIPT.format(begin=begin, files=files, result=str(result))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (len(service.runs), len(service.uploads)) == (1, 1)
        return [{*modules} for modules in json.loads(result.read_text())]

    return run


def test_client(imported):
    only_uploads = {"pybase64"}
    by_trigger, by_upload = imported(CLIENT, [{"a": 1}])
    assert by_trigger & {*only_uploads, "airflow", "fsspec"} == set()
    assert by_upload >= only_uploads


def test_hook(imported, tmp_path):
    """Airflow itself imports fsspec."""
    (tmp_path / "a.txt").write_text("a")
    only_uploads = {
        "pybase64",
        "workflow_automation_provider.hooks.sources",
    }
    by_trigger, by_upload = imported(HOOK, [str(tmp_path / "a.txt")])
    assert by_trigger & only_uploads == set()
    assert by_upload >= only_uploads


def test_dag_file():
    only_tasks = [
        "workflow_automation_provider.client.protocol",
        "workflow_automation_provider.execution.batch",
        "workflow_automation_provider.execution.batch_record",
        "workflow_automation_provider.execution.start",
        "workflow_automation_provider.execution.record",
        "workflow_automation_provider.execution.store",
        "workflow_automation_provider.hooks",
    ]
    script = f"""
import sys
import workflow_automation_provider.decorators.flows
import workflow_automation_provider.notifications.flows
import workflow_automation_provider.operators.batch
import workflow_automation_provider.operators.flows
print(*({{*{only_tasks}}} & {{*sys.modules}}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == ""
    for module in only_tasks:
        importlib.import_module(module)


def test_an_asset():
    """Airflow imports this for every asset with a URI."""
    script = "import workflow_automation_provider.assets, sys; print(*(n for n in sys.modules if n.startswith('workflow_')))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert {*done.stdout.splitlines()[-1].split()} == {
        "workflow_automation_provider",
        "workflow_automation_provider.assets",
        "workflow_automation_provider.client",
        "workflow_automation_provider.client.checks",
        "workflow_automation_provider.client.settings",
        "workflow_automation_provider.exceptions",
        "workflow_automation_provider.get_provider_info",
    }


def test_the_lower_bound_of_the_compatibility_layer_is_tested():
    """Other providers would raise it, where the rest is as low as can be."""
    project = Path(__file__).parents[2]
    package = "apache-airflow-providers-common-compat"
    wanted = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    (lowest,) = (text.removeprefix(f"{package}>=") for text in wanted if text.startswith(package))
    assert f"{package}=={lowest}" in (project / "scripts" / "setup.sh").read_text().split()
