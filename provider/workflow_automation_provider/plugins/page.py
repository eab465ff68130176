"""
The page **Flow runs** and the tab **Flow run**, as an ASGI application for Airflow's API server.

1. **Who** may see what, Airflow's own dependencies decide; a browser without a login is sent to
   Airflow's.
2. **Read** the live tasks, those that failed in the last days, and their entries: nothing is
   written or locked, and more tasks take no more queries.
3. **Tell** what they say: :mod:`~.conversation`.
4. **Draw** ``page.html``, which escapes whatever it shows.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
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
from workflow_automation_provider.execution.batch.record import BATCH
from workflow_automation_provider.execution.errors import printable, without_escape_codes
from workflow_automation_provider.execution.starts.entries import PREFIX
from workflow_automation_provider.plugins.conversation import (
    Conversation,
    State,
    conversations,
    mistyped,
)
from workflow_automation_provider.plugins.metadata import COORDINATES, json_value

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

PATH = "/workflow-automation/runs"
"""Path at which the page is mounted."""

DOUBT_FOR = timedelta(days=7)
"""How long a task that failed in doubt is on the page."""

MAX_ROWS = 200
"""How many runs the page shows: the most pressing."""

MAX_TASKS = 5000
"""How many tasks are read: the newest."""

MAX_STARTS = 200
"""
How many starts of one task the tab shows.

The last, but first those whose run somebody has to look for.
"""

MAX_MISTYPED = 20
"""How many mistyped entries are shown."""

MAX_VALUE = 256 * 1024
"""How many characters the longest entry has that is read."""

_COLUMNS = (
    "id",
    *COORDINATES,
    "map_index",
    "rendered_map_index",
    "state",
    "try_number",
    "max_tries",
    "start_date",
    "end_date",
)
_place = attrgetter(*COORDINATES)
_IS_OURS = Store.key.startswith(PREFIX, autoescape=True)
# A key that a person has mistyped; of those that are the task's own, no value is read.
_MAY_BE_MISTYPED = func.lower(Store.key).like("%w%run%")
_IS_OF_TASK = and_(*(getattr(Store, name) == getattr(TaskInstance, name) for name in COORDINATES))


class Task(NamedTuple):
    """
    A task instance with its entries.

    :param row: its columns
    :param entries: the values of its entries, None where one cannot be read; of a batch, only the
        last
    """

    row: Any
    entries: dict[str, Any]

    @property
    def runs(self) -> list[Conversation]:
        """Its starts, and its batch."""
        return conversations(self.row, self.entries)


def _read(*conditions: Any) -> tuple[list[Task], bool]:
    """Return tasks, and whether there are more."""
    with create_session() as session:
        rows = session.execute(_tasks_query(conditions).limit(MAX_TASKS + 1)).all()
        tasks = {_place(row): Task(row, {}) for row in rows[:MAX_TASKS]}
        _read_starts(session, tasks)
        _read_batches(session, tasks)
    return list(tasks.values()), len(rows) > MAX_TASKS


def _tasks_query(conditions: Iterable[Any]) -> Select[Any]:
    # A batch's last entry says enough: it is the end of what an index has of the task.
    of_batch = Store.key.startswith(BATCH, autoescape=True)
    entries = select(Store.id).where(Store.dag_run_id == DagRun.id, _IS_OF_TASK, of_batch)
    last_of_batch = entries.order_by(Store.key.desc()).limit(1).scalar_subquery()

    date = func.coalesce(DagRun.logical_date, DagRun.run_after)
    columns = [getattr(TaskInstance, name) for name in _COLUMNS]
    columns += [date.label("date"), last_of_batch.label("batch")]
    same_run = and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id)
    query = select(*columns).join(DagRun, same_run).where(*conditions)
    return query.order_by(TaskInstance.start_date.desc(), TaskInstance.id)


def _entries_query(*conditions: Any) -> Select[Any]:
    is_read = and_(_IS_OURS, func.length(Store.value) <= MAX_VALUE)
    value = case((is_read, Store.value)).label("value")
    query = select(*_place(Store), Store.key, value).join(TaskInstance, _IS_OF_TASK)
    return query.where(*conditions)


def _read_starts(session: Session, tasks: Mapping[Any, Task]) -> None:
    """Add the entries of tasks that have no batch."""
    ids = [task.row.id for task in tasks.values() if not task.row.batch]
    of_tasks = TaskInstance.id.in_(ids)
    query = _entries_query(of_tasks, or_(_IS_OURS, _MAY_BE_MISTYPED))
    for entry in session.execute(query):
        tasks[_place(entry)].entries[entry.key] = json_value(entry.value)


def _read_batches(session: Session, tasks: Mapping[Any, Task]) -> None:
    """Add the last entry of each batch."""
    ids = [task.row.batch for task in tasks.values() if task.row.batch]
    for entry in session.execute(_entries_query(Store.id.in_(ids))):
        tasks[_place(entry)].entries[BATCH] = json_value(entry.value)


def _mistyped(tasks: Iterable[Task]) -> list[tuple[Any, str, str]]:
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


def shown(text: object, limit: int = 300) -> str:
    """
    Return any value as text, cut, without characters that hide or reverse others.

    Jinja escapes it.
    """
    if isinstance(text, str):
        whole = without_escape_codes(text)
    else:
        whole = json.dumps(text, indent=2, ensure_ascii=False)
    if len(whole) > limit:
        whole = f"{whole[: limit - 1]}…"
    if whole.isprintable():
        return whole
    return "\n".join(printable(line) for line in whole.splitlines())


_UNITS = (("day", "days", 86400), ("h", "h", 3600), ("min", "min", 60))


def duration(time: timedelta) -> str:
    """Return a duration as text, in its largest unit."""
    seconds = time.total_seconds()
    for unit, plural, length in _UNITS:
        # Two of them, or just one: "90 min", but "1 day" for what is left of a fresh one.
        is_several = seconds >= 1.95 * length
        is_one = abs(seconds - length) <= 0.05 * length
        if is_several or is_one:
            count = round(seconds / length)
            return f"{count} {plural if count > 1 else unit}"
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
    _SOURCE,
    {"State": State, "MAX_ROWS": MAX_ROWS, "MAX_TASKS": MAX_TASKS},
)


def _hash(tag: str) -> str:
    text = _SOURCE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src {_hash('style')}; script-src {_hash('script')}; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
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
    dag_ids = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    is_live = TaskInstance.state.in_([state for state in TaskState.unfinished if state])
    has_failed = and_(
        TaskInstance.state == TaskInstanceState.FAILED,
        TaskInstance.end_date > datetime.now(UTC) - DOUBT_FOR,
    )
    tasks, has_more = _read(
        TaskInstance.dag_id.in_(dag_ids),
        or_(is_live, has_failed),
        exists().where(_IS_OF_TASK, _IS_OURS),
    )

    current = [run for task in tasks for run in task.runs if run.is_current]
    runs = [run for run in current if run.is_uncertain or not run.has_ended]
    found = [run for run in runs if run.matches(q)]
    rows = [run for run in found if state in ("", run.state.value)]
    states = Counter(run.state for run in runs)
    return _page(
        title="Flow runs",
        base=_base(request),
        q=q,
        state=state,
        rows=sorted(rows, key=lambda run: run.pressure),
        counts=Counter(run.state for run in found),
        doubts=states[State.DOUBT],
        is_whole=not has_more and not states[State.UNKNOWN],
        has_more=has_more,
        mistyped=_mistyped(tasks),
    )


def _refuse_nul(request: Request) -> None:
    # No id has one, and PostgreSQL fails on it.
    if any("\0" in value for value in request.query_params.values()):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "An id has a NUL character.")


@app.get("/task", dependencies=[Depends(_refuse_nul), _may_read])
def _flow_run(
    user: GetUserDep, dag_id: str = "", run_id: str = "", task_id: str = "", map_index: str = ""
) -> Response:
    if dag_id not in get_auth_manager().get_authorized_dag_ids(user=user, method="GET"):
        raise HTTPException(HTTPStatus.FORBIDDEN)
    # Airflow leaves the placeholder as it is where a task is not mapped.
    is_mapped = re.fullmatch("[0-9]{1,9}", map_index)
    tasks, _ = _read(
        TaskInstance.dag_id == dag_id,
        TaskInstance.run_id == run_id,
        TaskInstance.task_id == task_id,
        TaskInstance.map_index == (int(map_index) if is_mapped else -1),
    )
    if not tasks:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such task instance.")

    task = tasks[0]
    runs = task.runs
    last = _last(runs)
    return _page(
        title="Flow run",
        row=task.row,
        runs=last,
        left_out=len(runs) - len(last),
        mistyped=_mistyped([task]),
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
        then = f"{_base(request)}{PATH}{page}"
        if request.url.query:
            then = f"{then}?{request.url.query}"
        login = f"{_base(request)}/api/v2/auth/login?next={quote(then, safe='')}"
        return RedirectResponse(login, HTTPStatus.SEE_OTHER, headers=HEADERS)
    message = error.detail
    if error.status_code == HTTPStatus.FORBIDDEN:
        message = "You may not read this."
    return _page(error.status_code, title="Flow runs", message=message)


def _base(request: Request) -> str:
    """Return the path of Airflow's UI, without a slash at its end."""
    return str(request.scope.get("root_path", "")).removesuffix(PATH).rstrip("/")
