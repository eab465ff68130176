"""Writing the journal so that it survives a kill of the service at any moment."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from workflow_automation_provider.testing.journal import JournalError, Record, decode_lines

__all__ = ["JournalWriter"]


class JournalWriter:
    """
    Append to a journal; a file has one writer at a time.

    :param path: created if it does not exist
    :raises JournalError: if the file is not a journal, or another service is writing it
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._drop_half_written_line()
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, *records: Record) -> None:
        """
        Write records to disk; once this returns, they survive a kill.

        The records of one request are written at once, so that a kill cannot separate them.
        """
        lines = [json.dumps({"event": record.event, **vars(record)}) + "\n" for record in records]
        data = "".join(lines).encode("ascii")
        size = os.fstat(self._fd).st_size
        if os.write(self._fd, data) != len(data):
            # The disk is full. Half a line in the middle would make the rest unreadable.
            os.ftruncate(self._fd, size)
            raise OSError(f"The journal {self.path} could not be written; is the disk full?")
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        # Unlocked explicitly: a process forked in the meantime would otherwise keep the lock.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(
                f"Another service is writing the journal {self.path}; stop it, or use another file"
            ) from error

    def _drop_half_written_line(self) -> None:
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        # A file that is not a journal must stay as it is, byte for byte.
        try:
            decode_lines(data)
        except JournalError as error:
            raise JournalError(f"{self.path} is not a journal: {error}; use another file") from error
        if not b'{"event": "'.startswith(data[end : end + 11]):
            raise JournalError(
                f"{self.path} is not a journal: it ends in something other than an event; use another file"
            )
        os.ftruncate(self._fd, end)
