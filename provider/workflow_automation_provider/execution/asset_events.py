"""Add what a task did to the events of its assets, for the DAGs that these events start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetRef

from workflow_automation_provider.client.checks import one_line

if TYPE_CHECKING:
    from airflow.sdk import Context

MAX_LINK = 2000
"""The most characters of a ``run_link`` that events tell."""


def link_of(run: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the ``run_link`` of a run as events tell it.

    :return: empty if there is none, or if it is no text, is too long, or cannot be stored: that would fail the task
    """
    link = run.get("run_link")
    is_told = isinstance(link, str) and 0 < len(link) <= MAX_LINK and one_line(link) == link
    return {"run_link": str(link)} if is_told else {}


def add_to_events(context: Context, outlets: Iterable[object], extra: Mapping[str, Any]) -> None:
    """Add an extra to the event of each asset of a task."""
    # Not in a context that a test made.
    events: Any = context.get("outlet_events")
    if events is None:
        return
    for outlet in outlets:
        if isinstance(outlet, Asset | AssetRef):
            events[outlet].extra.update(extra)
