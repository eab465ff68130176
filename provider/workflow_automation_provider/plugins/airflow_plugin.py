"""
The plugin that mounts the callback endpoint in Airflow's API server (entry point group ``airflow.plugins``).

Every process of Airflow imports this module, so it imports the endpoint only at the first request. Airflow 2
has no such server, and ignores the plugin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

try:
    from airflow.providers.common.compat.sdk import AirflowPlugin
except ImportError:  # in its versions for Airflow 3.0
    from airflow.plugins_manager import AirflowPlugin  # type: ignore[assignment]  # the same class there

from workflow_automation_provider.execution.callback import PATH

__all__ = ["WorkflowAutomationPlugin"]

_PREFIX = PATH.rpartition("/")[0]


async def _callback_endpoint(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    from workflow_automation_provider.plugins.callback_endpoint import app

    await app(scope, receive, send)


class WorkflowAutomationPlugin(AirflowPlugin):
    """Mounts the callback endpoint."""

    name = "workflow_automation"
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        {"app": _callback_endpoint, "url_prefix": _PREFIX, "name": "Workflow Automation callbacks"}
    ]
