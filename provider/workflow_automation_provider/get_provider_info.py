"""The provider's metadata for Airflow (entry point group ``apache_airflow_provider``), without imports."""

from __future__ import annotations

from typing import Any

__all__ = ["ASSET_SCHEME", "CONNECTION_FIELDS", "FIELD_BEHAVIOUR", "get_provider_info"]

_INTEGRATION = "Workflow Automation"

ASSET_SCHEME = "workflow-automation"
"""The scheme of the URIs of flows and runs as assets."""

_ASSET_URIS = {
    "schemes": [ASSET_SCHEME],
    "handler": "workflow_automation_provider.assets.sanitize_uri",
    "factory": "workflow_automation_provider.assets.create_asset",
    "to_openlineage_converter": "workflow_automation_provider.assets.convert_asset_to_openlineage",
}

CONNECTION_FIELDS: dict[str, dict[str, Any]] = {
    "flow_id": {
        "label": "Flow ID",
        "schema": {"type": ["string", "null"]},
        "description": "The workflow that the API key belongs to, so that uploads need not repeat it.",
    },
    "timeout": {
        "label": "Timeout (seconds)",
        "schema": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "description": "How long connecting, each send, and the whole response may take. Default: 60.",
    },
    "key_expires_on": {
        "label": "Key expires on",
        "schema": {"type": ["string", "null"], "format": "date"},
        "description": "The expiry date of the API key: tasks log a warning from 14 days before, and fail after it.",
    },
    "file_format": {
        "label": "File format",
        "schema": {
            "type": ["string", "null"],
            "examples": [
                '{"name": "name", "content_type": "content_type", "content": "base64"}',
                "base64",
                "data_url",
            ],
        },
        "description": (
            "How an uploaded file is written: a JSON object that maps field names to name, base64, data_url, text, "
            "content_type or size; or one of these values alone."
        ),
    },
    "verify": {
        "label": "Verify the certificate",
        "schema": {"type": ["boolean", "null"], "default": True},
        "description": "Verify the service's TLS certificate.",
    },
    "ca_bundle": {
        "label": "CA bundle",
        "schema": {"type": ["string", "null"], "examples": ["/etc/ssl/certs/internal-ca.pem"]},
        "description": "File or directory of PEM certificates to trust instead of the default ones.",
    },
    "client_cert": {
        "label": "Client certificate",
        "schema": {
            "type": ["string", "null"],
            "examples": ['["/etc/ssl/client.pem", "/etc/ssl/client.key"]'],
        },
        "description": 'PEM file with certificate and key, or a JSON array of two files: ["cert.pem", "key.pem"].',
    },
    "proxy": {
        "label": "Proxy",
        "schema": {"type": ["string", "null"], "examples": ["http://proxy.example:3128"]},
        "description": "URL of a proxy. Default: the proxies from the environment.",
    },
    "headers": {
        "label": "Extra headers",
        "schema": {"type": ["string", "null"], "examples": ['{"X-Team": "data"}']},
        "description": "JSON object of header names and values to send with every request.",
    },
    "allow_http": {
        "label": "Allow plain http",
        "schema": {"type": ["boolean", "null"], "default": False},
        "description": "Allow base URLs without TLS: the API key or a callback's token can then be read in transit.",
    },
    "callback_base_url": {
        "label": "Callback base URL",
        "schema": {"type": ["string", "null"], "examples": ["https://airflow.example"]},
        "description": (
            "URL of Airflow's API server as the service reaches it, for tasks that wait for the end of a run. "
            "Default: Airflow's option [api] base_url."
        ),
    },
    "busy_statuses": {
        "label": "Busy statuses",
        "schema": {"type": ["string", "null"], "examples": ["503", "408,503"]},
        "description": (
            "Statuses, besides 425 and 429, with which this service rejects a request before it has done anything. "
            "If that is not so, a retry starts a second run."
        ),
    },
}
"""
The connection's extras. Airflow 3.2+ renders the form from this table without importing the hook; ``hooks/``
builds the forms of older versions from it, and validates the names of extras against it. Airflow 3.2+ shows
no placeholder for an extra, but suggests its ``examples`` while the user types.
"""

FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden-fields": ["schema", "login", "port", "extra"],
    "relabeling": {"host": "Base URL", "password": "API key"},
    "placeholders": {
        "host": "https://service.example/api",
        "password": "from the trigger section of the workflow's builder page",
        "flow_id": "identifier of the workflow",
        "timeout": "60",
        "key_expires_on": "2027-01-31",
        "file_format": '{"name": "name", "content_type": "content_type", "content": "base64"}',
        "ca_bundle": "/etc/ssl/certs/internal-ca.pem",
        "client_cert": '["/etc/ssl/client.pem", "/etc/ssl/client.key"]',
        "proxy": "http://proxy.example:3128",
        "headers": '{"X-Team": "data"}',
        "callback_base_url": "https://airflow.example",
        "busy_statuses": "503",
    },
}
"""How the form shows the fields that every connection has, and the placeholders of all fields."""


_CONNECTION_TYPE = {
    "connection-type": "workflow_automation",
    "hook-name": "Workflow Automation",
    "hook-class-name": "workflow_automation_provider.hooks.workflow_automation.WorkflowAutomationHook",
    "conn-fields": CONNECTION_FIELDS,
    "ui-field-behaviour": FIELD_BEHAVIOUR,
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, following Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-workflow-automation",
        "name": "Workflow Automation",
        "description": "Trigger flows of the workflow automation service and upload files for their runs.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
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
        "connection-types": [_CONNECTION_TYPE],
        "asset-uris": [_ASSET_URIS],
        "dataset-uris": [_ASSET_URIS],  # Airflow 2
        "extra-links": ["workflow_automation_provider.links.FlowRunLink"],
        "task-decorators": [
            {
                "name": "trigger_flow",
                "class-name": "workflow_automation_provider.decorators.flows.trigger_flow_task",
            }
        ],
        "notifications": ["workflow_automation_provider.notifications.flows.FlowNotifier"],
    }
