"""
The plugin that mounts the callback endpoint and the page **Flow runs** in Airflow's API server.

Every process of Airflow imports this entry point of group ``airflow.plugins``, so it imports each
of them at its first request. Both need Airflow's task state store: before 3.3, nothing is mounted.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.state_store import unsupported_setting

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_PREFIX = CALLBACK_PATH.rpartition("/")[0]

# Relative to Airflow's base URL, which may have a path.
_RUNS = f"{_PREFIX}/runs/".lstrip("/")
_RUN = (
    f"{_RUNS}task?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}"
)
_VIEWS = [
    {
        "name": "Flow runs",
        "href": _RUNS,
        "destination": "nav",
        "url_route": "flow-runs",
        "category": "browse",
    },
    {"name": "Flow run", "href": _RUN, "destination": "task_instance", "url_route": "flow-run"},
]


def _mounted(module: str, prefix: str, name: str) -> dict[str, Any]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = import_module(f"workflow_automation_provider.plugins.{module}")
        await found.app(scope, receive, send)

    return {"app": app, "url_prefix": prefix, "name": f"Workflow Automation {name}"}


# The page first: its prefix is below that of the callbacks.
_APPS = [
    _mounted("page", f"{_PREFIX}/runs", "flow runs"),
    _mounted("callback_endpoint", _PREFIX, "callbacks"),
]

_log = logging.getLogger(__name__)

# Only looked for: importing it would be slow.
_HAS_STORE = find_spec("airflow.models.task_state_store") is not None


class WorkflowAutomationPlugin(AirflowPlugin):
    """Mount the callback endpoint and the page."""

    name = "workflow_automation"
    fastapi_apps = _APPS if _HAS_STORE else []
    external_views = _VIEWS if _HAS_STORE else []

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """
        Log an error if this is an API server that does not keep what tasks record.

        A task checks these settings as well, but only those of its worker.
        """
        super().on_load(*args, **kwargs)  # type: ignore[no-untyped-call]
        # Each API server imports this module, however it is run.
        is_api_server = "airflow.api_fastapi.main" in sys.modules
        if not (_HAS_STORE and is_api_server):
            return

        setting = unsupported_setting()
        if setting:
            _log.error(
                "%s is set for this API server: what a task records of its run is lost. "
                "Leave it unset. Until then, use neither wait_for_completion nor "
                "on_unknown_start='claim'.",
                setting,
            )
