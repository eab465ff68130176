"""The tab **Flow run** as HTML: what one task and its run have said to each other, and what a person can do now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from workflow_automation_provider.execution.errors import how_to_continue
from workflow_automation_provider.plugins.runs_metadata import PREFIX, FlowTask
from workflow_automation_provider.plugins.runs_state import ENDED, Conversation, RunState, time
from workflow_automation_provider.plugins.runs_text import escaped, shown, time_of
from workflow_automation_provider.plugins.runs_view import (
    counts_of,
    document,
    flow_of,
    progress_bar,
    run_of,
    state_of,
)

_MAX_TEXT = 4000


class _Step(NamedTuple):
    """
    A step of the conversation.

    :param content: HTML
    """

    title: str
    at: datetime | None
    content: str = ""


def task_page(task: FlowTask, runs: Sequence[Conversation], now: datetime, seconds: int) -> str:
    """
    Return the tab of a task instance.

    :param seconds: until the page refreshes itself
    """
    parts = "".join(_part(run, now) for run in runs)
    if not runs:
        earlier = " What its entries say is from before it was cleared." if task.entries else ""
        parts = f'<p class="soft">This task has recorded no flow run since it was last cleared.{earlier}</p>'
    status = f"The task is {escaped(task.state or 'not scheduled yet')}."
    return document(
        "Flow run",
        f'<p id="status" role="status">{status}</p><div id="live" data-seconds="{seconds}">{parts}'
        f'<p class="soft">As of {time_of(now)}.</p></div>',
    )


def _part(run: Conversation, now: datetime) -> str:
    steps = sorted(_steps(run), key=lambda step: (step.at is None, step.at and step.at.timestamp()))
    listed = "".join(
        f"<li><h3>{escaped(step.title)}</h3> <small>{time_of(step.at)}</small>{step.content}</li>"
        for step in steps
    )
    title = f"<h2>{shown(run.name, 250)}</h2>" if run.name else ""
    urgent = ' class="urgent"' if run.is_urgent else ""
    state = "sent a batch" if run.state is RunState.SENDING and run.task.ended else state_of(run, now)
    return (
        f"{title}<p{urgent}>{state[:1].upper()}{state[1:]}</p>"
        f'<section aria-label="What you can do now"><h2>What you can do now</h2>{_advice(run)}</section>'
        f'<section aria-label="Conversation"><h2>Conversation</h2><ol>{listed}</ol></section>'
    )


def _steps(run: Conversation) -> Iterator[_Step]:
    task = run.task
    if run.state is RunState.SENDING:
        yield _Step("Batch", run.at, f"<p>{counts_of(run)}</p>{_sent(run)}")
    elif run.state is not RunState.UPLOADING:
        yield _Step("Sent", run.at, _sent(run))
    yield from _response(run)
    yield from _claim(run.claim)
    uploads = [entry.at for key, entry in task.entries.items() if key.startswith(f"{PREFIX}upload")]
    if uploads and not run.name:
        yield _Step("Files uploaded", max(uploads))
    if run.since:
        yield _Step("Waiting for the end", run.since)
    if run.word:
        yield _word(run)
    if run.end:
        yield _end(run)
    if task.ended and task.state in ENDED:
        yield _Step(f"The task ended: {task.state}", task.ended)


def _sent(run: Conversation) -> str:
    lines = [f"Flow: {flow_of(run)}"]
    if run.conn_id:
        lines.append(f"Connection: {shown(run.conn_id, 250)}")
    inputs = run.task.rendered.get("inputs") if not run.name else None
    text = _value(inputs, "Inputs") if inputs else ""
    withheld = "The API key is withheld"
    has_token = any(key.startswith(f"{PREFIX}token/") for key in run.task.entries) or run.wait.get("digest")
    if has_token and not run.name:
        withheld = "The API key and the URL for the run's words are withheld"
    return f'<p>{"<br>".join(lines)}</p>{text}<p class="soft">{withheld}.</p>'


def _response(run: Conversation) -> Iterator[_Step]:
    result = run.start.get("result")
    match run.start.get("state"):
        case "started":
            content = f"<p>Run {run_of(run) or 'without a run_id'}</p>"
            if isinstance(result, dict) and "response" in result:
                content += _value(result["response"])
            yield _Step("Response: started", time(run.start.get("at")), content)
        case "unidentified":
            message = result.get("message") if isinstance(result, dict) else ""
            content = f"<p>{shown(str(message), _MAX_TEXT, lines=True)}</p>"
            yield _Step("Response: a run was started, but not which", time(run.start.get("at")), content)
        case "starting":
            yield _Step("No response is known", None)


def _claim(claim: Mapping[str, Any]) -> Iterator[_Step]:
    if claim:
        run_id = claim.get("run_id")
        who = f"Run {shown(str(run_id), 100)}" if run_id else "The run"
        yield _Step(
            "Claim", time(claim.get("at")), f"<p>{who} said that it began, and was told to go on.</p>"
        )
    if stopped := claim.get("stopped"):
        yield _Step("Told to stop", time(stopped), "<p>Airflow does not want this run any longer.</p>")


def _word(run: Conversation) -> _Step:
    message, at = run.last_word
    content = f"<p>{shown(message, _MAX_TEXT, lines=True)}</p>" if message else ""
    if run.progress is not None:
        content += f"<p>{progress_bar(run.progress, 'Progress of the run')}</p>"
    return _Step("Last word", at, content)


def _end(run: Conversation) -> _Step:
    status = run.end.get("status", "not read")
    message, content = run.end.get("message"), f"<p>The run ended: {shown(str(status), 40)}</p>"
    if isinstance(message, str):
        content += f"<p>{shown(message, _MAX_TEXT, lines=True)}</p>"
    if "result" in run.end:
        content += _value(run.end["result"])
    return _Step("End", time(run.end.get("at")), content)


def _value(value: object, label: str = "Value") -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f'<pre tabindex="0" aria-label="{label}">{shown(text, _MAX_TEXT, lines=True)}</pre>'


def _advice(run: Conversation) -> str:
    task, run_id = run.task, run.run.get("run_id")
    if run.state is RunState.WAITING:
        how = "The task continues once the flow calls back. If it does not, look"
        if run.has_no_url:
            how = "The run was given no callback URL: only you can end the wait. Look"
        return f"<p>{how} at the run, and mark the task as success or failed.</p>"
    if run.is_urgent and task.state in ("failed", "upstream_failed"):
        none = " If none was started, clear the task." if run.state is RunState.DOUBT else ""
        return _lines(
            f"Look in the workflow's list of runs.{none}\n"
            f"If one was started, {how_to_continue(name=run.name or '')}"
        )
    if run.is_urgent:
        return "<p>Look in the workflow's list of runs. The task's log says what its next try does.</p>"
    if task.state == "failed" and run_id and not run.name:
        return _lines(f"If it is to go on, {how_to_continue(str(run_id))}")
    if task.state in ("success", "failed", "removed", "skipped"):
        return "<p>The task has ended: a Clear starts another run.</p>"
    return "<p>Nothing: the task goes on by itself.</p>"


def _lines(text: str) -> str:
    return f"<p>{escaped(text).replace(chr(10), '<br>')}</p>"
