"""
The page **Flow runs** and the tab **Flow run**, as an ASGI application for Airflow's API server.

1. **Who** may see what is decided by Airflow's own dependencies. A browser without a login is sent to Airflow's.
2. **Read** the live tasks, those that failed in the last days, and their entries. Nothing is written or locked, and the
   number of queries does not depend on that of the tasks.
3. **Tell** what the entries say of each start, in the words of :mod:`~workflow_automation_provider.execution.ledger`. Anybody
   who may edit a task can write an entry: what cannot be read is said to be so.
4. **Draw** ``page.html``, which escapes whatever it shows.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, NamedTuple
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
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment
from sqlalchemy import and_, case, exists, func, or_, select
from sqlalchemy.exc import SQLAlchemyError

from workflow_automation_provider.execution.errors import how_to_continue
from workflow_automation_provider.execution.ledger import (
    OUTCOME,
    PREFIX,
    START,
    START_KEY,
    Facts,
    Outcome,
    Spoken,
    Start,
    frozen_key,
    place_of,
    run_key,
    word_key,
)
from workflow_automation_provider.plugins.metadata import COORDINATES

PATH = "/workflow-automation/runs"
"""Where it is mounted."""

DOUBT_FOR = timedelta(days=7)
"""How long a task that failed in doubt is on the page."""

MAX_ROWS, MAX_TASKS = 200, 5000
"""How many runs are shown, the most pressing, and how many tasks are read, the newest."""

_logger = logging.getLogger(__name__)

# In characters, of an entry that is read.
_MAX_VALUE = 256 * 1024

# Without credentials, and without what a browser leaves out or turns.
_WEB = re.compile(
    r"https?://[a-z0-9._-]+(:[0-9]+)?([/?#][^\s\x00-\x20\x7f\\]{0,2000})?", re.IGNORECASE | re.ASCII
)

# A run is silent that has said nothing for this part of the time that it may take, or say nothing.
_SILENT = 0.5

_BATCH = f"{PREFIX}batch"
_ENDED = {state for state in TaskState.finished if state}
_RESPONSES = {
    "run": "Response: a run was started",
    "nothing": "Response: nothing was started",
    "unidentified": "Response: a run was started, but not which",
}
_COLUMNS = (
    *("id", "dag_id", "run_id", "task_id", "map_index", "rendered_map_index", "state"),
    *("try_number", "max_tries", "start_date", "end_date", "next_kwargs"),
)


class State(enum.Enum):
    """What is known of a run, in the order in which people should look."""

    DOUBT = "in doubt"
    UNKNOWN = "unknown"
    STOPPED = "told to stop"
    IDLE = "not started"
    STARTING = "starting"
    STARTED = "started"
    CLAIMED = "claimed"
    WAITING = "waiting"
    SENDING = "sending a batch"
    ENDED = "ended"


class Step(NamedTuple):
    """
    A step of the conversation: when what was said, and in which words.

    :param said: of what the run has said, in short
    """

    at: datetime
    title: str
    text: Any = None
    said: Any = None


@dataclass(slots=True)
class Task:
    """
    A task instance.

    :param row: its columns
    :param entries: the values of its entries, None where one cannot be read
    """

    row: Any
    entries: dict[str, Any] = field(default_factory=dict)

    @property
    def at(self) -> datetime:
        """When it began, or its DAG run: a task that is queued has not begun."""
        at: datetime = self.row.start_date or self.row.date
        return at

    @property
    def path(self) -> str:
        """The path of its page in Airflow."""
        parts = ["dags", self.row.dag_id, "runs", self.row.run_id, "tasks", self.row.task_id]
        parts += ["mapped", str(self.row.map_index)] if self.row.map_index >= 0 else []
        return "/".join(quote(part, safe="") for part in parts)


@dataclass(slots=True, kw_only=True)
class Run:
    """
    A start of a task and its run, or a batch. Its texts are those of others, of any type.

    :param name: of a start within a task
    :param try_number: of the start
    :param is_current: whether it is the last start of its name, and not from before a Clear
    :param said: the last that the run said, and when
    :param until: when the wait ends, None if the task does not wait
    :param silent_from: from when on the run is late, or has said nothing for long; None if the task does not wait
    """

    task: Task
    state: State
    at: datetime
    name: str = ""
    try_number: int = 0
    is_current: bool = True
    flow: Any = None
    conn_id: Any = None
    run_id: Any = None
    run_link: Any = None
    said: Any = ""
    said_at: datetime | None = None
    progress: float | None = None
    until: datetime | None = None
    silent_from: datetime | None = None
    steps: list[Step] = field(default_factory=list)

    def pressure(self, now: datetime) -> tuple[int, datetime]:
        """Return how pressing it is: what failed in doubt, what else is, what is silent for longest, then by age."""
        if self.state is State.DOUBT:
            return (0 if self.task.row.state in _ENDED else 1), self.at
        return (2, self.silent_from or self.at) if self.is_silent(now) else (3, self.at)

    def is_silent(self, now: datetime) -> bool:
        """Return whether the run is late, or has said nothing for long."""
        return self.silent_from is not None and now >= self.silent_from

    def matches(self, words: str) -> bool:
        """Return whether it has these words."""
        row = self.task.row
        ids = (row.dag_id, row.task_id, row.rendered_map_index)
        texts = filter(None, (self.flow, self.run_id, self.name, self.said, *ids))
        return words.casefold() in "\n".join(map(str, texts)).casefold()


# Read -------------------------------------------------------------------------------------------------------


def _read(*conditions: Any) -> tuple[list[Task], bool]:
    """Return tasks, and whether there are more."""
    columns = (getattr(TaskInstance, name) for name in _COLUMNS)
    date = func.coalesce(DagRun.logical_date, DagRun.run_after).label("date")
    same_run = and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id)
    newest = TaskInstance.start_date.desc(), TaskInstance.id
    query = select(*columns, date).join(DagRun, same_run).where(*conditions).order_by(*newest)
    # Of a batch, the last entry says enough.
    is_batch = Store.key.startswith(_BATCH, autoescape=True)
    last = select(func.max(Store.id)).join(TaskInstance, _IS_ITS).where(is_batch).group_by(TaskInstance.id)
    value = case((func.length(Store.value) <= _MAX_VALUE, Store.value))
    entries = select(TaskInstance.id, Store.key, value).join(Store, _IS_ITS)
    with create_session() as session:
        rows = session.execute(query.limit(MAX_TASKS + 1)).all()
        tasks = {row.id: Task(row) for row in rows[:MAX_TASKS]}
        are_these = TaskInstance.id.in_(tasks)
        for ti_id, key, text in session.execute(entries.where(are_these, _IS_OURS, ~is_batch)):
            tasks[ti_id].entries[key] = _object(text)
        ids = session.scalars(last.where(are_these)).all()
        for ti_id, _, text in session.execute(entries.where(are_these, Store.id.in_(ids))):
            tasks[ti_id].entries[_BATCH] = _object(text)
    return [*tasks.values()], len(rows) > MAX_TASKS


_IS_OURS = Store.key.startswith(PREFIX, autoescape=True)
_IS_ITS = and_(
    *(getattr(Store, name) == getattr(TaskInstance, name) for name in COORDINATES if hasattr(Store, name))
)


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# Tell -------------------------------------------------------------------------------------------------------


def conversations(task: Task) -> list[Run]:
    """Return all starts of a task, in order, or its batch."""
    starts = sorted(filter(None, map(START_KEY.fullmatch, task.entries)), key=place_of)
    last = {key[3]: key for key in starts}
    runs = [_run(task, key, is_last=last[key[3]] is key) for key in starts]
    return [*runs, _batch(task)] if _BATCH in task.entries else runs


def _batch(task: Task) -> Run:
    """Return a batch, as its last entry counts it."""
    entry, row = task.entries[_BATCH] or {}, task.row
    found = entry.get("counts")
    found = found if isinstance(found, dict) else {}
    counts = {name: n for name, n in found.items() if type(n) is int and 0 <= n < 10**9}
    state = State.DOUBT if counts.get("unknown") else State.ENDED
    run = Run(
        task=task,
        state=state if row.state in _ENDED else State.SENDING,
        at=task.at,
        is_current=entry.get("max_tries", row.max_tries) == row.max_tries,
        flow=entry.get("flow_id"),
        conn_id=entry.get("conn_id"),
    )
    if (total := counts.get("total", 0)) > 0:
        others = [
            f"{counts[name]} {name}" for name in ("rejected", "unknown", "remaining") if counts.get(name)
        ]
        run.said = ", ".join([f"{counts.get('started', 0)} of {total} started", *others])
        run.progress = min(max(1 - counts.get("remaining", 0) / total, 0), 1)
    return run


def _run(task: Task, key: re.Match[str], *, is_last: bool) -> Run:
    """Return a start; as unknown if an entry is not what we write, is too large, or is only a reference to one."""
    run = Run(
        task=task,
        state=State.UNKNOWN,
        at=task.at,
        name=key[3] or "",
        try_number=place_of(key)[0],
        is_current=is_last,
    )
    try:
        return replace(run, **_told(task, key, is_last=is_last))
    except Exception:
        return run


def _told(task: Task, key: re.Match[str], *, is_last: bool) -> dict[str, Any]:
    """Return what the entries of a start tell: fields of its run."""

    def read(key: str) -> dict[str, Any]:
        return {**task.entries.get(key, {})}

    start = Start.of(place_of(key), read(key[0]))
    if start.is_damaged:
        raise ValueError("It says nothing of the start.")
    outcome = read(f"{OUTCOME}{key[0].removeprefix(START)}")
    spoken, word, is_frozen = Spoken(), {}, False
    if start.token:
        spoken, word = Spoken.of(read(run_key(start.token))), read(word_key(start.token))
        is_frozen = frozen_key(start.token) in task.entries
    facts = Facts(
        start=start, outcome=Outcome.of(outcome) if outcome else None, spoken=spoken, is_frozen=is_frozen
    )
    state = _state(task, facts)
    steps = [*_steps(facts, is_starting=state is State.STARTING)]
    if is_frozen:
        closed = read(frozen_key(start.token or ""))
        steps.append(Step(datetime.fromisoformat(closed["at"]), "Closed: no run may claim it any more"))
    if word:
        text = word.get("message", "")
        said = None if spoken.end else text
        steps.append(Step(datetime.fromisoformat(word["at"]), "Last word", text, said))
    steps = sorted((step._replace(at=step.at.astimezone(UTC)) for step in steps), key=lambda step: step.at)
    last = next((step for step in reversed(steps) if step.said is not None), None)
    run = {**((facts.outcome and facts.outcome.run) or {}), **(start.run or {})}
    progress = word.get("progress")
    told = {
        "state": state,
        "at": start.at.astimezone(UTC),
        "is_current": is_last and start.max_tries == task.row.max_tries,
        "flow": start.flow_id or run.get("flow_id"),
        "conn_id": start.conn_id,
        "run_id": spoken.run_id or run.get("run_id"),
        "run_link": (spoken.claim and spoken.claim.run_link) or run.get("run_link"),
        "said": last.said if last else "",
        "said_at": last and last.at,
        "progress": progress if _is_part(progress) and not spoken.end else None,
        "steps": steps,
    }
    return told if state is not State.WAITING else told | _wait(task.row.next_kwargs["waiting"], steps[-1].at)


def _is_part(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _wait(waiting: dict[str, Any], heard: datetime) -> dict[str, Any]:
    """Return until when a task waits, and from when on its run is late or silent, given when it was heard last."""
    since, until = (datetime.fromisoformat(waiting[name]).astimezone(UTC) for name in ("since", "until"))
    may_be_silent = timedelta(seconds=waiting["silence"]) if waiting.get("silence") else until - since
    return {"until": until, "silent_from": min(heard + may_be_silent * _SILENT, until)}


def _state(task: Task, facts: Facts) -> State:
    start, outcome, spoken, row = facts.start, facts.outcome, facts.spoken, task.row
    assert start  # noqa: S101
    # An end that came after the task had failed in doubt is kept, but the task does not have it.
    is_late = bool(spoken.end and row.state in _ENDED and row.end_date and spoken.end.at > row.end_date)
    is_known = outcome is not None and outcome.kind == "run" and not facts.is_frozen
    if spoken.stopped:
        return State.STOPPED
    if start.run or is_known or spoken.claim or (spoken.end and not is_late):
        if spoken.end:
            return State.ENDED
        if row.state == TaskInstanceState.AWAITING_INPUT:
            return State.WAITING
        return State.CLAIMED if spoken.claim else State.STARTED
    if not outcome and row.state == TaskInstanceState.RUNNING and start.try_number == row.try_number:
        return State.STARTING
    return State.DOUBT if facts.text else State.IDLE


def _steps(facts: Facts, *, is_starting: bool) -> Iterator[Step]:
    start, outcome, spoken = facts.start, facts.outcome, facts.spoken
    assert start  # noqa: S101
    if start.run:
        yield Step(start.at, "A person entered the run", start.run)
    else:
        yield Step(start.at, "Sent" if outcome or is_starting else "Sent. No response")
    if outcome:
        yield Step(outcome.at, _RESPONSES[outcome.kind], outcome.reason or outcome.run)
    if claim := spoken.claim:
        yield Step(claim.at, "Claimed by the run", claim.run_id, said="claimed")
    if end := spoken.end:
        words = f"ended: {end.status}. {end.message or ''}".rstrip(" .")
        texts = {"message": end.message, "result": end.result}
        yield Step(end.at, f"Ended: {end.status}", {k: v for k, v in texts.items() if v is not None}, words)
    if spoken.stopped:
        yield Step(spoken.stopped, "Told to stop")
    if spoken.refused:
        yield Step((claim or end or start).at, "Other runs were told to stop", ", ".join(spoken.refused))


def advice(run: Run) -> str:
    """Return what a person can do now."""
    state, look = run.task.row.state, "Look in the workflow's list of runs."
    if _BATCH in run.task.entries and state in _ENDED:
        others = (
            "A Clear starts all items again: start those that have no run in a batch of their own instead."
        )
        return f"{look} {others}" if run.state is State.DOUBT else others
    if run.state is State.UNKNOWN:
        return "An entry of this start cannot be read here: the task's log and its tab Storage have more."
    if run.state is State.DOUBT and state not in _ENDED:
        return f"{look} The task's log says what its next try does."
    if run.state is State.DOUBT and state == TaskInstanceState.FAILED and not run.run_id:
        return f"{look} If none was started, clear the task.\nIf one was started, {how_to_continue(name=run.name)}"
    if run.run_id and state == TaskInstanceState.FAILED and run.state is not State.STOPPED:
        return f"If this run is to go on, {how_to_continue(str(run.run_id), run.name)}"
    if state in _ENDED:
        return "The task has ended: a Clear starts another run."
    if run.state is State.WAITING:
        return "The task goes on once the run says its end. If the run cannot, mark the task as success or failed."
    return "Nothing: the task goes on by itself."


# Draw -------------------------------------------------------------------------------------------------------


def shown(text: object, limit: int = 300) -> str:
    """Return a value of others as text, cut, and without a character that hides or turns others; Jinja escapes it."""
    whole = text if isinstance(text, str) else json.dumps(text, indent=2, ensure_ascii=False)
    lines = (whole if len(whole) <= limit else f"{whole[: limit - 1]}…").splitlines()
    return "\n".join("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in line) for line in lines)


def web(link: object) -> str:
    """Return a link to another site, empty unless it is one of http or https."""
    return link if isinstance(link, str) and _WEB.fullmatch(link) else ""


def duration(time: timedelta) -> str:
    """Return how long something takes, in its largest unit."""
    seconds = time.total_seconds()
    for unit, length in (("day", 86400), ("h", 3600), ("min", 60)):
        # Two of them, or just one: "90 min", but "1 day" for what is left of a fresh one.
        if seconds >= 1.95 * length or abs(seconds - length) <= 0.05 * length:
            count = round(seconds / length)
            return f"{count} {unit}{'s' * (unit == 'day' and count > 1)}"
    return f"{max(0, int(seconds))} s"


_SOURCE = Path(__file__).with_name("page.html").read_text("utf-8")
_ENVIRONMENT = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters |= {"shown": shown, "web": web, "duration": duration, "advice": advice}
_TEMPLATE = _ENVIRONMENT.from_string(_SOURCE, {"State": State, "MAX_ROWS": MAX_ROWS, "MAX_TASKS": MAX_TASKS})


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
"""Of every response: the style and the script of the page, and nothing else."""


def _page(status: int = HTTPStatus.OK, **values: Any) -> Response:
    page = _TEMPLATE.render(now=datetime.now(UTC), **values)
    # Half of a surrogate pair, which JSON can have, is no text.
    return HTMLResponse(page.encode(errors="replace"), status, headers=HEADERS)


# Serve ------------------------------------------------------------------------------------------------------

app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
"""The application, which Airflow mounts."""

_may_read = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))


@app.get("/", dependencies=[_may_read])
def _flow_runs(
    request: Request, user: GetUserDep, q: Annotated[str, Query()] = "", state: Annotated[str, Query()] = ""
) -> Response:
    # requires_access_dag would take it for the only DAG that is asked for.
    if "dag_id" in request.query_params:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "Search for the DAG instead.")
    now = datetime.now(UTC)
    tasks, has_more = _read(
        TaskInstance.dag_id.in_(get_auth_manager().get_authorized_dag_ids(user=user, method="GET")),
        or_(
            TaskInstance.state.in_([state for state in TaskState.unfinished if state]),
            and_(TaskInstance.state == TaskInstanceState.FAILED, TaskInstance.end_date > now - DOUBT_FOR),
        ),
        exists().where(_IS_ITS, _IS_OURS),
    )
    runs = [run for task in tasks for run in conversations(task) if run.is_current]
    runs = [run for run in runs if run.state is State.DOUBT or run.task.row.state not in _ENDED]
    found = [run for run in runs if not q or run.matches(q)]
    rows = sorted((run for run in found if state in ("", run.state.value)), key=lambda run: run.pressure(now))
    return _page(
        title="Flow runs",
        base=_base(request),
        q=q,
        state=state,
        rows=rows,
        counts=Counter(run.state for run in found),
        doubts=sum(run.state is State.DOUBT for run in runs),
        is_whole=not has_more and all(run.state is not State.UNKNOWN for run in runs),
        has_more=has_more,
    )


@app.get("/task", dependencies=[_may_read])
def _flow_run(
    user: GetUserDep,
    dag_id: Annotated[str, Query()],
    run_id: Annotated[str, Query()],
    task_id: Annotated[str, Query()],
    map_index: Annotated[str, Query()] = "",
) -> Response:
    if dag_id not in get_auth_manager().get_authorized_dag_ids(user=user, method="GET"):
        raise HTTPException(HTTPStatus.FORBIDDEN)
    # Airflow leaves the placeholder as it is where a task is not mapped.
    index = int(map_index) if re.fullmatch("[0-9]{1,9}", map_index) else -1
    asked = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": index}
    tasks, _ = _read(*(getattr(TaskInstance, name) == value for name, value in asked.items()))
    if not tasks:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such task instance.")
    return _page(title="Flow run", task=tasks[0], runs=conversations(tasks[0]))


@app.exception_handler(HTTPException)
async def _failed(request: Request, error: HTTPException) -> Response:
    if error.status_code == HTTPStatus.UNAUTHORIZED:
        path = f"{_base(request)}{PATH}{'/task' if request.url.path.endswith('/task') else '/'}"
        then = f"{path}?{request.url.query}" if request.url.query else path
        login = f"{_base(request)}/api/v2/auth/login?next={quote(then, safe='')}"
        return RedirectResponse(login, HTTPStatus.SEE_OTHER, headers=HEADERS)
    words = error.detail if error.status_code != HTTPStatus.FORBIDDEN else "You may not read this."
    return _page(error.status_code, title="Flow runs", message=words)


@app.exception_handler(RequestValidationError)
async def _invalid(_request: Request, _error: RequestValidationError) -> Response:
    return _page(HTTPStatus.UNPROCESSABLE_ENTITY, title="Flow runs", message="The address is not complete.")


@app.exception_handler(SQLAlchemyError)
async def _unreadable(_request: Request, error: SQLAlchemyError) -> Response:
    # Its text has the statement's parameters.
    _logger.warning("The flow runs could not be read: %s", type(error).__name__)
    message = "Airflow's database cannot be read now."
    return _page(HTTPStatus.SERVICE_UNAVAILABLE, title="Flow runs", message=message)


def _base(request: Request) -> str:
    """Return the path of Airflow's UI, without a slash at its end."""
    root: Any = request.scope.get("root_path", "")
    return str(root).removesuffix(PATH).rstrip("/")
