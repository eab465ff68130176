"""Write whole files to a store: until a new one is there as a whole, an earlier one stays."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from workflow_automation_provider.hooks.files.stores import begin, bucket_of, in_time, wait_for

# The bytes that a slow store takes in a second.
_SLOWEST = 100_000


def check_writable(fs: Any, key: str) -> None:
    """
    Write and remove an empty file beside a file that will be written.

    :raises Exception: of any kind, if it cannot be written
    """
    is_in_bucket = bucket_of(key) != ""
    if not is_in_bucket and in_time(fs.isdir, key):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    # The right to write may be limited to names that begin like this one.
    probe = f"{key}.probe-{secrets.token_hex(8)}"
    write = begin(fs.pipe_file, probe, b"")
    try:
        wait_for(write)
    finally:
        _remove_after(write, fs, probe)


def write_whole(fs: Any, key: str, path: str) -> None:
    """
    Write a local file to a store.

    :param path: that of the local file
    :raises Exception: of any kind, if it cannot be written
    """
    # A bucket shows an object only once it is whole, and not every store can discard a part. A file
    # of a file system can be seen while it grows, so it is written under another name first.
    is_in_bucket = bucket_of(key) != ""
    seconds = Path(path).stat().st_size / _SLOWEST
    if is_in_bucket:
        wait_for(begin(fs.put_file, path, key), seconds)
        return

    beside = _name_beside(key)
    write = begin(fs.put_file, path, beside)
    try:
        wait_for(write, seconds)
        if "file" in fs.protocol and Path(key).exists():
            shutil.copymode(key, beside)
        in_time(fs.mv, beside, key)
    except BaseException:
        _remove_after(write, fs, beside)
        raise


def _remove_after(write: Future[Any], fs: Any, key: str) -> None:
    """Remove a file once the call that writes it has ended, which a store may carry out late."""

    def remove(_: object) -> None:
        with contextlib.suppress(Exception):  # who may write need not be allowed to remove
            in_time(fs.rm_file, key)

    write.add_done_callback(remove)


def _name_beside(key: str) -> str:
    """Return a name in the folder of a key that no other file has."""
    folder, separator, _ = key.rpartition("/")
    return f"{folder}{separator}.output-{secrets.token_hex(8)}"
