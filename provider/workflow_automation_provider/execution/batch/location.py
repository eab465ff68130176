"""Where a file of a batch is: on the local disk, or in a store of Airflow's object storage."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from airflow.sdk import ObjectStoragePath
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.files.paths import local_path
from workflow_automation_provider.hooks.files.stores import as_url, stored_at


class Location(NamedTuple):
    """
    A place in a file system.

    :param fs: the file system
    :param key: what the file system calls the file
    """

    fs: Any
    key: str


def locate(argument: str, path: str | os.PathLike[str] | ObjectStoragePath) -> Location:
    """
    Return where a path or URL points to; a local link is followed.

    :param argument: the name of the argument that has the path
    :raises InvalidRequestError: if it is not the URL of a store, or is that of a version of an
        object; or if it is a pipe or a device, which cannot be read twice or replaced
    """
    local = local_path(argument, path)
    if local is not None:
        return _locate_local(argument, path, local)

    # An object storage path may have a connection of its own.
    source = path if isinstance(path, ObjectStoragePath) else str(path)
    fs, key = stored_at(argument, source)
    return Location(fs, key)


def _locate_local(argument: str, path: object, name: str) -> Location:
    real = os.path.realpath(name)
    # As it is given: a Path would leave out a slash at its end.
    is_regular = os.path.isfile(real) or os.path.isdir(real)  # noqa: PTH112, PTH113
    if os.path.exists(real) and not is_regular:  # noqa: PTH110
        raise InvalidRequestError(
            f"{argument} is {shown_path(path)}, a pipe or a device: expected a regular file."
        )

    # Not Airflow's, which looks through all providers first.
    return Location(LocalFileSystem(), real)


def shown_path(path: object) -> str:
    """Return a path or URL as an error shows it, without credentials."""
    return shown(as_url(path))
