"""
Find the files on this machine that a path or a glob names, and open them.

The standard library's ``glob`` leaves out folders that it cannot list. Here they are an error.
"""
# A Path would double the cost of reading a small file.
# ruff: noqa: PTH109, PTH112, PTH116

from __future__ import annotations

import errno
import fnmatch
import functools
import os
import stat
import time
from collections.abc import Iterator
from typing import IO

from workflow_automation_provider.client.files import File, reason
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.client.rendered_values import check_path
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.files.paths import Glob, Parts, has_wildcard, name_of

# A file that changed fewer seconds ago may change again without another timestamp.
_MIN_AGE = 0.25


def local_files(name: str, text: str) -> Iterator[File]:
    """
    Yield the files of a path or a glob.

    :param name: what it is called in errors
    :param text: the path or the glob
    :raises FileUnavailableError: if a file is missing or cannot be read, a folder cannot be listed,
        or a glob matches nothing
    :raises InvalidRequestError: if a path is empty, or names what is no file
    """
    # A file whose own name looks like a glob is meant as it is written.
    check_path(name, text)
    if os.path.lexists(text) or not has_wildcard(text):
        yield _file(text)
        return

    glob = Glob.of_path(text)
    try:
        matches = sorted(set(_found(glob.root, glob.parts)))
    except (FileNotFoundError, NotADirectoryError):
        matches = []
    except (OSError, ValueError) as error:
        folder = (getattr(error, "filename", None) or text).rstrip("/")
        why = f"the folder {folder!r} cannot be listed: {reason(error, text)}"
        raise FileUnavailableError(f"{name}: {why}.") from None

    if "**" in glob.parts:  # there, folders are to be searched
        matches = [path for path in matches if not os.path.isdir(path)]
    if not matches:
        raise FileUnavailableError(
            f"{name}: the glob {text!r} matches no file.", next_step=_hint(text)
        )

    for path in matches:
        yield _file(path, glob.below_root(path))


def _file(path: str, below_root: str | None = None) -> File:
    """
    Return the file at a path.

    :param below_root: its path below the root of a glob, None if the file itself was named
    :raises FileUnavailableError: if it is missing or cannot be read
    :raises InvalidRequestError: if it is no file
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

    return File(
        name=name_of(path),
        size=state.st_size,
        content_type=None,
        source=shown(path),
        open=functools.partial(_open, path),
        fingerprint=functools.partial(_fingerprint, path),
        location=path,
        path=below_root,
    )


def _hint(path: str) -> str:
    if path.startswith("/"):
        return ""
    return f"A relative path is looked up in the worker's current directory, {os.getcwd()!r}."


def _open(path: str) -> IO[bytes]:
    # Without a buffer, as it is read in large chunks.
    return open(path, "rb", buffering=0, opener=_open_without_waiting)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO that has taken its place would otherwise be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _fingerprint(path: str) -> object:
    """Return the size, times and inode of a file."""
    state = os.stat(path)

    # A change may still be in progress, or be followed by another within the same tick of the
    # clock.
    age = time.time() - max(state.st_mtime, state.st_ctime)
    is_recent = 0 <= age < _MIN_AGE
    if is_recent:
        time.sleep(_MIN_AGE - age)
        state = os.stat(path)

    # Programs cannot set the change time, so it reveals changes that `touch -r` and
    # `rsync --times` hide. Without the device: the number of a network file system may differ
    # between machines, and a retry on another would send everything again.
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


# The search --------------------------------------------------------------------------------------


def _found(folder: str, parts: Parts) -> Iterator[str]:
    """
    Yield the paths in a folder that the parts of a glob match, some perhaps twice.

    :raises OSError: if a folder cannot be listed
    """
    part, rest = parts[0], parts[1:]
    is_deep = part == "**"
    if is_deep and rest:
        yield from _found(folder, rest)

    with os.scandir(folder or ".") as scanned:
        entries = [entry for entry in scanned if _matches_name(part, entry.name)]

    below = parts if is_deep else rest
    for entry in entries:
        path = f"{folder}{entry.name}"
        if not rest:
            yield path

        is_folder = entry.is_dir(follow_symlinks=False)
        is_linked_folder = not is_deep and entry.is_symlink() and os.path.isdir(path)
        if below and (is_folder or is_linked_folder):
            yield from _found(f"{path}/", below)


def _matches_name(part: str, name: str) -> bool:
    is_hidden = name.startswith(".") and not part.startswith(".")
    return not is_hidden and fnmatch.fnmatchcase(name, part)
