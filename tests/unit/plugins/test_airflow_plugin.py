"""The plugin, as Airflow loads it."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from types import ModuleType

import pytest

from workflow_automation_provider.plugins.airflow_plugin import WorkflowAutomationPlugin

API_SERVER = "airflow.api_fastapi.main"


def test_airflow_lists_it(airflow_home, capfd):
    from airflow.cli import cli_parser

    command = cli_parser.get_parser().parse_args(["plugins", "--output", "json"])
    capfd.readouterr()
    command.func(command)
    printed = capfd.readouterr().out
    plugins = json.loads(printed[printed.index("[") :])
    (ours,) = (plugin for plugin in plugins if plugin["name"] == "workflow_automation")
    assert "airflow-provider-workflow-automation" in ours["source"]


IMPORTS = """
import json, sys
import airflow.plugins_manager
from workflow_automation_provider.get_provider_info import get_provider_info
get_provider_info()
found = [[*sys.modules]]
import workflow_automation_provider.plugins.airflow_plugin
found.append([*sys.modules])
import workflow_automation_provider.plugins.callback_endpoint
import workflow_automation_provider.plugins.callback_store
modules = {name: module for name, module in sys.modules.items() if name.startswith("workflow_")}
found.append([name for name, module in modules.items() if not hasattr(module, "__path__")])
print(json.dumps(found), file=sys.stderr)
"""


@pytest.mark.since_3_3
def test_what_it_and_the_endpoint_import():
    """
    Every process of Airflow loads the plugin, tasks too, and needs no endpoint for that.

    The endpoint needs a dozen files of the package, the plugin's own beside them: what is known of
    a start, and what it is made of. No task, no operator and no page.
    """
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    before, by_plugin, files = map(set, json.loads(done.stderr.splitlines()[-1]))
    imported = by_plugin - before
    assert {name for name in imported if not name.startswith("workflow_automation_provider")} <= {
        "hashlib", "_hashlib", "_blake2", "hmac", "secrets", "math", "uuid", "_uuid", "html", "html.entities"
    }  # fmt: skip
    assert "workflow_automation_provider.plugins.callback_endpoint" not in imported
    assert "workflow_automation_provider.plugins.callback_store" not in imported
    assert not {name for name in imported if name.endswith(".page")}

    files -= {*before, "workflow_automation_provider.plugins.airflow_plugin"}
    assert "workflow_automation_provider.execution.record.callback_decision" in files
    assert len(files) <= 12, sorted(files)


@pytest.mark.parametrize("has_store", [False, True])
def test_mounted_only_where_airflow_has_a_store(monkeypatch, has_store):
    path = importlib.import_module(WorkflowAutomationPlugin.__module__).__file__
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if has_store else None)
    plugin = runpy.run_path(str(path))["WorkflowAutomationPlugin"]
    prefixes = [mounted["url_prefix"] for mounted in plugin.fastapi_apps]
    places = [view["destination"] for view in plugin.external_views]
    if has_store:
        assert prefixes == ["/workflow-automation/runs", "/workflow-automation"]
        assert places == ["nav", "task_instance"]
    else:
        assert prefixes == places == []


@pytest.mark.since_3_3
@pytest.mark.parametrize(
    "setting", ["AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "AIRFLOW__STATE_STORE__BACKEND"]
)
def test_error_where_the_api_server_cannot_keep_what_tasks_record(monkeypatch, caplog, setting):
    def loaded(*modules):
        """Return what is logged when Airflow loads the plugin, in a process with these modules."""
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, API_SERVER, raising=False)
            for module in modules:
                patch.setitem(sys.modules, module, ModuleType(module))
            WorkflowAutomationPlugin.on_load()
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    assert loaded(API_SERVER) == []
    monkeypatch.setenv(setting, "True")
    ((level, message),) = loaded(API_SERVER)
    assert level == "ERROR"
    assert f"[state_store] {setting.removeprefix('AIRFLOW__STATE_STORE__').lower()}" in message
    # A worker's settings are checked by its tasks, and only if they need them.
    assert loaded() == []


@pytest.mark.since_3_3
def test_airflow_shows_the_page(airflow_home):
    from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse

    for view in WorkflowAutomationPlugin.external_views:
        assert ExternalViewResponse.model_validate(view).href.startswith(
            "workflow-automation/runs/"
        )
