"""Texts of others as HTML: escaped, cut, without a character that hides or turns others; and links that are links."""

from __future__ import annotations

import html
import re
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from workflow_automation_provider.client.checks import one_line

if TYPE_CHECKING:
    from workflow_automation_provider.plugins.runs_metadata import FlowTask

_MAX_LINK = 2000
_NOT_IN_LINKS = re.compile(r"[\s\x00-\x20\x7f\\]")


def escaped(text: object) -> str:
    """Return a text of ours as HTML."""
    return html.escape(str(text))


def shown(text: str, limit: int = 300, *, lines: bool = False) -> str:
    """
    Return a text of others as HTML.

    :param limit: in characters; what is longer is cut
    :param lines: whether to keep its line breaks
    """
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    parts = cut.splitlines() if lines else [cut]
    clean = "\n".join("".join(map(_visible, one_line(part))) for part in parts)
    return f"<bdi>{html.escape(clean)}</bdi>"


def _visible(character: str) -> str:
    # Those that change the direction, or cannot be seen: a text could look like another.
    if unicodedata.category(character) in ("Cf", "Co", "Cn"):
        return f"\\u{ord(character):04x}"
    return character


def web_link(url: object, text: str) -> str:
    """Return a link to another site as HTML, the text alone unless the URL is one of http or https."""
    if isinstance(url, str) and len(url) <= _MAX_LINK and not _NOT_IN_LINKS.search(url):
        try:
            parts = urlsplit(url)
            is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
        except ValueError:
            is_web = False
        if is_web:
            href = html.escape(url)
            return f'<a href="{href}" target="_blank" rel="noopener noreferrer nofollow">{text}</a>'
    return text


def task_path(task: FlowTask) -> str:
    """Return the path of a task instance's page in Airflow."""
    parts = ["dags", task.dag_id, "runs", task.run_id, "tasks", task.task_id]
    if task.map_index >= 0:
        parts += ["mapped", str(task.map_index)]
    return "/".join(quote(part, safe="") for part in parts)


def time_of(at: datetime | None, text: str = "") -> str:
    """Return a time as HTML, in UTC; empty if it is not known."""
    if at is None:
        return ""
    at = at.astimezone(UTC)
    iso = at.isoformat(timespec="seconds")
    return f'<time datetime="{iso}" title="{iso}">{text or f"{at:%Y-%m-%d %H:%M:%S} UTC"}</time>'


def duration(seconds: float) -> str:
    """Return how long something takes, in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= length):
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def ago(at: datetime | None, now: datetime) -> str:
    """Return since when something is, as HTML; empty if that is not known."""
    return time_of(at, duration((now - at).total_seconds())) if at else ""
