"""
Parsing a DAG file imports nothing that only its tasks need.

And a trigger nothing that only an upload or a mailbox needs.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

PACKAGE = "workflow_automation_provider"

AIRFLOW = """
import json, sys
from pathlib import Path
from workflow_automation_provider.get_provider_info import get_provider_info
get_provider_info()
found = [[*sys.modules]]
import workflow_automation_provider.assets
found.append([*sys.modules])
import workflow_automation_provider.decorators.flows
import workflow_automation_provider.notifications.flows
import workflow_automation_provider.operators.batch
import workflow_automation_provider.operators.flows
found.append([*sys.modules])
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
import workflow_automation_provider.execution.run.trigger_execution
hook = WorkflowAutomationHook()
run_id = hook.trigger_flow({{}}, "demo-flow").run_id
found.append([*sys.modules])
hook.upload_files(run_id, [{file!r}], "demo-flow")
found.append([*sys.modules])
Path({result!r}).write_text(json.dumps(found))
"""

TASKS = {
    *(
        f"{PACKAGE}.execution.{name}"
        for name in (
            "batch.run_batch",
            "batch.batch_record",
            "run.start",
            "record.start_record",
            "record.state_store",
        )
    ),
    *(f"{PACKAGE}.{name}" for name in ("client.protocol", "hooks")),
}


def test_airflow(service, tmp_path):
    """Airflow imports the assets for each that has a URI, and itself fsspec."""
    result, file = tmp_path / "modules.json", tmp_path / "a.txt"
    file.write_text("a")
    script = AIRFLOW.format(result=str(result), file=str(file))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (len(service.runs), len(service.uploads)) == (1, 1)
    by_info, by_asset, by_dag_file, by_trigger, by_upload = map(set, json.loads(result.read_text()))
    assert (
        by_info & {"airflow", "httpx", "httpcore", "pydantic", "tenacity", "wtforms", "starlette"}
        == set()
    )
    names = (
        *("client", "client.checks", "client.file_format", "client.setting_kinds"),
        *("client.settings", "client.urls", "wording", "exceptions", "get_provider_info"),
    )
    expected = {PACKAGE, *(f"{PACKAGE}.{name}" for name in names)}
    assert {name for name in by_info if name.startswith(PACKAGE)} == expected
    assert {name for name in by_asset if name.startswith(PACKAGE)} == expected | {
        f"{PACKAGE}.assets"
    }
    assert by_dag_file & TASKS == set()
    for module in TASKS:
        importlib.import_module(module)
    only_uploads = {"pybase64", f"{PACKAGE}.hooks.files.sources"}
    assert by_trigger & {*only_uploads, f"{PACKAGE}.hooks.mailbox"} == set()
    assert by_upload >= only_uploads


def test_the_lower_bound_of_the_compatibility_layer_is_tested():
    """Other providers would raise it, where the rest is as low as can be."""
    project = Path(__file__).parents[2]
    package = "apache-airflow-providers-common-compat"
    wanted = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    (lowest,) = (text.removeprefix(f"{package}>=") for text in wanted if text.startswith(package))
    assert f"{package}=={lowest}" in (project / "scripts" / "setup.sh").read_text().split()
