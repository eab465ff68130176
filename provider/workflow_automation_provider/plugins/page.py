"""
The page **Flow runs** and the tab **Flow run**, as an ASGI application for Airflow's API server.

1. **Who** may see what, Airflow's own dependencies decide; a browser without a login is sent to
   Airflow's.
2. **Read** the live tasks, those that failed in the last days, and their entries: :mod:`~.queries`.
3. **Tell** what they say, :mod:`~.conversation`, and what a person can do, :mod:`~.advice`.
4. **Draw** it: :mod:`~.rendering`.

Nothing here changes anything: the forms of the tab use Airflow's own REST API.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.datamodels.task_instances import ClearTaskInstancesBody
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import State as TaskState
from airflow.utils.state import TaskInstanceState
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import and_, or_
from sqlalchemy.exc import SQLAlchemyError

from workflow_automation_provider.plugins import queries
from workflow_automation_provider.plugins.advice import advice, forms
from workflow_automation_provider.plugins.conversation import Conversation, State
from workflow_automation_provider.plugins.mistyped import mistyped
from workflow_automation_provider.plugins.rendering import HEADERS, response

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

PATH = "/workflow-automation/runs"
"""Path at which the page is mounted."""

DOUBT_FOR = timedelta(days=7)
"""How long a task that failed in doubt is on the page."""

MAX_ROWS = 200
"""How many runs the page shows: the most pressing."""

MAX_STARTS = 200
"""
How many starts of one task the tab shows.

The last, but first those whose run somebody has to look for.
"""

MAX_MISTYPED = 20
"""How many mistyped entries are shown."""

MAX_ITEMS = 20
"""How many items of a batch are shown that have no run."""

# What Airflow's REST API can do.
_HAS_STORE_API = (
    find_spec("airflow.api_fastapi.core_api.routes.public.task_state_store") is not None
)
_CAN_KEEP_STATE = "keep_task_state" in ClearTaskInstancesBody.model_fields


def _mistyped(tasks: Iterable[queries.Task]) -> list[tuple[Any, str, str]]:
    """
    Return the first mistyped entries.

    The columns of the task, the key, and the one that was meant.
    """
    found = (
        (task.row, key, meant)
        for task in tasks
        for key, meant in mistyped(task.entries).items()
    )  # fmt: skip
    return list(itertools.islice(found, MAX_MISTYPED))


def _last(runs: list[Conversation]) -> list[Conversation]:
    """
    Return the last starts of a task, in order.

    Before all, those whose run somebody has to look for.
    """
    by_weight = sorted(runs, key=lambda run: (run.is_uncertain, run.at))
    kept = {id(run) for run in by_weight[-MAX_STARTS:]}
    return [run for run in runs if id(run) in kept]


app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
"""The application, which Airflow mounts."""

_may_read = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))


@app.get("/", dependencies=[_may_read])
def _flow_runs(request: Request, user: GetUserDep, q: str = "", state: str = "") -> Response:
    # requires_access_dag would take it for the only DAG that is asked for.
    if "dag_id" in request.query_params:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "Search for the DAG instead.")

    dag_ids = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    is_live = TaskInstance.state.in_([state for state in TaskState.unfinished if state])
    has_failed = and_(
        TaskInstance.state == TaskInstanceState.FAILED,
        TaskInstance.end_date > datetime.now(UTC) - DOUBT_FOR,
    )
    tasks, has_more = queries.read(
        TaskInstance.dag_id.in_(dag_ids),
        or_(is_live, has_failed),
        queries.HAS_OURS,
    )

    current = [run for task in tasks for run in task.runs if run.is_current]
    runs = [run for run in current if run.is_uncertain or not run.has_ended]
    found = [run for run in runs if run.matches(q)]
    rows = [run for run in found if state in ("", run.state.value)]
    states = Counter(run.state for run in runs)
    return response(
        title="Flow runs",
        base=_base(request),
        q=q,
        state=state,
        rows=sorted(rows, key=lambda run: run.pressure),
        counts=Counter(run.state for run in found),
        doubts=states[State.DOUBT],
        is_whole=not has_more and not states[State.UNKNOWN],
        has_more=has_more,
        max_rows=MAX_ROWS,
        doubt_days=DOUBT_FOR.days,
        max_tasks=queries.MAX_TASKS,
        mistyped=_mistyped(tasks),
    )


def _refuse_nul(request: Request) -> None:
    # No id has one, and PostgreSQL fails on it.
    if any("\0" in value for value in request.query_params.values()):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "An id has a NUL character.")


@app.get("/task", dependencies=[Depends(_refuse_nul), _may_read])
def _flow_run(
    request: Request,
    user: GetUserDep,
    dag_id: str = "",
    run_id: str = "",
    task_id: str = "",
    map_index: str = "",
) -> Response:
    if dag_id not in get_auth_manager().get_authorized_dag_ids(user=user, method="GET"):
        raise HTTPException(HTTPStatus.FORBIDDEN)

    # Airflow leaves the placeholder as it is where a task is not mapped.
    is_mapped = re.fullmatch("[0-9]{1,9}", map_index)
    tasks, _ = queries.read(
        TaskInstance.dag_id == dag_id,
        TaskInstance.run_id == run_id,
        TaskInstance.task_id == task_id,
        TaskInstance.map_index == (int(map_index) if is_mapped else -1),
    )
    if not tasks:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such task instance.")

    return tab(tasks[0], base=_base(request), may_change=_may_change(user, dag_id))


def tab(task: queries.Task, *, base: str, may_change: bool) -> Response:
    """
    Return the tab of a task.

    :param base: the path of Airflow's UI, without a slash at its end
    :param may_change: whether the user may do what its forms do
    """
    runs = task.runs
    last = _last(runs)
    return response(
        title="Flow run",
        base=base,
        row=task.row,
        runs=last,
        left_out=len(runs) - len(last),
        mistyped=_mistyped([task]),
        advice=advice,
        forms=forms(task.row, runs) if _HAS_STORE_API else [],
        may_change=may_change,
        can_keep_state=_CAN_KEEP_STATE,
        seen=_fingerprint(task.row, runs),
        items=queries.items_without_run(task, MAX_ITEMS),
    )


def _may_change(user: BaseUser, dag_id: str) -> bool:
    """Return whether Airflow lets a user do what the forms of the tab do."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=details, user=user
    )


def _fingerprint(row: Any, runs: list[Conversation]) -> str:
    """Return a text that changes with whatever a person has decided by."""
    facts: list[object] = [str(row.state), row.try_number, row.max_tries]
    facts += [(run.name, run.at, run.state, run.run_id, run.end, run.given) for run in runs]
    return hashlib.sha256(repr(facts).encode(errors="replace")).hexdigest()[:16]


@app.exception_handler(HTTPException)
@app.exception_handler(SQLAlchemyError)
async def _failed(request: Request, error: HTTPException | SQLAlchemyError) -> Response:
    if isinstance(error, SQLAlchemyError):
        error = HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE, "Airflow's database cannot be read: try again."
        )

    if error.status_code == HTTPStatus.UNAUTHORIZED:
        page = "/task" if request.url.path.endswith("/task") else "/"
        then = f"{_base(request)}{PATH}{page}"
        if request.url.query:
            then = f"{then}?{request.url.query}"

        login = f"{_base(request)}/api/v2/auth/login?next={quote(then, safe='')}"
        return RedirectResponse(login, HTTPStatus.SEE_OTHER, headers=HEADERS)

    message = error.detail
    if error.status_code == HTTPStatus.FORBIDDEN:
        message = "You may not read this."

    return response(error.status_code, title="Flow runs", message=message)


def _base(request: Request) -> str:
    """Return the path of Airflow's UI, without a slash at its end."""
    return str(request.scope.get("root_path", "")).removesuffix(PATH).rstrip("/")
