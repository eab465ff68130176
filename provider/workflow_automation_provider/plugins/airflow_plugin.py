"""
The plugin that mounts the callback endpoint and the page **Flow runs** in Airflow's API server.

It is the entry point of group ``airflow.plugins``. Every process of Airflow imports this module, so it imports both only
at the first request. Airflow 2 has no such server, and ignores the plugin.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

try:
    from airflow.providers.common.compat.sdk import AirflowPlugin
except ImportError:  # in its versions for Airflow 3.0
    from airflow.plugins_manager import AirflowPlugin  # type: ignore[assignment]  # the same class there

from workflow_automation_provider.execution.callback import PATH

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_PREFIX = PATH.rpartition("/")[0]
_RUNS_PREFIX = f"{_PREFIX}/runs"

# Relative to Airflow's base URL, which may have a path.
_RUNS = f"{_RUNS_PREFIX.lstrip('/')}/"
_VIEWS = [
    {
        "name": "Flow runs",
        "href": _RUNS,
        "destination": "nav",
        "url_route": "flow-runs",
        "category": "browse",
    },
    {
        "name": "Flow run",
        "href": f"{_RUNS}task?dag_id={{DAG_ID}}&run_id={{RUN_ID}}&task_id={{TASK_ID}}&map_index={{MAP_INDEX}}",
        "destination": "task_instance",
        "url_route": "flow-run",
    },
]


async def _callback_endpoint(scope: Scope, receive: Receive, send: Send) -> None:
    from workflow_automation_provider.plugins.callback_endpoint import app

    await app(scope, receive, send)


async def _flow_runs(scope: Scope, receive: Receive, send: Send) -> None:
    from workflow_automation_provider.plugins.runs_page import app

    await app(scope, receive, send)


def _can_show_runs() -> bool:
    """Return whether this Airflow keeps what the page shows (3.3+), without importing anything for it."""
    try:
        return find_spec("airflow.models.task_state_store") is not None
    except ImportError:
        return False


class WorkflowAutomationPlugin(AirflowPlugin):
    """Mounts the callback endpoint and the page."""

    name = "workflow_automation"
    # The page first: whatever is below the prefix of the other would be taken for a callback.
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        *(
            [{"app": _flow_runs, "url_prefix": _RUNS_PREFIX, "name": "Workflow Automation flow runs"}]
            if _can_show_runs()
            else []
        ),
        {"app": _callback_endpoint, "url_prefix": _PREFIX, "name": "Workflow Automation callbacks"},
    ]
    external_views = _VIEWS if _can_show_runs() else []
