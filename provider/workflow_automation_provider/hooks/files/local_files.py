"""
Find the files on this machine that a path or a glob names, and open them.

The standard library's ``glob`` leaves out folders that it cannot list. Here they are an error.
"""
# A Path would double the cost of reading a small file.
# ruff: noqa: PTH109, PTH112, PTH116

from __future__ import annotations

import errno
import os
import stat
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, NamedTuple

from workflow_automation_provider.client.files import File, reason
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.client.rendered_values import check_path
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.files.paths import Glob, Rest, has_wildcard, name_of

# A file that changed fewer seconds ago may change again without another timestamp.
_MIN_AGE = 0.25

# The errors for a path that does not exist.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


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
        matches = sorted(_matches(glob))
    except (OSError, ValueError) as error:
        folder = (getattr(error, "filename", None) or text).rstrip("/")
        why = f"the folder {folder!r} cannot be listed: {reason(error, text)}"
        raise FileUnavailableError(f"{name}: {why}.") from None

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
        open=partial(_open, path),
        fingerprint=partial(_fingerprint, path),
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


def _matches(glob: Glob) -> Iterator[str]:
    """
    Yield what a glob names. With ``**``, it names no folders; otherwise one becomes an error.

    A folder to which several paths lead is searched once, by the one with the fewest names.

    :raises OSError: if a folder cannot be listed
    """
    is_deep = "**" in glob.parts
    searched: defaultdict[str, set[Rest]] = defaultdict(set)
    waiting = deque([(glob.root, glob.start())])
    while waiting:
        folder, rests = waiting.popleft()
        searched_here = searched[os.path.realpath(folder)]
        rests -= searched_here
        searched_here |= rests

        for entry in _entries(folder, {rest[0] for rest in rests}):
            path = f"{folder}{entry.name}"
            left = glob.after(rests, entry.name, is_link=entry.is_link)
            if () in left and not (is_deep and os.path.isdir(path)):
                yield path

            left -= {()}
            if left and entry.may_be_folder:
                waiting.append((f"{path}/", left))


class _Entry(NamedTuple):
    """An entry of a folder."""

    name: str
    is_link: bool
    may_be_folder: bool


def _entries(folder: str, parts: set[str]) -> list[_Entry]:
    """
    Return the entries of a folder that parts of a glob may match, by name.

    A folder that may not be listed can still have an entry that is named.
    """
    entries: dict[str, _Entry] = {}
    if any(has_wildcard(part) for part in parts):
        # A scan knows which are folders or links, without a call for each.
        with _nothing_if_absent(), os.scandir(folder or ".") as scanned:
            for found in scanned:
                is_link = found.is_symlink()
                may_be_folder = is_link or found.is_dir(follow_symlinks=False)
                entries[found.name] = _Entry(found.name, is_link, may_be_folder)

    for part in parts - entries.keys():
        if not has_wildcard(part):
            with _nothing_if_absent():
                os.lstat(f"{folder}{part}")
                entries[part] = _Entry(part, is_link=False, may_be_folder=True)

    return sorted(entries.values())


@contextmanager
def _nothing_if_absent() -> Iterator[None]:
    """End the block where what it looks for does not exist."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
