"""
Flows as assets of Airflow.

Their URI is their URL in the service's API, with the scheme ``workflow-automation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from airflow.sdk import Asset

from workflow_automation_provider.client.urls import path_segment
from workflow_automation_provider.get_provider_info import ASSET_SCHEME

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

__all__ = ["convert_asset_to_openlineage", "create_asset", "sanitize_uri", "uri_of"]


def create_asset(*, base_url: str, flow_id: str, extra: dict[str, Any] | None = None) -> Asset:
    """
    Return the asset of a flow.

    :param base_url: the service's URL, as in the connection
    """
    return Asset(uri_of(base_url, flow_id), extra=extra or {})


def uri_of(base_url: str, flow_id: str) -> str:
    """
    Return the URI of a flow.

    It makes no asset: that would import Airflow's providers.
    """
    base = base_url.rpartition("://")[2].rstrip("/")
    return f"{ASSET_SCHEME}://{base}/flows/{path_segment(flow_id)}"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """
    Normalize the URI of a flow, as Airflow asks for it.

    :raises ValueError: if it has no host, or names no flow
    """
    _, flows, flow_id = uri.path.rpartition("/flows/")
    if not (uri.hostname and flows and flow_id):
        raise ValueError(
            f"URI format {ASSET_SCHEME}:// must be {ASSET_SCHEME}://HOST/…/flows/FLOW."
        )

    return uri._replace(netloc=uri.netloc.rpartition("@")[2].lower(), query="", fragment="")


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001 - Airflow passes it
    """Return the OpenLineage dataset of a flow."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    parts = urlsplit(asset.uri)
    return Dataset(
        namespace=f"{parts.scheme}://{parts.netloc}", name=unquote(parts.path.lstrip("/"))
    )
