"""The keys and the runs of a running service, and the journal by which they survive a kill."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from workflow_automation_provider.testing.journal import Journal, JournalError, Record, Run

if TYPE_CHECKING:
    from workflow_automation_provider.testing.scripted import Key

_FIRST_RUN_ID = 1001


def now() -> str:
    """Return the time, as the journal has it."""
    return datetime.now(UTC).isoformat()


class State:
    """
    The keys and the runs of a service, and its journal, which has one writer at a time.

    :param url: the address of the pages, for the run links
    :param journal: its file is created if it does not exist
    :param flows: the flows besides those of the keys; ``None`` for any
    :raises JournalError: if the file is not a journal, or another service is writing it
    """

    def __init__(
        self,
        keys: Iterable[Key],
        url: str,
        journal: Journal,
        flows: Collection[str] | None = None,
    ) -> None:
        self.keys: dict[bytes | None, Key] = {key.value.encode("utf-8"): key for key in keys}
        self._flows = flows
        self.url = url
        self.journal = journal
        self._fd = os.open(journal.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.runs = {run.run_id: run for run in journal.runs()}
            self._drop_half_written_line()
        except BaseException as error:
            os.close(self._fd)
            if not isinstance(error, BlockingIOError):
                raise

            raise JournalError(
                f"Another service is writing the journal {journal.path}; stop it, or use another "
                "file"
            ) from error

    def add(self, *records: Record) -> None:
        """
        Write records to the journal; once this returns, they survive a kill.

        The records of one request are written at once, so that a kill cannot separate them.
        """
        lines = [json.dumps({"event": record.event, **vars(record)}) + "\n" for record in records]
        data = "".join(lines).encode("ascii")
        size = os.fstat(self._fd).st_size
        if os.write(self._fd, data) != len(data):
            # The disk is full. Half a line in the middle would make the rest unreadable.
            os.ftruncate(self._fd, size)
            raise OSError(
                f"The journal {self.journal.path} could not be written; is the disk full?"
            )

        os.fsync(self._fd)
        self.runs |= {record.run_id: record for record in records if isinstance(record, Run)}

    def close(self) -> None:
        """Close the journal."""
        # Unlocked explicitly: a process forked in the meantime would otherwise keep the lock.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def has_flow(self, flow_id: str | None) -> bool:
        """Return whether there is a flow."""
        if self._flows is None or flow_id in self._flows:
            return True
        return any(key.flow_id == flow_id for key in self.keys.values())

    def exhausted(self, key: Key) -> bool:
        """Return whether a key has started its maximum number of runs."""
        if key.max_runs is None:
            return False
        started = [
            run for run in self.runs.values() if (run.flow_id, run.key) == (key.flow_id, key.name)
        ]
        return len(started) >= key.max_runs

    def next_run_id(self) -> str:
        """Return the ID of the next run."""
        return str(_FIRST_RUN_ID + len(self.runs))

    def run_link(self, run_id: str) -> str:
        """Return the URL of a run's page."""
        return f"{self.url}/runs/{run_id}"

    def _drop_half_written_line(self) -> None:
        data = self.journal.path.read_bytes()
        end = data.rfind(b"\n") + 1
        # A file that is not a journal must stay as it is, byte for byte.
        if not b'{"event": "'.startswith(data[end : end + 11]):
            text = f"{self.journal.path} is not a journal: it ends in something other than an event"
            raise JournalError(text)
        os.ftruncate(self._fd, end)
