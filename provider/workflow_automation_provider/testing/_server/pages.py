"""The web pages: a list of the runs, and a page for each, which is where its ``run_link`` leads."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from workflow_automation_provider.testing.journal import Journal, SentCallback, Upload

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; overflow-wrap: anywhere }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd }}
th, time {{ white-space: nowrap }}
pre {{ background: #f5f5f5; padding: .8rem; white-space: pre-wrap }}
</style></head><body><h1>{title}</h1>{body}</body></html>"""
_ALL_RUNS = '<p><a href="/">All runs</a></p>'


async def index(journal: Journal, _: Request) -> Response:
    """Show the runs, newest first."""
    rows = "".join(
        f'<tr><td><a href="/runs/{_text(run.run_id)}">{_text(run.run_id)}</a></td>'
        f"<td>{_text(run.flow_id)}</td><td>{_time(run.at)}</td></tr>"
        for run in reversed(journal.runs())
    )
    if not rows:
        return _page("Runs", "<p>No run has been started yet.</p>")
    return _page(
        "Runs", f"<table><tr><th>Run</th><th>Flow</th><th>At (UTC)</th></tr>{rows}</table>"
    )


async def run(journal: Journal, request: Request) -> Response:
    """Show one run with its inputs, files and callbacks."""
    run_id = request.path_params["run_id"]
    run = next((run for run in journal.runs() if run.run_id == run_id), None)
    if run is None:
        return _page("No such run", _ALL_RUNS, status=404)

    started_by = "path" if run.by == "path" else f"key “{run.key}”"
    body = (
        f"<table><tr><th>Flow</th><td>{_text(run.flow_id)}</td></tr>"
        f"<tr><th>Started by</th><td>{_text(started_by)}</td></tr>"
        f"<tr><th>At (UTC)</th><td>{_time(run.at)}</td></tr></table>"
        f"<h2>Inputs</h2>{_json(run.inputs)}"
    )

    uploads = [_upload(upload) for upload in journal.uploads() if upload.run_id == run_id]
    files = "".join(uploads) or "<p>None.</p>"
    body += f"<h2>Files</h2>{files}"

    callbacks = [_callback(sent) for sent in journal.callbacks() if sent.run_id == run_id]
    if callbacks:
        body += f"<h2>Callbacks</h2>{''.join(callbacks)}"

    return _page(f"Run {run.run_id}", body + _ALL_RUNS)


def _upload(upload: Upload) -> str:
    if upload.files is None:
        files = "<p>Too large to be shown.</p>"
    else:
        files = "".join(_json(file) for file in upload.files)
    return f"<p>{upload.size} bytes at {_time(upload.at)}</p>{files}"


def _callback(callback: SentCallback) -> str:
    response = callback.error or f"{callback.status} {callback.response}"
    attempts = "1 attempt" if callback.attempts == 1 else f"{callback.attempts} attempts"
    return (
        f"<p>POST {_text(callback.url)}<br>{_text(response)} ({attempts}) at "
        f"{_time(callback.at)}</p>"
        f"{_json(callback.body)}"
    )


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        # With an indent, the encoder allows less nesting.
        text = "(nested too deeply to be shown)"
    return f"<pre>{escape(text)}</pre>"


def _time(at: str) -> str:
    """Return a time of the journal in whole seconds."""
    return f"<time>{_text(at[:19].replace('T', ' '))}</time>"


def _text(value: object) -> str:
    return escape(str(value))


def _page(title: str, body: str, status: int = 200) -> Response:
    # Inputs may contain lone surrogates, which UTF-8 cannot encode.
    content = _PAGE.format(title=_text(title), body=body).encode("utf-8", errors="backslashreplace")
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(content, status, headers, media_type="text/html")
