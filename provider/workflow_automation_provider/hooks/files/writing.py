"""Write whole files to a store: until a new one is there as a whole, an earlier one stays."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from workflow_automation_provider.hooks.files.stores import bucket_of


def check_writable(fs: Any, key: str) -> None:
    """
    Write and remove an empty file beside a file that will be written.

    :raises Exception: of any kind, if it cannot be written
    """
    is_in_bucket = bucket_of(key) != ""
    if not is_in_bucket and fs.isdir(key):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    # The right to write may be limited to names that begin like this one.
    probe = f"{key}.probe-{secrets.token_hex(8)}"
    try:
        fs.pipe_file(probe, b"")
    finally:
        _remove(fs, probe)


def write_whole(fs: Any, key: str, path: str) -> None:
    """
    Write a local file to a store.

    :param path: that of the local file
    :raises Exception: of any kind, if it cannot be written
    """
    # A bucket shows an object only once it is whole, and not every store can discard a part. A file
    # of a file system can be seen while it grows, so it is written under another name first.
    is_in_bucket = bucket_of(key) != ""
    if is_in_bucket:
        fs.put_file(path, key)
        return

    beside = _name_beside(key)
    try:
        fs.put_file(path, beside)
        if "file" in fs.protocol and Path(key).exists():
            shutil.copymode(key, beside)
        fs.mv(beside, key)
    except BaseException:
        _remove(fs, beside)
        raise


def _remove(fs: Any, key: str) -> None:
    with contextlib.suppress(Exception):  # who may write need not be allowed to remove
        fs.rm_file(key)


def _name_beside(key: str) -> str:
    """Return a name in the folder of a key that no other file has."""
    folder, separator, _ = key.rpartition("/")
    return f"{folder}{separator}.output-{secrets.token_hex(8)}"
