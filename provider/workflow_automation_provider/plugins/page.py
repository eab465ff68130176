"""
The page **Flow runs** and the tab **Flow run**, as an ASGI application for Airflow's API server.

**Who** may see what, Airflow's own dependencies decide; a browser without a login is sent to Airflow's.
**Read** the live tasks, those that failed in the last days, and their entries: nothing is written or locked,
and more tasks take no more queries. **Tell** what they say: :mod:`~.conversation`. **Draw** ``page.html``,
which escapes whatever it shows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Store
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import State as TaskState
from airflow.utils.state import TaskInstanceState
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment
from sqlalchemy import and_, case, exists, func, or_, select
from sqlalchemy.exc import SQLAlchemyError

from workflow_automation_provider.client.checks import browser_link
from workflow_automation_provider.execution.batch_record import BATCH
from workflow_automation_provider.execution.ledger import PREFIX
from workflow_automation_provider.plugins.conversation import State, conversations
from workflow_automation_provider.plugins.metadata import COORDINATES, json_object

PATH = "/workflow-automation/runs"
"""Path at which the page is mounted."""

DOUBT_FOR = timedelta(days=7)
"""How long a task that failed in doubt is on the page."""

MAX_ROWS, MAX_TASKS, MAX_VALUE = 200, 5000, 256 * 1024
"""Runs shown, the most pressing; tasks read, the newest; characters of the longest entry that is read."""

_COLUMNS = {
    *("id", *COORDINATES, "map_index", "rendered_map_index", "state"),
    *("try_number", "max_tries", "start_date", "end_date", "next_kwargs"),
}
_place = attrgetter(*COORDINATES)
_IS_OURS = Store.key.startswith(PREFIX, autoescape=True)
_IS_ITS = and_(*(getattr(Store, name) == getattr(TaskInstance, name) for name in COORDINATES))


def _read(*conditions: Any) -> tuple[list[tuple[Any, dict[str, Any]]], bool]:
    """Return tasks, each with its columns and its entries, and whether there are more."""
    # A batch's last entry says enough: it is the end of what an index has of the task.
    is_batch = Store.key.startswith(BATCH, autoescape=True)
    its = select(Store.id).where(Store.dag_run_id == DagRun.id, _IS_ITS, is_batch)
    columns = (
        *(getattr(TaskInstance, name) for name in _COLUMNS),
        func.coalesce(DagRun.logical_date, DagRun.run_after).label("date"),
        its.order_by(Store.key.desc()).limit(1).scalar_subquery().label("batch"),
    )
    same_run = and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id)
    newest = TaskInstance.start_date.desc(), TaskInstance.id
    query = select(*columns).join(DagRun, same_run).where(*conditions).order_by(*newest)
    value = case((func.length(Store.value) <= MAX_VALUE, Store.value))
    entries = select(*_place(Store), Store.key, value).join(TaskInstance, _IS_ITS)
    with create_session() as session:
        rows = session.execute(query.limit(MAX_TASKS + 1)).all()
        tasks: dict[Any, tuple[Any, dict[str, Any]]] = {
            _place(row): (row, {}) for row in rows[:MAX_TASKS]
        }
        have_starts = TaskInstance.id.in_([row.id for row, _ in tasks.values() if not row.batch])
        last = Store.id.in_([row.batch for row, _ in tasks.values() if row.batch])
        for which in ((have_starts, _IS_OURS), (last,)):
            for *at, key, text in session.execute(entries.where(*which)):
                row, found = tasks[tuple(at)]
                found[BATCH if row.batch else key] = json_object(text)
    return [*tasks.values()], len(rows) > MAX_TASKS


def shown(text: object, limit: int = 300) -> str:
    """Return any value as text, cut, and without characters that hide or reverse others; Jinja escapes it."""
    whole = text if isinstance(text, str) else json.dumps(text, indent=2, ensure_ascii=False)
    cut = whole if len(whole) <= limit else f"{whole[: limit - 1]}…"
    if cut.isprintable():
        return cut
    lines = cut.splitlines()
    return "\n".join(
        "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in line) for line in lines
    )


def duration(time: timedelta) -> str:
    """Return a duration as text, in its largest unit."""
    seconds = time.total_seconds()
    for unit, length in (("day", 86400), ("h", 3600), ("min", 60)):
        # Two of them, or just one: "90 min", but "1 day" for what is left of a fresh one.
        if seconds >= 1.95 * length or abs(seconds - length) <= 0.05 * length:
            count = round(seconds / length)
            return f"{count} {unit}{'s' * (unit == 'day' and count > 1)}"
    return f"{max(0, int(seconds))} s"


_SOURCE = Path(__file__).with_name("page.html").read_text("utf-8")
_ENVIRONMENT = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)


def _web(link: object) -> str:
    """Return a link as a browser opens it, empty if there is none."""
    try:
        return browser_link(link)
    except ValueError:
        return ""


_ENVIRONMENT.filters |= {"shown": shown, "web": _web, "duration": duration}
_ENVIRONMENT.filters["segment"] = partial(quote, safe="")  # of a path
_TEMPLATE = _ENVIRONMENT.from_string(
    _SOURCE, {"State": State, "MAX_ROWS": MAX_ROWS, "MAX_TASKS": MAX_TASKS}
)


def _hash(tag: str) -> str:
    text = _SOURCE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src {_hash('style')}; script-src {_hash('script')}; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Headers of every response: they allow the page's own style and script, and nothing else."""


def _page(status: int = HTTPStatus.OK, **values: Any) -> Response:
    page = _TEMPLATE.render(now=datetime.now(UTC), **values)
    # Half of a surrogate pair, which JSON can have, is no text.
    return HTMLResponse(page.encode(errors="replace"), status, headers=HEADERS)


app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
"""The application, which Airflow mounts."""

_may_read = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))


@app.get("/", dependencies=[_may_read])
def _flow_runs(request: Request, user: GetUserDep, q: str = "", state: str = "") -> Response:
    # requires_access_dag would take it for the only DAG that is asked for.
    if "dag_id" in request.query_params:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "Search for the DAG instead.")
    tasks, has_more = _read(
        TaskInstance.dag_id.in_(get_auth_manager().get_authorized_dag_ids(user=user, method="GET")),
        or_(
            TaskInstance.state.in_([state for state in TaskState.unfinished if state]),
            and_(
                TaskInstance.state == TaskInstanceState.FAILED,
                TaskInstance.end_date > datetime.now(UTC) - DOUBT_FOR,
            ),
        ),
        exists().where(_IS_ITS, _IS_OURS),
    )
    runs = [run for task in tasks for run in conversations(*task) if run.is_current]
    runs = [run for run in runs if run.state in (State.DOUBT, State.UNKNOWN) or not run.has_ended]
    found = [run for run in runs if run.matches(q)] if q else runs
    return _page(
        title="Flow runs",
        base=_base(request),
        q=q,
        state=state,
        rows=sorted(
            (run for run in found if state in ("", run.state.value)), key=lambda run: run.pressure
        ),
        counts=Counter(run.state for run in found),
        doubts=sum(run.state is State.DOUBT for run in runs),
        is_whole=not has_more and all(run.state is not State.UNKNOWN for run in runs),
        has_more=has_more,
    )


@app.get("/task", dependencies=[_may_read])
def _flow_run(
    user: GetUserDep, dag_id: str = "", run_id: str = "", task_id: str = "", map_index: str = ""
) -> Response:
    if dag_id not in get_auth_manager().get_authorized_dag_ids(user=user, method="GET"):
        raise HTTPException(HTTPStatus.FORBIDDEN)
    # Airflow leaves the placeholder as it is where a task is not mapped.
    index = int(map_index) if re.fullmatch("[0-9]{1,9}", map_index) else -1
    asked = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": index}
    tasks, _ = _read(*(getattr(TaskInstance, name) == value for name, value in asked.items()))
    if not tasks:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such task instance.")
    return _page(title="Flow run", row=tasks[0][0], runs=conversations(*tasks[0]))


@app.exception_handler(HTTPException)
@app.exception_handler(SQLAlchemyError)
async def _failed(request: Request, error: HTTPException | SQLAlchemyError) -> Response:
    if isinstance(error, SQLAlchemyError):
        error = HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE, "Airflow's database cannot be read: try again."
        )
    if error.status_code == HTTPStatus.UNAUTHORIZED:
        path = f"{_base(request)}{PATH}{'/task' if request.url.path.endswith('/task') else '/'}"
        then = f"{path}?{request.url.query}" if request.url.query else path
        login = f"{_base(request)}/api/v2/auth/login?next={quote(then, safe='')}"
        return RedirectResponse(login, HTTPStatus.SEE_OTHER, headers=HEADERS)
    words = error.detail if error.status_code != HTTPStatus.FORBIDDEN else "You may not read this."
    return _page(error.status_code, title="Flow runs", message=words)


def _base(request: Request) -> str:
    """Return the path of Airflow's UI, without a slash at its end."""
    return str(request.scope.get("root_path", "")).removesuffix(PATH).rstrip("/")
