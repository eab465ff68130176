"""Resolve what a DAG author names to files, in order. Nothing is silently skipped."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, ObjectStoragePath

from workflow_automation_provider.client.files import Element, File
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.client.rendered_values import check_text
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.files.local_files import local_files
from workflow_automation_provider.hooks.files.paths import local_path
from workflow_automation_provider.hooks.files.stored_files import stored_files
from workflow_automation_provider.wording import kind_of

if TYPE_CHECKING:
    from workflow_automation_provider.hooks.files.objects import ObjectStore

# The content of a file, which could be taken for a list.
_CONTENT = bytes | bytearray | memoryview | io.IOBase

FileSource = str | os.PathLike[str] | ObjectStoragePath | Asset | Mapping[str, Any] | File
"""
A local path or glob; a URL, prefix or glob that ``ObjectStoragePath`` reads; an
``ObjectStoragePath``, or an asset with such a URI; or a JSON object that is sent unchanged.
"""


def resolve(files: FileSource | Iterable[FileSource]) -> list[Element]:
    """
    Return the files to upload.

    :param files: one source or several; a glob may use ``*``, ``?``, ``[…]`` and ``**``, and does
        not match local names that begin with a dot. A store's URL that ends in ``/`` is a prefix:
        everything below it is uploaded
    :raises FileUnavailableError: if a file is missing or cannot be read, a folder cannot be
        listed, a glob or prefix matches nothing, or a store cannot be reached, naming it
    :raises InvalidRequestError: if there is nothing to upload, a source is a directory or
        otherwise no file, or of another type, or there is no store for a URL
    """
    if isinstance(files, str | os.PathLike | ObjectStoragePath | Asset | Mapping | File):
        files = [] if files == {} else [files]
    elif isinstance(files, _CONTENT) or not isinstance(files, Sequence | Iterator):
        raise InvalidRequestError(
            f"files is {kind_of(files)}: expected a list of paths, globs, URLs or mappings."
        )

    # First, the look-ups of all objects that are named are begun; then each is waited for.
    stores: dict[int, ObjectStore] = {}
    begun = [
        _elements_of(f"files[{number}]", source, stores) for number, source in enumerate(files)
    ]
    elements = [element for found in begun for element in found]
    if not elements:
        raise InvalidRequestError(
            "files is empty: expected at least one path, glob, URL or mapping."
        )

    return elements


def _elements_of(
    name: str, source: FileSource, stores: dict[int, ObjectStore]
) -> Iterable[Element]:
    """
    Return the elements of a source, which are found as they are iterated.

    The look-up of an object that is named begins now.
    """
    if isinstance(source, Asset):
        # Airflow drops a slash at the end and what follows "#": another file may be there.
        if "://" in source.name and source.name != source.uri:
            raise InvalidRequestError(
                f"{name} is the asset {shown(source.name)}, "
                f"whose URI Airflow has changed to {shown(source.uri)}.",
                next_step="Give the URL of the file as text.",
            )

        source = source.uri
    if isinstance(source, Mapping | File):
        return [source]

    # Before universal-pathlib 0.3, an ObjectStoragePath is one.
    if isinstance(source, os.PathLike) and not isinstance(source, ObjectStoragePath):
        return local_files(name, os.fspath(source))
    if not isinstance(source, str | ObjectStoragePath):
        raise InvalidRequestError(
            f"{name} is {kind_of(source)}: expected a path, a glob, a URL or a mapping."
        )

    path = local_path(name, source)
    if path is not None:
        return local_files(name, path)

    check_text(name, str(source))
    return stored_files(name, source, stores)
