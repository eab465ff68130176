"""The page **Flow runs** as HTML: the list of what is live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from workflow_automation_provider.plugins.runs_metadata import MAX_TASKS
from workflow_automation_provider.plugins.runs_state import URGENT, Conversation, RunState
from workflow_automation_provider.plugins.runs_style import SCRIPT, STYLE
from workflow_automation_provider.plugins.runs_text import (
    ago,
    duration,
    escaped,
    shown,
    task_path,
    time_of,
    web_link,
)

MAX_ROWS = 200
"""On one page."""

_FILTERS: dict[str, Callable[[Conversation], str]] = {
    "flow": lambda run: run.flow_id,
    "connection": lambda run: run.conn_id,
    "dag": lambda run: run.task.dag_id,
}
_COLUMNS = ("State", "Flow", "Run", "Task", "Last word", "Time left")


@dataclass(frozen=True, slots=True)
class Query:
    """
    What is asked for.

    :param filters: what is shown only, by ``flow``, ``connection``, ``dag`` or ``state``
    :param page: from 1
    """

    filters: Mapping[str, str]
    page: int = 1

    @classmethod
    def read(cls, values: Mapping[str, str]) -> Query:
        """Read the query of a URL; what it has beside that is ignored."""
        page = values.get("page", "")
        filters = {name: value for name in (*_FILTERS, "state") if (value := values.get(name))}
        return cls(filters, int(page) if page.isascii() and page.isdecimal() and len(page) < 6 else 1)

    def url(self, **changes: str) -> str:
        """Return the address of the page with other filters, or on another page."""
        values = {name: value for name, value in {**self.filters, **changes}.items() if value}
        return escaped(f"?{urlencode(values)}") if values else "?"


def document(title: str, body: str) -> str:
    """
    Return a whole page.

    :param body: HTML
    """
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><script>{SCRIPT}</script></head><body><main><h1>{escaped(title)}</h1>"
        f"{body}</main></body></html>"
    )


def list_page(
    runs: Sequence[Conversation], query: Query, base: str, now: datetime, seconds: int, *, has_more: bool
) -> str:
    """
    Return the list of what is live: what is in doubt first, then the newest first.

    :param base: the path of Airflow's UI, empty or without a slash at its end
    :param seconds: until the page refreshes itself
    :param has_more: whether there are older live tasks that were not read
    """
    filtered = [
        run
        for run in runs
        if all(value_of(run) == query.filters.get(name, value_of(run)) for name, value_of in _FILTERS.items())
    ]
    state = query.filters.get("state")
    rows = sorted(
        (run for run in filtered if state in (None, run.state.name.lower())),
        key=lambda run: (not run.is_urgent, -(run.at.timestamp() if run.at else 0)),
    )
    urgent = sum(run.is_urgent for run in runs)
    is_whole = not has_more and all(run.state is not RunState.UNKNOWN for run in runs)
    waits = "Nothing is in doubt." if is_whole else "Nothing that could be read is in doubt."
    if urgent:
        waits = f"{urgent} of {len(runs)} flow runs need somebody to look."
    cut = f'<p class="soft">Only the {MAX_TASKS} newest live tasks are read.</p>' if has_more else ""
    return document(
        "Flow runs",
        f'{_form(runs, query)}<p id="status" role="status">{waits}</p>'
        f'<div id="live" data-seconds="{seconds}">{_states(filtered, query)}{_table(rows, query, base, now)}'
        f"{cut}{_pages(len(rows), query)}</div>",
    )


def _form(runs: Iterable[Conversation], query: Query) -> str:
    fields = []
    for name, value_of in _FILTERS.items():
        chosen = query.filters.get(name, "")
        values = sorted({value_of(run) for run in runs} | {chosen} - {""})
        options = "".join(
            f'<option value="{escaped(value)}"{" selected" if value == chosen else ""}>{shown(value, 80)}</option>'
            for value in values
            if value
        )
        label = "DAG" if name == "dag" else name.capitalize()
        fields.append(
            f'<label>{label}<select name="{name}"><option value="">All</option>{options}</select></label>'
        )
    if state := query.filters.get("state"):
        fields.append(f'<input type="hidden" name="state" value="{escaped(state)}">')
    return (
        f'<form method="get" role="search" aria-label="Filters">{"".join(fields)}<button>Show</button></form>'
    )


def _states(runs: Iterable[Conversation], query: Query) -> str:
    counts = Counter(run.state for run in runs)
    chosen = query.filters.get("state")
    links = [_state_link(query.url(state=""), f"all {counts.total()}", is_current=chosen is None)]
    for state in RunState:
        name = state.name.lower()
        if counts[state] or chosen == name:
            urgent = state in URGENT and bool(counts[state])
            link = _state_link(
                query.url(state=name),
                f"{state.value} {counts[state]}",
                is_current=chosen == name,
                urgent=urgent,
            )
            links.append(link)
    return f'<nav aria-label="States"><ul>{"".join(links)}</ul></nav>'


def _state_link(url: str, text: str, *, is_current: bool, urgent: bool = False) -> str:
    current = ' aria-current="true"' if is_current else ""
    look = ' class="urgent"' if urgent else ""
    return f'<li><a href="{url}"{current}{look}>{escaped(text)}</a></li>'


def _table(rows: Sequence[Conversation], query: Query, base: str, now: datetime) -> str:
    start = (query.page - 1) * MAX_ROWS
    part = rows[start : start + MAX_ROWS]
    when = f"As of {time_of(now)}."
    if not part:
        return f'<p class="soft">No flow run is live that matches. {when}</p>'
    which = f"{start + 1} to {start + len(part)} of {len(rows)}"
    heads = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in _COLUMNS)
    body = "".join(_row(run, base, now) for run in part)
    # The roles: a table that is drawn as blocks, on a phone, would lose its own.
    return (
        f'<table role="table"><caption>{which}. {when}</caption><thead role="rowgroup"><tr role="row">{heads}</tr>'
        f'</thead><tbody role="rowgroup">{body}</tbody></table>'
    )


def _row(run: Conversation, base: str, now: datetime) -> str:
    cells = (
        _state_cell(run, now),
        f"<span>{flow_of(run)}</span><small>{shown(run.conn_id, 100)}</small>",
        run_of(run),
        _task_cell(run, base),
        _word_cell(run, now),
        _time_left(run, now),
    )
    labelled = zip(_COLUMNS, cells, strict=True)
    row = "".join(f'<td role="cell" data-label="{column}">{content}</td>' for column, content in labelled)
    return f'<tr role="row">{row}</tr>'


def _state_cell(run: Conversation, now: datetime) -> str:
    text = f"<span>{state_of(run, now)}</span>"
    if run.state is RunState.WAITING:
        return text
    if not run.is_urgent:
        return f"{text}<small>{ago(run.at, now)}</small>"
    return f'<span class="urgent">{state_of(run, now)}</span>'


def state_of(run: Conversation, now: datetime) -> str:
    """Return the state of a run in words, as HTML."""
    match run.state:
        case RunState.DOUBT:
            return "in doubt: was a run started?"
        case RunState.WAITING if run.since:
            return f"waiting since {ago(run.since, now)}"
        case RunState.ENDED:
            return f"ended: {shown(str(run.end.get('status', 'not read')), 40)}"
        case RunState.UNKNOWN:
            return "unknown: its entries cannot be read here"
    return escaped(run.state.value)


def flow_of(run: Conversation) -> str:
    """Return the flow of a run, as HTML."""
    return shown(run.flow_id, 100) if run.flow_id else '<span class="soft">that of the API key</span>'


def run_of(run: Conversation) -> str:
    """Return the run as HTML: its id, which is a link to the application if that is known."""
    run_id = run.run.get("run_id")
    link = run.run.get("run_link")
    text = shown(str(run_id), 100) if run_id else ("the run" if link else "")
    name = f" <small>{shown(run.name, 100)}</small>" if run.name else ""
    return f"{web_link(link, text) if text else ''}{name}"


def _task_cell(run: Conversation, base: str) -> str:
    task = run.task
    name = shown(task.task_id, 250) + (f" [{task.map_index}]" if task.map_index >= 0 else "")
    path = f"{base}/{task_path(task)}"
    dag = f"{base}/{task_path(task).partition('/runs/')[0]}"
    return (
        f'<a href="{escaped(path)}/plugin/flow-run" target="_top">{name}</a>'
        f'<small><a href="{escaped(dag)}" target="_top">{shown(task.dag_id, 250)}</a></small>'
    )


def _word_cell(run: Conversation, now: datetime) -> str:
    if run.state is RunState.SENDING:
        return counts_of(run)
    message, at = run.last_word
    parts = [f"<span>{shown(message)}</span>" if message else ""]
    if run.progress is not None:
        parts.append(progress_bar(run.progress, f"Progress of the run of {run.task.task_id}"))
    if at:
        parts.append(f"<small>{ago(at, now)} ago</small>")
    return "".join(parts)


def counts_of(run: Conversation) -> str:
    """Return the counts of a batch, as HTML."""
    counts = run.counts
    total = counts.get("total", 0)
    if total <= 0:
        return '<span class="soft">not counted</span>'
    done = max(0, min(total, total - counts.get("remaining", 0)))
    words = [f"{counts.get('started', 0)} of {total} started"]
    words += [f"{counts[name]} {name}" for name in ("rejected", "unknown") if counts.get(name)]
    bar = progress_bar(done / total, f"Progress of the batch of {run.task.task_id}")
    return f"<span>{', '.join(words)}</span>{bar}"


def progress_bar(part: float, label: str) -> str:
    """
    Return a bar and its percentage, as HTML.

    :param part: from 0 to 1
    """
    percent = f"{int(part * 100)} %"
    return (
        f'<span><progress max="1" value="{part:.4f}" aria-label="{escaped(label)}">{percent}</progress>'
        f" {percent}</span>"
    )


def _time_left(run: Conversation, now: datetime) -> str:
    if run.until is None:
        return ""
    left = (run.until - now).total_seconds()
    return time_of(run.until, duration(left) if left > 0 else "none")


def _pages(rows: int, query: Query) -> str:
    links = []
    if query.page > 1:
        links.append(f'<a rel="prev" href="{query.url(page=str(query.page - 1))}">Newer</a>')
    if query.page * MAX_ROWS < rows:
        links.append(f'<a rel="next" href="{query.url(page=str(query.page + 1))}">Older</a>')
    return f'<nav aria-label="Pages"><p>{" ".join(links)}</p></nav>' if links else ""
