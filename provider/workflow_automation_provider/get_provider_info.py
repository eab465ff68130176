"""
The provider's metadata for Airflow (entry point group ``apache_airflow_provider``).

This module imports next to nothing.
"""

from __future__ import annotations

from typing import Any

from workflow_automation_provider.client.settings import CONNECTION_FIELDS, FIELD_BEHAVIOUR

__all__ = ["ASSET_SCHEME", "get_provider_info"]

_INTEGRATION = "Workflow Automation"

ASSET_SCHEME = "workflow-automation"
"""The scheme of the URIs of flows as assets."""

_ASSET_URIS = {
    "schemes": [ASSET_SCHEME],
    "handler": "workflow_automation_provider.assets.sanitize_uri",
    "factory": "workflow_automation_provider.assets.create_asset",
    "to_openlineage_converter": "workflow_automation_provider.assets.convert_asset_to_openlineage",
}

_CONNECTION_TYPE = {
    "connection-type": "workflow_automation",
    "hook-name": "Workflow Automation",
    "hook-class-name": (
        "workflow_automation_provider.hooks.workflow_automation.WorkflowAutomationHook"
    ),
    "conn-fields": CONNECTION_FIELDS,
    "ui-field-behaviour": FIELD_BEHAVIOUR,
}


# As in the info of Airflow's own providers, a path in the repository.
_GUIDES = ["trigger", "wait", "batch", "uploads", "taskflow"]

_INTEGRATION_ENTRY = {
    "integration-name": _INTEGRATION,
    "how-to-guide": [f"/docs/{guide}.md" for guide in _GUIDES],
    "logo": "/docs/integration-logos/workflow-automation.svg",
    "tags": ["service"],
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, following Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-workflow-automation",
        "name": "Workflow Automation",
        "description": (
            "Trigger flows of the workflow automation service and upload files for their runs."
        ),
        "integrations": [_INTEGRATION_ENTRY],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    "workflow_automation_provider.operators.flows",
                    "workflow_automation_provider.operators.uploads",
                    "workflow_automation_provider.operators.batch",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["workflow_automation_provider.hooks.workflow_automation"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["workflow_automation_provider.triggers.mailbox"],
            }
        ],
        "connection-types": [_CONNECTION_TYPE],
        "asset-uris": [_ASSET_URIS],
        "extra-links": ["workflow_automation_provider.links.FlowRunLink"],
        "task-decorators": [
            {
                "name": "trigger_flow",
                "class-name": "workflow_automation_provider.decorators.flows.trigger_flow_task",
            }
        ],
        "notifications": ["workflow_automation_provider.notifications.flows.FlowNotifier"],
        # Airflow loads it by its entry point; this tells of it.
        "plugins": [
            {
                "name": "workflow_automation",
                "plugin-class": (
                    "workflow_automation_provider.plugins.airflow_plugin.WorkflowAutomationPlugin"
                ),
            }
        ],
    }
