"""What Airflow is told about the package."""

from __future__ import annotations

import importlib.resources
import json
import sys

import jsonschema

from workflow_automation_provider.get_provider_info import get_provider_info
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


def test_provider_info_is_what_airflow_expects():
    schema = importlib.resources.files("airflow").joinpath("provider_info.schema.json").read_text()
    jsonschema.validate(get_provider_info(), json.loads(schema))


def test_connection_type_is_the_hooks():
    (connection_type,) = get_provider_info()["connection-types"]
    assert connection_type["connection-type"] == WorkflowAutomationHook.conn_type
    assert connection_type["hook-name"] == WorkflowAutomationHook.hook_name
    module, _, name = connection_type["hook-class-name"].rpartition(".")
    assert getattr(sys.modules[module], name) is WorkflowAutomationHook


def test_every_module_and_class_it_names_exists():
    info = get_provider_info()
    for entry in (*info["operators"], *info["hooks"]):
        for module in entry["python-modules"]:
            importlib.import_module(module)
    decorators = [decorator["class-name"] for decorator in info["task-decorators"]]
    (assets,) = info["asset-uris"]
    paths = [assets["handler"], assets["factory"], assets["to_openlineage_converter"]]
    for path in (*info["extra-links"], *info["notifications"], *decorators, *paths):
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
