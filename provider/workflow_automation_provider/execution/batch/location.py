"""Where a file of a batch is: on the local disk, or in a store of Airflow's object storage."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from typing import Any

from airflow.sdk import ObjectStoragePath
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.files.paths import local_path
from workflow_automation_provider.hooks.files.stores import as_url, bucket_of, stored_at


@dataclass(frozen=True)
class Location:
    """
    A place in a file system.

    :param fs: the file system
    :param key: what the file system calls the file
    """

    fs: Any
    key: str

    @property
    def bucket(self) -> str:
        """The bucket, empty in a file system without buckets."""
        return bucket_of(self.key)

    def is_same_as(self, other: Location) -> bool:
        """Return whether both are one file, reached by the same connection."""
        if self.fs != other.fs:
            return False
        if other.bucket:
            return self.key == other.key
        return _normal(self.key) == _normal(other.key)


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


def _normal(key: str) -> str:
    """Return the path of a file system without ``.``, ``..`` and double slashes."""
    return posixpath.normpath(f"/{key.lstrip('/')}")
