"""The output file of a batch, which is written whole, once, at the end; until then, what was there stays."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.files import is_wrong_path
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.paths import check_regular, local_path, shown
from workflow_automation_provider.hooks.stored_files import stored_at

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch_state import BatchItem


class OutputFile:
    """
    The file that gets the results of the items, as JSON Lines.

    :param path: local path, or URL that Airflow's object storage writes
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def check(self) -> None:
        """
        Check that it can be written, before anything is started for which there would be no file then.

        :raises InvalidRequestError: if it is no regular file, or there is no folder or bucket for it
        :raises FileUnavailableError: if it cannot be written for another reason
        """
        if self.path.endswith("/"):
            raise InvalidRequestError(f"output_path is {shown(self.path)}, a folder: expected a file.")
        check_regular("output_path", self.path)
        try:
            local = local_path(self.path)
            if local is None:
                _check_store(*stored_at("output_path", self.path))
            else:
                _write_beside(os.path.realpath(local), ())
        except Exception as error:  # object stores raise all kinds of exceptions
            what = self._unavailable(error)
            if isinstance(error, FileNotFoundError):
                raise InvalidRequestError(what, next_step="Create its folder or bucket first.") from None
            kind = InvalidRequestError if is_wrong_path(error) else FileUnavailableError
            raise kind(what) from None

    def write(self, items: Iterator[BatchItem]) -> None:
        """
        Write all items, or nothing.

        :raises FileUnavailableError: if they cannot be written
        """
        lines = (json.dumps(item).encode() + b"\n" for item in items)
        try:
            local = local_path(self.path)
            if local is None:
                _upload(*stored_at("output_path", self.path), lines)
            else:
                path = os.path.realpath(local)
                _write_beside(path, lines, replaces=True)
        except Exception as error:  # object stores raise all kinds of exceptions
            raise FileUnavailableError(self._unavailable(error)) from error

    def _unavailable(self, error: Exception) -> str:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {without_credentials(str(error))}"
        return f"output_path is {shown(self.path)}, which cannot be written: {why}."


def _write_beside(path: str, lines: Iterable[bytes], *, replaces: bool = False) -> None:
    """Write a file beside another, and rename it to that, or else delete it."""
    if os.path.isdir(path):  # noqa: PTH112 - as it is given
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    beside = os.path.join(os.path.dirname(path), f".output-{secrets.token_hex(8)}")  # noqa: PTH118, PTH120
    try:
        with open(beside, "xb") as file:  # noqa: PTH123
            file.writelines(lines)
        if replaces:
            if os.path.exists(path):  # noqa: PTH110
                shutil.copymode(path, beside)
            os.replace(beside, path)  # noqa: PTH105
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside)  # noqa: PTH108


def _check_store(fs: Any, key: str) -> None:
    """Check that there is a bucket, or else that an object can be written beside the one that is meant."""
    bucket = key.partition("/")[0]
    if not bucket or fs.exists(bucket):
        return
    # Who may write need not be allowed to look.
    beside = f"{key.rpartition('/')[0]}/.output-{secrets.token_hex(8)}"
    fs.pipe_file(beside, b"")
    with contextlib.suppress(Exception):
        fs.rm_file(beside)


def _upload(fs: Any, key: str, lines: Iterable[bytes]) -> None:
    """Write an object of a store once all of it is there: not every store can discard a part."""
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(lines)
        file.flush()
        fs.put_file(file.name, key)
