"""
The journal: what the local service accepted, and every request that arrived, readable from any process.

A JSON-lines file. Three kinds of line, by their ``event``: ``run``, ``upload`` and ``request``; the fields are
those of :class:`Run`, :class:`Upload` and :class:`Request`. A line without its newline was never finished
(the writer was killed) and its request was never answered, so it is not read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    import os

__all__ = [
    "OPERATIONS",
    "Journal",
    "JournalError",
    "Operation",
    "Outcome",
    "Record",
    "RecordT",
    "Request",
    "Run",
    "Upload",
    "decode_lines",
]

Operation = Literal["trigger_by_path", "trigger_by_key", "upload"]
"""The name of an operation."""

OPERATIONS: tuple[Operation, ...] = ("trigger_by_path", "trigger_by_key", "upload")
"""The names of all operations."""

Outcome = Literal["replied", "not replied", "client left", "closed unread"]
"""How the service dealt with a request."""


class JournalError(Exception):
    """The file is not a journal, or cannot be used as one."""


@dataclass(frozen=True)
class Run:
    """
    A run that was started.

    :param run_id: the run's id, a string or a number as it was answered.
    :param flow_id: the flow that was started.
    :param inputs: the inputs it was started with.
    :param by: whether the flow was named by the path or by the key.
    :param key: the name of the key, if started by key.
    :param at: when, in ISO format.
    """

    event: ClassVar[str] = "run"
    run_id: str | int
    flow_id: str
    inputs: dict[str, Any]
    by: Literal["path", "key"]
    key: str | None
    at: str


@dataclass(frozen=True)
class Upload:
    """
    Files that were taken for a run.

    :param run_id: the run, as the client sent it; ``None`` if the body was too large to parse and does not
        begin with it.
    :param flow_id: the flow, likewise.
    :param files: the elements of ``files``, long strings described (see :mod:`.bodies`); ``None`` if the body
        was too large to parse.
    :param key: the name of the key.
    :param size: bytes of the whole body.
    :param sha256: SHA-256 of the whole body.
    :param at: when, in ISO format.
    """

    event: ClassVar[str] = "upload"
    run_id: str | None
    flow_id: str | None
    files: list[Any] | None
    key: str
    size: int
    sha256: str
    at: str


@dataclass(frozen=True)
class Request:
    """
    A request that arrived, accepted or not; pages and control requests are not counted.

    :param method: the HTTP method; empty for a request closed unread.
    :param path: the path as sent, without the query; empty for a request closed unread.
    :param operation: the operation, ``None`` if the path is not one.
    :param flow_id: the flow named by path, key or body, as far as known.
    :param run_id: the run that was started or given files, ``None`` if the request was not accepted.
    :param status: the status that was answered, ``None`` if there was no reply.
    :param fault: the kind of fault that struck it, if any.
    :param outcome: how it ended.
    :param key_sent: whether an ``X-API-Key`` header came with it.
    :param size: bytes of the body.
    :param at: when, in ISO format.
    """

    event: ClassVar[str] = "request"
    method: str
    path: str
    operation: Operation | None
    flow_id: str | None
    run_id: str | int | None
    status: int | None
    fault: str | None
    outcome: Outcome
    key_sent: bool
    size: int
    at: str


Record = Run | Upload | Request
"""An entry of the journal."""

RecordT = TypeVar("RecordT", Run, Upload, Request)
"""One kind of entry."""


def decode_lines(data: bytes) -> list[dict[str, Any]]:
    """
    Read the finished lines of a journal.

    :param data: the contents of the file.
    :raises JournalError: if a finished line is not one of a journal.
    """
    lines = []
    # What follows the last newline is empty or half written.
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise JournalError(f"Line {number} is not JSON; this is not a journal") from error
        if not isinstance(value, dict) or value.get("event") not in {"run", "upload", "request"}:
            raise JournalError(f"Line {number} is not an event; this is not a journal")
        lines.append(value)
    return lines


class Journal:
    """
    Reads a journal, also while a service in this or another process writes it.

    Every call reads the file anew.

    :param path: the journal's file; it need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def runs(self) -> list[Run]:
        """Return the runs that were started, oldest first."""
        return self._records(Run)

    def uploads(self) -> list[Upload]:
        """Return the uploads that were taken, oldest first."""
        return self._records(Upload)

    def requests(self, operation: Operation | None = None) -> list[Request]:
        """
        Return every request that arrived, accepted or not, oldest first.

        :param operation: only those of this operation.
        """
        return [r for r in self._records(Request) if operation is None or r.operation == operation]

    def _records(self, record: type[RecordT]) -> list[RecordT]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for line in decode_lines(data):
            if line.pop("event") == record.event:
                try:
                    found.append(record(**line))
                except TypeError as error:
                    raise JournalError(f"A {record.event} line has other fields: {error}") from error
        return found
