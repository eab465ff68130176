"""
Flows and runs as assets of Airflow.

The URI of a flow is its URL in the service's API, with the scheme ``workflow-automation``; that of a run ends in
``/runs/RUN``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.providers.common.compat.sdk import Asset

from workflow_automation_provider.get_provider_info import ASSET_SCHEME

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

__all__ = ["convert_asset_to_openlineage", "create_asset", "sanitize_uri", "uri_of"]


def create_asset(
    *, base_url: str, flow_id: str, run_id: str | None = None, extra: dict[str, Any] | None = None
) -> Asset:
    """
    Return the asset of a flow, or of one of its runs.

    :param base_url: of the service, as in the connection
    """
    return Asset(uri_of(base_url, flow_id, run_id), extra=extra or {})


def uri_of(base_url: str, flow_id: str, run_id: str | None = None) -> str:
    """Return the URI of a flow or run, without an asset, because creating an asset imports Airflow's providers."""
    uri = f"{ASSET_SCHEME}://{base_url.rpartition('://')[2].rstrip('/')}/flows/{_segment(flow_id)}"
    return uri if run_id is None else f"{uri}/runs/{_segment(run_id)}"


def _segment(identifier: str) -> str:
    segment = quote(identifier, safe="")
    # A segment of only dots would be a relative path.
    return segment if segment.strip(".") else segment.replace(".", "%2E")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """
    Normalize the URI of a flow or run, as Airflow asks for it.

    :raises ValueError: if it has no host, or names no flow
    """
    _, flows, flow_id = uri.path.rpartition("/flows/")
    if not (uri.hostname and flows and flow_id):
        raise ValueError(f"URI format {ASSET_SCHEME}:// must be {ASSET_SCHEME}://HOST/…/flows/FLOW.")
    return uri._replace(netloc=uri.netloc.rpartition("@")[2].lower(), query="", fragment="")


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001 - Airflow passes it
    """Return the dataset of OpenLineage for a flow or run."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    parts = urlsplit(asset.uri)
    return Dataset(namespace=f"{parts.scheme}://{parts.netloc}", name=unquote(parts.path.lstrip("/")))
