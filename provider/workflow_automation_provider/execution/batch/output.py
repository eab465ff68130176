"""
The output file of a batch: a line of JSON with the result of each item.

Before anything is sent, the task checks that the file can be written. It is written whole, once,
when the task ends for good; until then, an earlier file stays. So a kill leaves no half a file, and
the next try writes all results, also those of earlier tries, from the task's record.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.files import reason
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    FileUnavailableError,
    InvalidRequestError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.location import Location, locate, shown_path
from workflow_automation_provider.hooks.files.stores import bucket_of
from workflow_automation_provider.hooks.files.writing import check_writable, write_whole

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.source import BatchSource


class OutputUnavailableError(FileUnavailableError):
    """The output file cannot be written; a retry may succeed."""


class OutputFile:
    """
    The file with the results of a batch.

    :param path: local path, or URL that Airflow's object storage writes; empty for none
    """

    can_be_written = False
    """Whether a check has found that there is a file that can be written."""
    written = ""
    """The path of the file once it is written."""

    def __init__(self, path: str) -> None:
        self.path = path

    def check(self, source: BatchSource) -> None:
        """
        Check that the file can be written, before runs are started that no file would name.

        :param source: the batch, whose file must not be overwritten
        :raises InvalidRequestError: if it is the file of the batch, a bucket alone, or ends in
            ``/``
        :raises OutputUnavailableError: if it cannot be written, such as where there is no folder
            or bucket for it, or no right to write there
        """
        if not self.path:
            return
        if self.path.endswith("/"):
            raise InvalidRequestError(f"{self._subject}, a folder: expected a file.")

        try:
            location = locate("output_path", self.path)
            self._check_location(location, source)
            check_writable(location.fs, location.key)
        except InvalidRequestError:
            raise
        except Exception as error:  # object stores raise all kinds of exceptions
            raise self._unavailable(error) from None

        self.can_be_written = True

    def write(self, items: Iterable[Mapping[str, Any]]) -> None:
        """
        Write the results of all items, or nothing.

        :raises OutputUnavailableError: if they cannot be written
        """
        try:
            location = locate("output_path", self.path)
            with tempfile.NamedTemporaryFile() as file:
                file.writelines(json.dumps(item).encode() + b"\n" for item in items)
                file.flush()
                write_whole(location.fs, location.key, file.name)
        except WorkflowAutomationError:  # of the items
            raise
        except Exception as error:  # object stores raise all kinds of exceptions
            raise self._unavailable(error) from None

        self.written = self.path

    def _check_location(self, location: Location, source: BatchSource) -> None:
        if source.is_at(location):
            raise InvalidRequestError(
                f"{self._subject}, the file of the batch: expected another file."
            )

        bucket = bucket_of(location.key)
        if bucket and location.key.strip("/") == bucket:
            raise InvalidRequestError(
                f"{self._subject}, a bucket: expected a file in it, such as "
                f"{without_credentials(self.path)}/runs.jsonl."
            )

    def _unavailable(self, error: Exception) -> OutputUnavailableError:
        next_step = ""
        if isinstance(error, FileNotFoundError):
            next_step = "Create its folder or bucket first."
        return OutputUnavailableError(
            f"{self._subject}, which cannot be written: {reason(error, self.path)}.",
            next_step=next_step,
        )

    @property
    def _subject(self) -> str:
        """The beginning of an error's sentence."""
        return f"output_path is {shown_path(self.path)}"
