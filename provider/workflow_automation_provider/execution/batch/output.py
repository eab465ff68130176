"""The output file of a batch, which is either whole or not written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import ObjectStoragePath

from workflow_automation_provider.client.files import is_wrong_path
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.paths import check_regular, local_path

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch_state import BatchItem


class OutputFile:
    """
    The file that gets the results of the items, as JSON Lines.

    :param path: local path, or URL that Airflow's object storage writes
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self) -> None:
        """
        Make an empty file, before anything is started for which there would be no file then.

        :raises InvalidRequestError: if it is no regular file, or there is no folder or bucket for it
        :raises FileUnavailableError: if it cannot be written for another reason
        """
        if self.path.endswith("/"):
            raise InvalidRequestError(f"output_path is {self.path!r}, a folder: expected a file.")
        check_regular("output_path", self.path)
        try:
            self._write(iter(()))
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
        try:
            self._write(items)
        except Exception as error:  # object stores raise all kinds of exceptions
            raise FileUnavailableError(self._unavailable(error)) from error

    def _unavailable(self, error: Exception) -> str:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        return f"output_path is {self.path!r}, which cannot be written: {why}."

    def _write(self, items: Iterator[BatchItem]) -> None:
        lines = (json.dumps(item).encode() + b"\n" for item in items)
        local = local_path(self.path)
        if local is None:
            _upload(ObjectStoragePath(self.path), lines)
        else:
            _replace(os.path.realpath(local), lines)


def _replace(path: str, lines: Iterable[bytes]) -> None:
    """Write a file beside another, and rename it."""
    if os.path.isdir(path):  # noqa: PTH112 - as it is given
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    beside = os.path.join(os.path.dirname(path), f".output-{secrets.token_hex(8)}")  # noqa: PTH118, PTH120
    try:
        with open(beside, "xb") as file:  # noqa: PTH123
            file.writelines(lines)
        if os.path.exists(path):  # noqa: PTH110
            shutil.copymode(path, beside)
        os.replace(beside, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)  # noqa: PTH108
        raise


def _upload(path: ObjectStoragePath, lines: Iterable[bytes]) -> None:
    """Write an object of a store, which exists once its upload is complete."""
    file: Any = path.fs.open(path.path, "wb")
    try:
        for line in lines:
            file.write(line)
        file.close()
    except BaseException:
        with contextlib.suppress(Exception):
            if hasattr(file, "discard"):
                file.closed = True  # or the garbage collector would complete the upload
                file.discard()
            else:
                file.close()
        raise
