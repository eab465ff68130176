"""
The files and the flow of a task, for Airflow's lineage collector.

OpenLineage's provider reads it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import Asset

from workflow_automation_provider.assets import uri_of
from workflow_automation_provider.client.files import File

if TYPE_CHECKING:
    from airflow.sdk import BaseHook
    from airflow.sdk.lineage import HookLineageCollector

_log = logging.getLogger(__name__)

MAX_INPUTS = 50
"""The most inputs that are reported: of more, the first."""

# A connection ID or a user is left out; elsewhere, an @, a query or an encoded character may be a
# secret's.
_URL = re.compile(r"([a-z][a-z0-9+.-]*://)(?:[\w.-]+@)?([\w.~-]*(?::\d+)?/[^@?#%]*)", re.ASCII)
_FILE = "file://"


def collect(
    hook: BaseHook, flow_id: str | None, *, read: object = (), written: object = ()
) -> None:
    """
    Give the flow and the files to Airflow's collector, if anything reads it.

    A failure is only logged.

    :param hook: has the client with the flow's base URL
    :param flow_id: the flow, None if it is unknown
    :param read: files, see :func:`uris_of`
    :param written: files
    """
    try:
        if not _is_read():
            return

        from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

        collector: HookLineageCollector = get_hook_lineage_collector()  # type: ignore[no-untyped-call]
        if flow_id:
            collector.add_output_asset(context=hook, uri=uri_of(hook.get_conn().base_url, flow_id))

        for add, files in (
            (collector.add_output_asset, written),
            (collector.add_input_asset, read),
        ):
            for uri in uris_of(files):
                add(context=hook, uri=uri)
    except Exception:
        _log.warning("The lineage is incomplete.", exc_info=True)


def _is_read() -> bool:
    # Asked first, because Airflow imports its providers' assets to make a collector.
    try:
        from airflow.sdk.plugins_manager import get_hook_lineage_readers_plugins
    except ImportError:  # before Airflow 3.2
        return True
    return bool(get_hook_lineage_readers_plugins())


def uris_of(files: object) -> list[str]:
    """
    Return the URIs of files, in order, at most :data:`MAX_INPUTS`.

    :param files: what was resolved, or a source or several as a DAG author passes them
    """
    is_one = isinstance(files, str | os.PathLike | Asset | Mapping | File)
    if is_one or not isinstance(files, Iterable):
        files = [files]

    uris = dict.fromkeys(filter(None, map(_uri, files)))
    return [*uris][:MAX_INPUTS]


def _uri(file: object) -> str | None:
    """Return the URI of a file; None if it has none, or one that might reveal a secret."""
    location = file.location if isinstance(file, File) else getattr(file, "uri", file)
    if not location or not isinstance(location, str | os.PathLike):
        return None

    url = str(location)
    if "://" not in url:
        url = f"{_FILE}{Path(url).absolute()}"

    found = _URL.fullmatch(url)
    if found is None or not url.isprintable():
        return None

    scheme, path = found.groups()
    if scheme == _FILE:  # percent-encoded, by RFC 8089; the key of an object has no encoding
        path = quote(path)

    return scheme + path
