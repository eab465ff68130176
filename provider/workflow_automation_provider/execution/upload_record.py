"""
The entries of an upload in the task state store.

There is one for each request that the service confirmed, in order; a retry sends the files that are in none of them.
A request with more than 1,000 files has further entries with their identities, see
:mod:`~workflow_automation_provider.execution.confirmed_files`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from workflow_automation_provider.execution.store import TaskRecord

if TYPE_CHECKING:
    from airflow.sdk import Context

_UPLOAD = "workflow_automation_upload"

FIRST_CONFIRMED = f"{_UPLOAD}_0"
"""Key of the first request that was confirmed, where the task itself is the upload."""


class ConfirmedRequest(TypedDict):
    """An upload request that the service confirmed."""

    files: list[str | None]
    """Names of its first files, None for a mapping."""
    count: int
    """Number of its files and mappings."""
    bytes: int
    """Total size of the files."""
    response: str
    """The service's response, truncated."""
    target: str
    """The flow and the run."""
    identities: list[str]
    """What identifies the files as they were sent, up to 1,000 in each text; empty if there were too many."""


class UploadRecord(TaskRecord):
    """
    The upload requests that the service confirmed, in order: entries of their own, so that none is rewritten.

    :param of_own_run: whether the same task starts the run. A Clear then starts another run, which has none of the
        files, or keeps the run, which has all of them
    """

    def __init__(self, context: Context, *, of_own_run: bool = False) -> None:
        super().__init__(context)
        self._of_own_run = of_own_run
        self._count = 0

    def read(self, target: str) -> list[ConfirmedRequest]:
        """
        Return the requests that were confirmed since the last Clear.

        :param target: the flow and the run. If the task started the run itself, also those from before a Clear
        """
        requests: list[ConfirmedRequest] = []
        while (entry := self._read(self._confirmed_key(len(requests)))) and (
            self._counts(entry) or (self._of_own_run and entry["request"]["target"] == target)
        ):
            more = (self._read(self._confirmed_key(len(requests), part)) for part in range(1, entry["parts"]))
            request: ConfirmedRequest = entry["request"]
            identities = [*request["identities"], *(part["identities"] for part in more if part)]
            requests.append({**request, "identities": identities})
        self._count = len(requests)
        return requests

    def confirmed(self, request: ConfirmedRequest) -> None:
        """Add a request that was confirmed, after those that :meth:`read` returned."""
        identities = request["identities"]
        # The request's own entry is the last: without it, the others are not read.
        for part, text in enumerate(identities[1:], start=1):
            self._set(self._confirmed_key(self._count, part), {"identities": text})
        entry = {"request": {**request, "identities": identities[:1]}, "parts": len(identities)}
        self._set(self._confirmed_key(self._count), entry)
        self._count += 1

    def _confirmed_key(self, number: int, part: int = 0) -> str:
        return f"{_UPLOAD}_{number}{f'_{part}' if part else ''}"
