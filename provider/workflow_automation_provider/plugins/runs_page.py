"""
The page **Flow runs** and the tab **Flow run**, as an ASGI application for Airflow's API server.

Airflow decides who sees what, by its own dependencies: who is logged in, may read task instances, and which DAGs. A
browser without a login is sent to Airflow's. There is nothing but GET, and nothing is written.
"""

from __future__ import annotations

import logging
import math
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from workflow_automation_provider.plugins import runs_metadata, runs_view
from workflow_automation_provider.plugins.metadata_session import UnavailableError
from workflow_automation_provider.plugins.runs_conversation import task_page
from workflow_automation_provider.plugins.runs_state import conversations
from workflow_automation_provider.plugins.runs_style import HEADERS
from workflow_automation_provider.plugins.runs_text import escaped

PREFIX = "/workflow-automation/runs"
"""Where it is mounted."""

_logger = logging.getLogger(__name__)

# An open page costs less than 1 % of a core: it refreshes itself the less often the longer it takes to read. Half
# of the share is for what is not measured: the login, the HTML, and the database.
_MIN_REFRESH, _MAX_REFRESH, _SHARE = 5, 120, 0.005

app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
"""The application, which Airflow mounts there."""

_may_read = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))


@app.get("/", dependencies=[_may_read])
def _flow_runs(request: Request, user: GetUserDep) -> Response:
    # requires_access_dag would take it for the only DAG that is asked for.
    if "dag_id" in request.query_params:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "The filter by DAG is named dag.")
    began = time.monotonic()
    _check_airflow()
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    tasks, has_more = runs_metadata.live_tasks(readable)
    runs = [run for task in tasks for run in conversations(task)]
    query = runs_view.Query.read(request.query_params)
    page = runs_view.list_page(
        runs, query, _base(request), datetime.now(UTC), _refresh(began), has_more=has_more
    )
    return _page(page)


@app.get("/task", dependencies=[_may_read])
def _flow_run(
    user: GetUserDep,
    dag_id: Annotated[str, Query()],
    run_id: Annotated[str, Query()],
    task_id: Annotated[str, Query()],
    map_index: Annotated[str, Query()] = "",
) -> Response:
    began = time.monotonic()
    _check_airflow()
    if dag_id not in get_auth_manager().get_authorized_dag_ids(user=user, method="GET"):
        raise HTTPException(HTTPStatus.FORBIDDEN)
    task = runs_metadata.task(dag_id, run_id, task_id, _map_index(map_index))
    if task is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such task instance.")
    page = task_page(task, conversations(task), datetime.now(UTC), _refresh(began))
    return _page(page)


@app.exception_handler(HTTPException)
async def _failed(request: Request, error: HTTPException) -> Response:
    if error.status_code == HTTPStatus.UNAUTHORIZED:
        path = f"{_base(request)}{PREFIX}{'/task' if request.url.path.endswith('/task') else '/'}"
        then = f"{path}?{request.url.query}" if request.url.query else path
        login = f"{_base(request)}/api/v2/auth/login?next={quote(then, safe='')}"
        return RedirectResponse(login, HTTPStatus.SEE_OTHER, headers=HEADERS)
    words = error.detail if error.status_code != HTTPStatus.FORBIDDEN else "You may not read this."
    return _page(_message(str(words)), error.status_code)


@app.exception_handler(RequestValidationError)
async def _invalid(_request: Request, _error: RequestValidationError) -> Response:
    return _page(_message("The address is not complete."), HTTPStatus.UNPROCESSABLE_ENTITY)


@app.exception_handler(UnavailableError)
async def _unreadable(_request: Request, error: UnavailableError) -> Response:
    _logger.warning("The flow runs could not be read: %s", error)
    return _page(_message("Airflow's database cannot be read now."), HTTPStatus.SERVICE_UNAVAILABLE)


def _check_airflow() -> None:
    if reason := runs_metadata.missing():
        raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, reason)


def _map_index(text: str) -> int:
    # Airflow leaves the placeholder as it is where a task is not mapped.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1


def _base(request: Request) -> str:
    """Return the path of Airflow's UI, without a slash at its end."""
    root: Any = request.scope.get("root_path", "")
    return str(root).removesuffix(PREFIX).rstrip("/")


def _refresh(began: float) -> int:
    seconds = math.ceil((time.monotonic() - began) / _SHARE)
    return min(max(seconds, _MIN_REFRESH), _MAX_REFRESH)


def _message(words: str) -> str:
    return runs_view.document("Flow runs", f"<p>{escaped(words)}</p>")


def _page(page: str, status: int = HTTPStatus.OK) -> Response:
    # Half of a surrogate pair, which JSON can have, is no text.
    return HTMLResponse(page.encode(errors="replace"), status, headers=HEADERS)
