"""Add what a task did to the events of its assets, for the DAGs that these events start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk.definitions.asset import AssetRef
    from airflow.sdk.types import Logger
else:
    try:
        from airflow.sdk.definitions.asset import AssetRef
    except ImportError:  # Airflow 2 has no references
        AssetRef = Asset

MAX_LINK = 2000
"""The most characters of a ``run_link`` that events tell."""


def link_of(run: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the ``run_link`` of a run as events tell it.

    :return: empty if there is none, or if it is no text, is too long, or cannot be stored: that would fail the task
    """
    link = run.get("run_link")
    if not isinstance(link, str) or not 0 < len(link) <= MAX_LINK or "\0" in link:
        return {}
    try:
        link.encode()
    except UnicodeEncodeError:
        return {}
    return {"run_link": str(link)}


def add_to_events(
    context: Context,
    outlets: Iterable[object],
    extra: Mapping[str, Any],
    flow_uri: Callable[[], str | None],
    log: Logger,
) -> None:
    """
    Add an extra to the event of each asset of a task.

    An alias stands for the assets that were added to it, or else for the asset of the flow.

    :param extra: added to the extra that an event has
    :param flow_uri: returns the URI of the flow's asset, None if the flow is unknown
    """
    # Not in a context that a test made.
    events: Any = context.get("outlet_events")
    if events is None:
        return
    aliases = []
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            aliases.append(outlet)
        elif isinstance(outlet, Asset | AssetRef):
            events[outlet].extra.update(extra)
    # Last: the connection, which the URI needs, may be gone by a retry that returns an earlier run.
    for alias in aliases:
        accessor = events[alias]
        # The latter on Airflow 2, where each of them is a dict.
        added = getattr(accessor, "asset_alias_events", None) or getattr(
            accessor, "dataset_alias_events", None
        )
        for event in added or ():
            (event["extra"] if isinstance(event, dict) else event.extra).update(extra)
        if added:
            continue
        if (uri := flow_uri()) is not None:
            accessor.add(Asset(uri), extra=dict(extra))
        else:
            log.warning(
                "The asset alias %s gets no event: the flow is unknown. Set the connection's Flow ID.",
                alias.name,
            )
