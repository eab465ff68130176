"""
What a task read and made, for lineage: files as inputs; runs, flows and files as outputs.

Each is a URI. Airflow's hook lineage collector takes them as they are; OpenLineage gets a dataset for each, named as its
naming conventions say.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from airflow.providers.common.compat.sdk import Asset

from workflow_automation_provider.assets import uri_of
from workflow_automation_provider.client.files import File
from workflow_automation_provider.client.protocol import parse_base_url
from workflow_automation_provider.hooks.connection import base_url

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseHook, Connection, HookLineageCollector
    from airflow.providers.openlineage.extractors import OperatorLineage

_log = logging.getLogger(__name__)

MAX_INPUTS = 50
"""Inputs of a task: with more files, report folders; with more folders, the first ones."""

# Every other byte is encoded: a URI's path ends at ? and #.
_PLAIN = "/!$&'()*+,;=:@~"

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"(?:[\w.~-]+(?::\d{1,5})?)?")
_MAGIC = re.compile(r"[*?[]")
_SIGN = re.compile(r"[?#]")

# Encoded ones as well, however often: whoever made the URL may have meant what they stand for.
_AT = re.compile(r"@|%(?:25)*40")
# A query, another URL, or a signature within a path.
_NO_PATH = re.compile(
    r"[?#]|%(?:25)*(?:23|3f)|::|://"
    r"|(?:sig|signature|token|password|passwd|pwd|secret|credential|jsessionid|(?:api|access|account)[-_]?key)(?:=|%(?:25)*3d)",
    re.IGNORECASE,
)
_LOGIN = re.compile(r":.*@", re.DOTALL)


class Lineage(NamedTuple):
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
    Return the URIs of files, in order: at most :data:`MAX_INPUTS`, otherwise those of their folders.

    They have no login and no query. A file is left out if its URL may have one where a URL has none.

    :param files: what was resolved, or a source or several as a DAG author passes them. A glob is reported as its folder
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
        if len(uris) > MAX_INPUTS:
            if len(folders) == MAX_INPUTS:
                break
            if parent in seen:
                continue
        uri = _uri(place, may_be_glob=not isinstance(file, File))
        if uri is None:
            continue
        uris[uri] = None
        if len(folders) < MAX_INPUTS:
            folders[_folder(uri)] = None
            seen.add(parent)
    return [*uris] if len(uris) <= MAX_INPUTS else [*folders]


def _folder(uri: str) -> str:
    scheme, _, path = uri.partition("://")
    return f"{scheme}://{path.rpartition('/')[0] or '/'}"


def _place(file: object) -> str | None:
    """Return the path or URL of a file; None if it has none."""
    if isinstance(file, File):
        return file.location
    if isinstance(file, Asset):
        file = file.uri
    return str(file) or None if isinstance(file, str | os.PathLike) else None


def _uri(place: str, *, may_be_glob: bool) -> str | None:
    """
    Return the URI of a file.

    :param may_be_glob: of a glob, the URI is that of its folder
    :return: None if the URI might reveal a secret, or there is no text for it
    """
    try:
        if url := _URL.fullmatch(place):
            return _uri_of_url(url[1].lower(), url[2], may_be_glob=may_be_glob)
        if "://" in place or _LOGIN.search(place):
            return None
        folder = _before_glob(place) if may_be_glob else place
        return f"file://{_quote(str(Path(folder or '.').absolute()))}"
    except UnicodeEncodeError:
        return None


def _uri_of_url(scheme: str, rest: str, *, may_be_glob: bool) -> str | None:
    query = ""
    if scheme in ("http", "https") and (sign := _SIGN.search(rest)):
        rest, query = rest[: sign.start()], rest[sign.end() :]
    authority, slash, path = rest.partition("/")
    login, _, host = authority.rpartition("@")
    # A password may have a character at which the host of a URL ends: what looks like a host is a login if an @ follows.
    # In the query of a signed URL, an encoded one is nothing unusual.
    is_login = "@" in query or _AT.search(path) or ((":" in host or not slash) and _AT.search(query))
    if is_login or _SIGN.search(login) or not _HOST.fullmatch(host):
        return None
    if may_be_glob:
        path = _before_glob(path)
    if _NO_PATH.search(path):
        return None
    rest = f"{host}{slash}{_quote(path)}".rstrip("/")
    return f"{scheme}://{rest or '/'}"


def _before_glob(path: str) -> str:
    """Return the folder of a glob, or a path that is none."""
    if sign := _MAGIC.search(path):
        path = path[: sign.start()].rpartition("/")[0] or ("/" if path.startswith("/") else "")
    return path


def _quote(path: str) -> str:
    return quote(path, safe=_PLAIN, errors="surrogateescape")


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
            # Airflow rejects some URIs, such as those that are too long.
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
