"""What Airflow is told about the package."""

from __future__ import annotations

import importlib.resources
import json
import sys
from importlib.metadata import entry_points
from pathlib import Path

import jsonschema

from workflow_automation_provider.get_provider_info import get_provider_info
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

ROOT = Path(__file__).parents[2]


def schema_of(name):
    return json.loads(importlib.resources.files("airflow").joinpath(name).read_text())


def test_provider_info_is_what_airflow_expects():
    """And has no key that its schema does not know, on the newest Airflow as well."""
    schema = schema_of("provider_info.schema.json")
    jsonschema.validate(get_provider_info(), schema)
    assert get_provider_info().keys() <= schema["properties"].keys()


def test_the_integration_is_what_airflows_own_providers_have():
    """Their stricter schema, but for the URL of a site, which this one does not have."""
    item = schema_of("provider.yaml.schema.json")["properties"]["integrations"]["items"]
    item["required"].remove("external-doc-url")
    (integration,) = get_provider_info()["integrations"]
    jsonschema.validate(integration, item)
    for path in [integration["logo"], *integration["how-to-guide"]]:
        assert (ROOT / path.removeprefix("/")).is_file()


def test_airflow_shows_the_provider(airflow_home, capsys):
    from airflow.cli import cli_parser

    for command in ("get airflow-provider-workflow-automation --full", "notifications", "links"):
        parsed = cli_parser.get_parser().parse_args(["providers", *command.split(), "-o", "json"])
        parsed.func(parsed)
    shown = capsys.readouterr().out
    for name in ("workflow_automation", "FlowNotifier", "FlowRunLink", "trigger_flow"):
        assert name in shown


def test_its_plugin_is_that_of_the_entry_point():
    (plugin,) = get_provider_info()["plugins"]
    (entry,) = entry_points(group="airflow.plugins", name=plugin["name"])
    assert entry.value.replace(":", ".") == plugin["plugin-class"]
    assert entry.load().name == plugin["name"]


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
