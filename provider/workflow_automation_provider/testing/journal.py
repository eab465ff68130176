"""
The journal: what the local service accepted, and every request that it received.

It is a JSON Lines file that any process can read. Each line is a record, with its ``event``. A last
line without a newline is not read: its writer was killed before it responded to the request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    import os

Operation = Literal["trigger_by_path", "trigger_by_key", "upload"]
"""The name of an operation."""

Outcome = Literal["responded", "no response", "client left", "closed unread"]
"""How a request ended."""


class JournalError(Exception):
    """The file is not a journal, or cannot be used as one."""


@dataclass(frozen=True)
class Run:
    """
    A run that was started.

    :param inputs: as received, without the values of query parameters named ``token``
    :param by: whether the path or the key identified the flow
    :param key: the name of the key, ``None`` for a trigger by path
    :param at: the time as ISO 8601 text, in UTC
    """

    event: ClassVar[str] = "run"
    run_id: str
    flow_id: str
    inputs: dict[str, Any]
    by: Literal["path", "key"]
    key: str | None
    at: str


@dataclass(frozen=True)
class Upload:
    """
    Files that were uploaded for a run.

    In ``files``, a string of more than 256 characters is replaced by a summary::

        {"long_string": {"length": 1368, "sha256": "…", "decoded": {"length": 1024, "sha256": "…"}}}

    ``length`` is the number of characters, ``sha256`` the hash of the string as UTF-8. ``decoded``
    is present only if the string looks like base64: the number of decoded bytes, and their hash.

    :param run_id: as the client sent it; ``None``, as are ``flow_id`` and ``files``, if the body
        was larger than 64 MiB and so was not parsed
    :param flow_id: as the client sent it
    :param files: the elements of ``files``
    :param key: the name of the key
    :param size: bytes of the whole body
    :param sha256: the hash of the whole body
    :param at: the time as ISO 8601 text, in UTC
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
    A request that was received, accepted or not.

    Those for pages and control endpoints are left out.

    :param method: empty for a request that was closed unread
    :param path: as sent, without the query; empty for a request that was closed unread
    :param operation: ``None`` if the path is not that of an operation
    :param flow_id: the flow identified by the path, the key or the body; ``None`` if none does
    :param run_id: the run that was started or given files, ``None`` if the request was not accepted
    :param status: the status of the response, ``None`` if there was none
    :param fault: the kind of the fault that struck the request
    :param outcome: ``"responded"``; ``"no response"`` because of a fault; ``"client left"`` before
        the whole request arrived; or ``"closed unread"`` by the fault ``stale``
    :param key_sent: whether the request had an ``X-API-Key`` header
    :param size: bytes of the body
    :param at: the time as ISO 8601 text, in UTC
    """

    event: ClassVar[str] = "request"
    method: str
    path: str
    operation: Operation | None
    flow_id: str | None
    run_id: str | None
    status: int | None
    fault: str | None
    outcome: Outcome
    key_sent: bool
    size: int
    at: str


@dataclass(frozen=True)
class SentCallback:
    """
    A call that a run made to the URL in its inputs, accepted or given up.

    :param url: without the value of its query parameter ``token``
    :param body: what was sent: a string, if it was sent as it is, or any other JSON value; long
        strings are replaced by a summary, as in :class:`Upload`
    :param status: the HTTP status of the last attempt, ``None`` if it had no response
    :param response: the beginning of the last response's body
    :param error: why there was no response, ``None`` if there was one
    :param attempts: how often it was sent
    :param at: the time as ISO 8601 text, in UTC
    """

    event: ClassVar[str] = "callback"
    run_id: str
    flow_id: str
    url: str
    body: Any
    status: int | None
    response: str
    error: str | None
    attempts: int
    at: str


@dataclass(frozen=True)
class Work:
    """
    A run that got past its flow's first step, if that claims the start of a task.

    :param inputs: as in :class:`Run`
    :param at: the time as ISO 8601 text, in UTC
    """

    event: ClassVar[str] = "work"
    run_id: str
    flow_id: str
    inputs: dict[str, Any]
    at: str


Record = Run | Upload | Request | SentCallback | Work
"""An entry of the journal."""

RecordT = TypeVar("RecordT", Run, Upload, Request, SentCallback, Work)
"""One kind of entry."""

_EVENTS = {kind.event for kind in (Run, Upload, Request, SentCallback, Work)}


class Journal:
    """
    Read a journal, also while a service in this or another process writes it.

    Every call reads the file again, and raises :class:`JournalError` if it is not a journal.

    :param path: a file that need not exist yet
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def runs(self) -> list[Run]:
        """Return the runs that were started, oldest first."""
        return self._records(Run)

    def uploads(self) -> list[Upload]:
        """Return the uploads that were accepted, oldest first."""
        return self._records(Upload)

    def requests(self, operation: Operation | None = None) -> list[Request]:
        """
        Return every request that was received, accepted or not, oldest first.

        :param operation: only those of this operation; by default all
        """
        requests = self._records(Request)
        if operation is None:
            return requests
        return [request for request in requests if request.operation == operation]

    def callbacks(self) -> list[SentCallback]:
        """Return the calls that runs made, in the order in which they ended."""
        return self._records(SentCallback)

    def worked(self) -> list[Work]:
        """Return the runs that got past a first step that claims, the first one first."""
        return self._records(Work)

    def _records(self, record: type[RecordT]) -> list[RecordT]:
        try:
            # What follows the last newline is empty or incomplete.
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []

        records = []
        for number, line in enumerate(lines, start=1):
            try:
                fields = json.loads(line)
                event = fields.pop("event")
                if event not in _EVENTS:
                    raise ValueError(event)
                if event == record.event:
                    records.append(record(**fields))
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                text = f"{self.path} is not a journal: line {number} is no event of it"
                raise JournalError(text) from error

        return records
