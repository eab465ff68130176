"""Files of this machine."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import IO

from workflow_automation_provider.client.files import File, is_wrong_path
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError

# Seconds until a change to a local file is visible in its timestamps.
_SETTLED = 0.25


def path_hint(path: str) -> str:
    """Describe what is unusual about a path where there is no file."""
    if not path.startswith("/"):
        return f"A relative path is looked up in the worker's current directory, {str(Path.cwd())!r}."
    return ""


# With plain text instead of Path, which would double the cost of reading a small file.


def local_file(path: str, content_type: str) -> File:
    """
    Return a file of this machine.

    :raises FileUnavailableError: if it is missing, or cannot be read
    :raises InvalidRequestError: if the path is that of something else
    """
    try:
        state = os.stat(path)  # noqa: PTH116 - a Path costs too much, see above
        if stat.S_ISDIR(state.st_mode):
            kind = f"link to the directory {_target(path)!r}" if is_link(path) else "directory"
            raise InvalidRequestError(
                f"{path!r} is a {kind}: pass its files, or a glob such as {path.rstrip('/')}/*."
            )
        if not stat.S_ISREG(state.st_mode):
            raise InvalidRequestError(f"{path!r} is not a regular file.")
        if not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except InvalidRequestError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and is_link(path):
            raise FileUnavailableError(
                f"{path!r} is a link to {_target(path)!r}, which does not exist: fix the link, or leave it out."
            ) from None
        what = f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}."
        if is_wrong_path(error):
            raise InvalidRequestError(what) from None
        hint = path_hint(path) if isinstance(error, FileNotFoundError) else ""
        raise FileUnavailableError(what, next_step=hint) from None
    return _LocalFile(path, state.st_size, content_type)


class _LocalFile(File):
    """A file of this machine. Little is kept of each, for there may be very many."""

    __slots__ = ("_path",)

    _path: str

    def __init__(self, path: str, size: int, content_type: str) -> None:
        keep = object.__setattr__  # the class is frozen
        keep(self, "_path", path)
        keep(self, "size", size)
        keep(self, "content_type", content_type)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self._path.rpartition("/")[2]

    @property
    def source(self) -> str:
        """Its path, in quotes."""
        return repr(self._path)

    @property
    def location(self) -> str:
        """Its path."""
        return self._path

    def open(self) -> IO[bytes]:
        """Open it without a buffer: it is read in large chunks."""
        stream = open(self._path, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115 - likewise
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            stream.close()
            raise OSError(errno.EINVAL, "it is not a regular file")
        return stream

    def fingerprint(self) -> object:
        """Return its size, times and inode."""
        state = os.stat(self._path)  # noqa: PTH116 - a Path costs too much, see above
        # A change may still be in progress, or be followed by another within the same tick of the file system's
        # clock.
        unsettled = _SETTLED - (time.time() - max(state.st_mtime, state.st_ctime))
        if 0 < unsettled <= _SETTLED:
            time.sleep(unsettled)
            state = os.stat(self._path)  # noqa: PTH116 - see above
        # Programs cannot set the change time, so it reveals changes that `touch -r` and `rsync --times` hide.
        # Without the device: the number of a network file system may differ between machines, and a retry on
        # another machine would send everything again.
        return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _without_waiting(path: str, flags: int) -> int:
    # A FIFO that took the file's place would wait for a writer, for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def is_link(path: str) -> bool:
    """Return whether a path is a symbolic link, broken or not."""
    return Path(path).is_symlink()


def _target(path: str) -> str:
    return str(Path(path).readlink())
