"""Writing the journal so that it survives the service being killed at any moment."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from workflow_automation_provider.testing.journal import JournalError, Record, decode_lines

__all__ = ["JournalWriter"]


class JournalWriter:
    """
    Appends to a journal; only one writer may hold a file.

    :param path: the journal's file; created if it does not exist.
    :raises JournalError: if the file is something else, or another service is writing it.
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
        Put records on disk; when this returns they survive a kill.

        Records of one request go in one write, so that a kill cannot part them.

        :param records: what to write, in order.
        """
        lines = [json.dumps({"event": record.event, **vars(record)}) + "\n" for record in records]
        data = "".join(lines).encode("ascii")
        size = os.fstat(self._fd).st_size
        if os.write(self._fd, data) != len(data):
            # A full disk. Half a line in the middle would make the rest unreadable.
            os.ftruncate(self._fd, size)
            raise OSError(f"The journal {self.path} could not be written")
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        # Unlocked by hand: a process forked meanwhile would otherwise keep the lock.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(f"Another service is writing the journal {self.path}") from error

    def _drop_half_written_line(self) -> None:
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        # Whoever points us at a file that is no journal must not lose a byte of it.
        decode_lines(data)
        if not b'{"event": "'.startswith(data[end : end + 11]):
            raise JournalError(f"The end of {self.path} is no half-written event; this is not a journal")
        os.ftruncate(self._fd, end)
