"""What a DAG author names as files, as files that can be sent. Nothing is silently skipped."""

from __future__ import annotations

import glob
import mimetypes
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_automation_provider.client.errors import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.client.files import Element, File

FileSource = str | os.PathLike[str] | Mapping[str, Any]
"""A local path, a glob over local paths, or a JSON object that is sent as it stands."""


def resolve(files: FileSource | Iterable[FileSource]) -> list[Element]:
    """
    Find the files to upload.

    :param files: one source or several; a glob may use ``*``, ``?``, ``[…]`` and ``**``, and does not match
        names that begin with a dot
    :raises FileUnavailableError: for a missing file, a glob without a match, a directory or anything else
        that is no readable file, naming it
    :raises InvalidRequestError: if there is nothing to upload, or a source is of another type
    """
    if isinstance(files, str | os.PathLike | Mapping):
        files = [files]
    elif not isinstance(files, Sequence | set | frozenset | Iterator):
        raise InvalidRequestError(
            f"files is a {type(files).__name__}: give a list of paths, globs or mappings. Nothing was sent."
        )
    elements = [element for number, source in enumerate(files) for element in _elements(source, number)]
    if not elements:
        raise InvalidRequestError(
            "files is empty: give at least one path, glob or mapping. Nothing was sent."
        )
    return elements


def _elements(source: FileSource, number: int) -> Iterator[Element]:
    if isinstance(source, Mapping):
        yield source
    elif isinstance(source, str | os.PathLike):
        for path in _paths(os.fspath(source), f"files[{number}]"):
            yield _local_file(path)
    else:
        raise InvalidRequestError(
            f"files[{number}] is a {type(source).__name__}: give a path, a glob or a mapping. Nothing was sent."
        )


def _paths(text: str, name: str) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(
            f"{name} is an empty path: give a path, a glob or a mapping. Nothing was sent."
        )
    # A file whose own name looks like a pattern is meant as it is written.
    if not glob.has_magic(text) or os.path.lexists(text):
        return [text]
    matches = sorted(glob.glob(text, recursive=True))
    if "**" in text:
        # What lies in these folders is matched as well; elsewhere a folder in a match is an error.
        matches = [match for match in matches if not Path(match).is_dir()]
    if not matches:
        raise FileUnavailableError(f"{name}: the glob {text!r} matches no file. Nothing was sent.")
    return matches


def _local_file(path: str) -> File:
    try:
        state = Path(path).stat()
        if stat.S_ISDIR(state.st_mode):
            raise FileUnavailableError(
                f"{path!r} is a directory: name its files, or a glob such as {path.rstrip('/')}/*. Nothing was sent."
            )
        if not stat.S_ISREG(state.st_mode):
            raise FileUnavailableError(f"{path!r} is no regular file. Nothing was sent.")
        with Path(path).open("rb"):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FileUnavailableError(f"{path!r} cannot be read: {why}. Nothing was sent.") from None
    return File(
        name=Path(path).name,
        size=state.st_size,
        content_type=mimetypes.guess_type(path)[0] or "application/octet-stream",
        source=repr(path),
        open=lambda: Path(path).open("rb"),
        fingerprint=lambda: _fingerprint(path),
    )


def _fingerprint(path: str) -> object:
    state = Path(path).stat()
    return state.st_size, state.st_mtime_ns, state.st_ino
