"""Errors of opening a file that are about its path, which a retry cannot fix."""

from __future__ import annotations

import errno
import json

__all__ = ["is_wrong_path"]

_WRONG = (errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)


def is_wrong_path(error: Exception) -> bool:
    """
    Return whether no file can be at a path: it is a folder, goes through a file, or is no path at all.

    :param error: of a file system, or of the client of a store
    """
    if isinstance(error, OSError):
        return isinstance(error, IsADirectoryError | NotADirectoryError) or error.errno in _WRONG
    # But for what a store responded, clients check their arguments.
    return isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError)
