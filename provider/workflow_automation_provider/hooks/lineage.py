"""
What a task read and made, for lineage: files as inputs; runs, flows and files as outputs.

Each is a URI. Airflow's hook lineage collector takes them as they are; OpenLineage gets a dataset for each, named as its
naming conventions say.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from airflow.providers.common.compat.sdk import Asset

from workflow_automation_provider.assets import uri_of
from workflow_automation_provider.client.files import File
from workflow_automation_provider.client.protocol import parse_base_url
from workflow_automation_provider.hooks.connection import base_url

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseHook, Connection, HookLineageCollector
    from airflow.providers.openlineage.extractors import OperatorLineage

__all__ = ["MOST_INPUTS", "Lineage", "asset_uri", "collect", "collect_run", "inputs_of", "operator_lineage"]

_log = logging.getLogger(__name__)

MOST_INPUTS = 50
"""The most inputs of a task: of more files, their folders are told, and of more folders, the first ones."""

# Every other byte is encoded: a URI's path ends at ? and #.
_PLAIN = "/!$&'()*+,;=:@~"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """
    What a task read and made, by URI.

    :param run_link: of the run, if it is the output
    :param files: how many files were uploaded, if any
    :param size: their size in bytes
    """

    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    run_link: str | None = None
    files: int | None = None
    size: int | None = None


def asset_uri(connection: Connection, flow_id: str, run_id: str | None = None) -> str:
    """
    Return the URI of a flow, or of a run.

    :raises InvalidRequestError: if the connection's base URL is invalid
    """
    return uri_of(parse_base_url(base_url(connection), allow_http=True), flow_id, run_id)


def inputs_of(files: object) -> list[str]:
    """
    Return the URIs of files, in order: at most :data:`MOST_INPUTS`, otherwise those of their folders.

    :param files: what was resolved, or a source or several as a DAG author passes them. Of a glob, its folder is told
    """
    if isinstance(files, str | os.PathLike | Asset | Mapping | File) or not isinstance(files, Iterable):
        files = [files]
    uris: dict[str, None] = {}
    folders: dict[str, None] = {}
    seen: set[str] = set()
    for file in files:
        place = _place(file)
        if place is None:
            continue
        parent = place.rpartition("/")[0]
        if len(uris) > MOST_INPUTS:
            if len(folders) == MOST_INPUTS:
                break
            if parent in seen:
                continue
        uri = _uri(place)
        uris[uri] = None
        if len(folders) < MOST_INPUTS:
            folders[_folder(uri)] = None
            seen.add(parent)
    return [*uris] if len(uris) <= MOST_INPUTS else [*folders]


def _folder(uri: str) -> str:
    scheme, _, path = uri.partition("://")
    return f"{scheme}://{path.rpartition('/')[0] or '/'}"


def _place(file: object) -> str | None:
    """Return the path or URL of a file, or of the folder of a glob; None if it has none."""
    if isinstance(file, File):
        return file.location
    if isinstance(file, Asset):
        file = file.uri
    if not isinstance(file, str | os.PathLike) or not (place := str(file)):
        return None
    if not glob.has_magic(place):
        return place
    before = place[: min(place.index(sign) for sign in "*?[" if sign in place)]
    return before.rpartition("/")[0] or ("/" if before.startswith("/") else ".")


def _uri(place: str) -> str:
    if "://" not in place:
        return f"file://{quote(str(Path(place).absolute()), safe=_PLAIN, errors='surrogateescape')}"
    scheme, _, rest = place.partition("://")
    if scheme in ("http", "https"):
        rest = rest.partition("?")[0].partition("#")[0]  # which may hold a signature
    # Without a connection's id, or a login.
    host, slash, path = rest.partition("/")
    found = f"{host.rpartition('@')[2]}{slash}{quote(path, safe=_PLAIN, errors='surrogateescape')}"
    return f"{scheme}://{found.rstrip('/') or '/'}"


def collect(hook: BaseHook, lineage: Lineage) -> None:
    """Give the lineage to Airflow's hook lineage collector, if anything reads it."""
    if not _is_read():
        return
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    collector: HookLineageCollector = get_hook_lineage_collector()  # type: ignore[no-untyped-call]
    for add, uris in (
        (collector.add_output_asset, lineage.outputs),
        (collector.add_input_asset, lineage.inputs),
    ):
        for uri in uris:
            # Airflow rejects some URIs, such as those of more than 1500 characters.
            try:
                add(context=hook, uri=uri)
            except ValueError:
                _log.warning("%s is left out of the lineage.", uri, exc_info=True)


def _is_read() -> bool:
    # To make a collector, Airflow imports its providers' assets, also if that collects nothing.
    try:
        from airflow.sdk.plugins_manager import get_hook_lineage_readers_plugins
    except ImportError:  # before Airflow 3.2
        return True
    return bool(get_hook_lineage_readers_plugins())


def collect_run(
    hook: BaseHook,
    connection: Callable[[], Connection],
    flow_id: str | None,
    run_id: object,
    files: Iterable[object] = (),
) -> None:
    """
    Give a run as output, and its files as inputs, to the collector. A failure is only logged: the run is there.

    :param connection: returns the connection, which a retry that returns an earlier run has not read yet
    :param flow_id: the flow; without it, or without a ``run_id``, there is no output
    """
    try:
        outputs = [asset_uri(connection(), flow_id, str(run_id))] if flow_id and run_id else []
        collect(hook, Lineage(inputs=inputs_of(files), outputs=outputs))
    except Exception:
        _log.warning("The lineage of run %s could not be collected.", run_id, exc_info=True)


def operator_lineage(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """Return the lineage as OpenLineage's provider, which must be installed, takes it from an operator."""
    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        DocumentationDatasetFacet,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    facets: dict[str, Any] = {}
    statistics: dict[str, Any] = {}
    if lineage.run_link:
        facets["documentation"] = DocumentationDatasetFacet(description=lineage.run_link)
    if lineage.files is not None:
        statistics["outputStatistics"] = OutputStatisticsOutputDatasetFacet(
            fileCount=lineage.files, size=lineage.size
        )
    return OperatorLineage(
        inputs=[Dataset(*_dataset(uri)) for uri in lineage.inputs],
        outputs=[
            OutputDataset(*_dataset(uri), facets=facets, outputFacets=statistics) for uri in lineage.outputs
        ],
    )


def _dataset(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of a dataset."""
    parts = urlsplit(uri)
    path = unquote(parts.path, errors="replace")
    if parts.scheme == "file":
        return "file", path
    return f"{parts.scheme}://{parts.netloc}", path.lstrip("/") or "/"
