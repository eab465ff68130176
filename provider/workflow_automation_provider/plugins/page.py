"""
The page **Flow runs** and the tab **Flow run**, as an ASGI application for Airflow's API server.

1. **Who** may see what, Airflow's own dependencies decide; a browser without a login is sent to
   Airflow's.
2. **Read** the live tasks, those that failed in the last days, and their entries: :mod:`~.queries`.
3. **Tell** what they say, :mod:`~.run_view`, and what a person can do, :mod:`~.advice`.
   The script of the tab asks as well: whether the task may have the run that a person types, and
   which other tasks a Clear or a mark must not start again.
4. **Draw** it: :mod:`~.rendering`.

Nothing here changes anything: the forms of the tab use Airflow's own REST API.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import State as TaskState
from airflow.utils.state import TaskInstanceState
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import and_, or_
from sqlalchemy.exc import SQLAlchemyError

from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.plugins import queries
from workflow_automation_provider.plugins.actions import given_keys
from workflow_automation_provider.plugins.advice import advise, advise_batch
from workflow_automation_provider.plugins.rendering import RESPONSE_HEADERS, response, visible
from workflow_automation_provider.plugins.task_starts import RunStatus, TaskNow, TaskStart

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from workflow_automation_provider.plugins.run_view import RunView

PAGE_PATH = f"{CALLBACK_PATH.rpartition('/')[0]}/runs"
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

MAX_ITEMS = 20
"""How many items of a batch are shown that have no run."""


def _last(runs: Sequence[RunView]) -> list[RunView]:
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
    # Not those that were skipped, of which some DAGs have too many to look for their entries.
    has_failed = and_(
        TaskInstance.state == TaskInstanceState.FAILED,
        TaskInstance.end_date > datetime.now(UTC) - DOUBT_FOR,
    )
    tasks, has_more = queries.read(
        TaskInstance.dag_id.in_(dag_ids),
        or_(is_live, has_failed),
        queries.HAS_OURS,
        max_entries=queries.MAX_ENTRIES,
    )

    current = [run for task in tasks for run in task.runs if run.is_current]
    runs = [run for run in current if run.is_uncertain or not run.task.has_ended]
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
        doubts=states[RunStatus.DOUBT],
        is_whole=not has_more and not states[RunStatus.UNREADABLE],
        has_more=has_more,
        max_rows=MAX_ROWS,
        doubt_days=DOUBT_FOR.days,
        max_tasks=queries.MAX_TASKS,
        max_entries=queries.MAX_ENTRIES,
    )


def _find_task(
    user: GetUserDep, dag_id: str = "", run_id: str = "", task_id: str = "", map_index: str = ""
) -> queries.Task:
    """Return the task instance that is asked for, if the user may read its DAG."""
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

    return tasks[0]


_TaskDep = Annotated[queries.Task, Depends(_find_task)]


@app.get("/task", dependencies=[_may_read])
def _execution(request: Request, user: GetUserDep, task: _TaskDep) -> Response:
    return tab(task, base=_base(request), may_change=_may_change(user, task.row.dag_id))


def tab(task: queries.Task, *, base: str, may_change: bool) -> Response:
    """
    Return the tab of a task.

    :param base: the path of Airflow's UI, without a slash at its end
    :param may_change: whether the user may do what its actions do
    """
    now, runs = task.now, task.runs
    starts = _last_of_each_name(runs)
    advice = advise(now, starts)
    batch = next((run for run in runs if run.start is None), None)
    if batch:  # which has no starts beside it
        advice = advise_batch(now, batch.batch, batch.state, batch.is_current)

    last = _last(runs)
    return response(
        title="Flow run",
        base=base,
        row=task.row,
        cards=[run for run in last if not run.start or run.start.is_last],
        sentence=lambda run: advice.sentences[run.start.name if run.start else ""],
        runs=last,
        left_out=len(runs) - len(last),
        actions=advice.actions,
        is_waiting=now.is_suspended,
        forgotten=given_keys(starts),
        may_change=may_change,
        keeps_state=now.drops_state,
        seen=_fingerprint(now, starts),
        items=queries.items_without_run(task, MAX_ITEMS),
    )


def _last_of_each_name(runs: Sequence[RunView]) -> list[TaskStart]:
    """Return what is known of the last start of each name, in the order of the names."""
    starts = [run.start for run in runs if run.start and run.start.is_last]
    return sorted(starts, key=lambda start: start.name)


def _fingerprint(now: TaskNow, starts: Sequence[TaskStart]) -> str:
    """Return a text that changes with whatever a person has decided by."""
    seen = (now.state, now.try_number, now.max_tries, starts)
    return hashlib.sha256(repr(seen).encode(errors="replace")).hexdigest()[:16]


@app.get("/task/run", dependencies=[_may_read])
def flow_run_of_a_person(task: _TaskDep, name: str = "", flow_run: str = "") -> dict[str, str]:
    """
    Return how a run that a person types is shown, and why the task cannot continue with it.

    :param name: the name of the start
    """
    shown_id, typed = visible(flow_run, 1000), flow_run.strip()
    start = next((one for one in _last_of_each_name(task.runs) if one.name == name), None)
    why = "the task has no such start"
    if start:
        why = start.why_not(typed) or ""
    if re.fullmatch('".*"', typed) and not (start and typed in start.ids):
        why = "enter it without quotes"
    return {"shown": shown_id, "why_not": why}


@app.get("/task/others", dependencies=[_may_read])
def _others(task: _TaskDep) -> list[tuple[str, int]]:
    """Return the other tasks of the DAG run that have a run, or may have one."""
    row = task.row
    tasks, has_more = queries.read(
        TaskInstance.dag_id == row.dag_id, TaskInstance.run_id == row.run_id, queries.HAS_OURS
    )
    if has_more:
        raise HTTPException(HTTPStatus.CONFLICT, "The DAG run has too many tasks with runs.")

    others = [other.row for other in tasks if other.row.id != row.id and _may_have_run(other)]
    return [(other.task_id, other.map_index) for other in others]


def _may_have_run(task: queries.Task) -> bool:
    current = (run for run in task.runs if run.is_current)
    return any(run.state not in (RunStatus.IDLE, RunStatus.STOPPED) for run in current)


def _may_change(user: BaseUser, dag_id: str) -> bool:
    """Return whether Airflow lets a user clear or mark the tasks of a DAG."""
    return get_auth_manager().is_authorized_dag(
        method="PUT",
        access_entity=DagAccessEntity.TASK_INSTANCE,
        details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)),
        user=user,
    )


@app.exception_handler(HTTPException)
@app.exception_handler(SQLAlchemyError)
async def _failed(request: Request, error: HTTPException | SQLAlchemyError) -> Response:
    if isinstance(error, SQLAlchemyError):
        error = HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE, "Airflow's database cannot be read: try again."
        )

    if error.status_code == HTTPStatus.UNAUTHORIZED:
        page = "/task" if request.url.path.endswith("/task") else "/"
        then = f"{_base(request)}{PAGE_PATH}{page}"
        if request.url.query:
            then = f"{then}?{request.url.query}"

        login = f"{_base(request)}/api/v2/auth/login?next={quote(then, safe='')}"
        return RedirectResponse(login, HTTPStatus.SEE_OTHER, headers=RESPONSE_HEADERS)

    message = error.detail
    if error.status_code == HTTPStatus.FORBIDDEN:
        message = "You may not read this."

    return response(error.status_code, title="Flow runs", message=message)


def _base(request: Request) -> str:
    """Return the path of Airflow's UI, without a slash at its end."""
    return str(request.scope.get("root_path", "")).removesuffix(PAGE_PATH).rstrip("/")
