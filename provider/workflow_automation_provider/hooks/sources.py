"""
Find the files that a DAG author names, and read them in order. Nothing is silently skipped.

Local names are matched here, because ``glob`` leaves out folders that it cannot list.
"""
# A Path would double the cost of reading a small file.
# ruff: noqa: PTH109, PTH112, PTH116

from __future__ import annotations

import errno
import fnmatch
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from airflow.sdk import Asset, ObjectStoragePath

from workflow_automation_provider.client.checks import (
    FileFormat,
    check_path,
    check_text,
    kind_of,
    one_line,
)
from workflow_automation_provider.client.files import Element, File, reason, repeated_names
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.stores import MAGIC, Store, found_file, stored_files

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request

_LOGGED_NAMES = 10

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
        everything below it is uploaded. Of each, a file is found once
    :raises FileUnavailableError: if a file is missing or cannot be read, a folder cannot be
        listed, a glob or prefix matches nothing, or a store cannot be reached, naming it
    :raises InvalidRequestError: if there is nothing to upload, a source is a directory or
        otherwise no file, or of another type, or there is no store for a URL
    """
    if isinstance(files, str | os.PathLike | ObjectStoragePath | Asset | Mapping | File):
        files = [] if files == {} else [files]
    elif not isinstance(files, Sequence | Iterator):
        raise InvalidRequestError(
            f"files is {kind_of(files)}: expected a list of paths, globs, URLs or mappings."
        )

    stores: dict[int, Store] = {}
    sources = [_source(f"files[{number}]", source, stores) for number, source in enumerate(files)]
    elements = [element for source in sources for element in source]
    if not elements:
        raise InvalidRequestError(
            "files is empty: expected at least one path, glob, URL or mapping."
        )
    return elements


def warn_of_repeated_names(requests: Iterable[Request], file_format: FileFormat, log: Any) -> None:
    """Log a warning if a request has several files of one name, of which a service may keep one."""
    for request in requests:
        names = repeated_names(request.files, file_format)
        if names:
            shown = ", ".join(one_line(name) for name in names[:_LOGGED_NAMES])
            log.warning(
                "Several files of one request have the same name, and the service may keep only "
                "one of them: %s. The word path in file_format tells files of a glob or prefix "
                "apart.",
                shown,
            )
            return


def _source(name: str, source: FileSource, stores: dict[int, Store]) -> Iterable[Element]:
    """Return the elements of a source, found when they are asked for; objects are looked up now."""
    if isinstance(source, Asset):
        source = source.uri
    if isinstance(source, Mapping | File):
        return [source]

    # Before universal-pathlib 0.3, an ObjectStoragePath is one.
    if isinstance(source, os.PathLike) and not isinstance(source, ObjectStoragePath):
        return _local_files(name, os.fspath(source))
    if not isinstance(source, str | ObjectStoragePath):
        raise InvalidRequestError(
            f"{name} is {kind_of(source)}: expected a path, a glob, a URL or a mapping."
        )

    scheme, is_url, path = str(source).partition("://")
    if not is_url:
        return _local_files(name, str(source))
    if scheme.strip().lower() in ("file", "local"):
        return _local_files(name, getattr(source, "path", path))
    check_text(name, str(source))
    return stored_files(name, source, stores)


# Seconds until a change to a local file is visible in its timestamps.
_SETTLED = 0.25


def _open(path: str) -> IO[bytes]:
    # Without a buffer, as it is read in large chunks. A FIFO that took its place would be waited
    # for.
    return open(
        path, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    )


def _state(path: str) -> object:
    """Return the size, times and inode of a file."""
    state = os.stat(path)

    # A change may still be in progress, or be followed by another within the same tick of the
    # clock.
    unsettled = _SETTLED - (time.time() - max(state.st_mtime, state.st_ctime))
    if 0 < unsettled <= _SETTLED:
        time.sleep(unsettled)
        state = os.stat(path)

    # Programs cannot set the change time, so it reveals changes that `touch -r` and
    # `rsync --times` hide. Without the device: the number of a network file system may differ
    # between machines, and a retry on another would send everything again.
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _local_files(name: str, text: str) -> Iterator[File]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(
            f"{name} is an empty path: give a path, a glob, a URL or a mapping."
        )

    # A file whose own name looks like a pattern is meant as it is written.
    exists = os.path.lexists(text)
    if not exists:
        check_path(name, text)
    if exists or not MAGIC.search(text):
        yield _local_file(text)
        return

    try:
        matches = sorted({*_matches(text)})
    except (OSError, ValueError) as error:
        folder = (getattr(error, "filename", None) or text).rstrip("/")
        why = f"the folder {folder!r} cannot be listed: {reason(error, text)}"
        raise FileUnavailableError(f"{name}: {why}.") from None
    if not matches:
        raise FileUnavailableError(
            f"{name}: the glob {text!r} matches no file.", next_step=_hint(text)
        )

    root = _root(text)
    for path in matches:
        yield _local_file(path, path.removeprefix(root))


def _local_file(path: str, below: str | None = None) -> File:
    """
    Return a file.

    :param below: its path below the folder that was searched, None if it was named
    """
    try:
        state = os.stat(path)
        if not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        hint = _hint(path) if isinstance(error, FileNotFoundError) else ""
        raise FileUnavailableError(
            f"{path!r} cannot be read: {reason(error, path)}.", next_step=hint
        ) from None

    if stat.S_ISDIR(state.st_mode):
        advice = f"pass its files, or a glob such as {path.rstrip('/')}/*"
        raise InvalidRequestError(f"{path!r} is a directory: {advice}.")
    if not stat.S_ISREG(state.st_mode):
        raise InvalidRequestError(f"{path!r} is not a regular file.")
    return found_file(
        path,
        state.st_size,
        open=partial(_open, path),
        fingerprint=partial(_state, path),
        path=below,
    )


def _hint(path: str) -> str:
    if path.startswith("/"):
        return ""
    return f"A relative path is looked up in the worker's current directory, {os.getcwd()!r}."


# Globs -------------------------------------------------------------------------------------------


def _root(pattern: str) -> str:
    """Return the part of a glob before the name with its first wildcard."""
    magic = MAGIC.search(pattern)
    end = magic.start() if magic else len(pattern)
    return pattern[: pattern.rfind("/", 0, end) + 1]


def _matches(pattern: str) -> Iterator[str]:
    """Yield what a glob names; without folders if it has ``**``: any other folder is an error."""
    root = _root(pattern)
    parts = [part for part in pattern[len(root) :].split("/") if part]
    if pattern.endswith("/"):
        parts.append("**")
    if parts[-1] == "**":  # what is in any folder
        parts.append("*")

    is_deep = "**" in parts
    for path in _below(root, parts, set()):
        if is_deep and os.path.isdir(path):
            continue
        yield path


def _below(folder: str, parts: Sequence[str], seen: set[tuple[str, int]]) -> Iterator[str]:
    """
    Yield what the parts of a glob name in a folder, unless they were looked for there before.

    :raises OSError: if a folder cannot be listed
    """
    place = os.path.realpath(folder), len(parts)
    if place in seen:
        return
    seen.add(place)

    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _below(folder, rest, seen)
        rest = parts
    for path, is_folder in _named(folder, part):
        if not rest:
            yield path
        elif is_folder:
            yield from _below(f"{path}/", rest, seen)


def _named(folder: str, part: str) -> list[tuple[str, bool]]:
    """
    Return what a part of a glob names in a folder, each with whether to look into it.

    Links to folders are looked into, but not for ``**``.
    """
    try:
        if not MAGIC.search(part):
            os.lstat(f"{folder}{part}")
            return [(f"{folder}{part}", True)]

        with os.scandir(folder or ".") as entries:  # tells folders without a look at each
            return sorted(
                (f"{folder}{entry.name}", _is_searched(entry, part))
                for entry in entries
                if _is_named(entry.name, part)
            )
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return []
        raise


def _is_named(name: str, part: str) -> bool:
    is_hidden = name.startswith(".") and not part.startswith(".")
    return not is_hidden and fnmatch.fnmatchcase(name, part)


def _is_searched(entry: os.DirEntry[str], part: str) -> bool:
    if entry.is_symlink() and part != "**":
        return True
    return entry.is_dir(follow_symlinks=False)
