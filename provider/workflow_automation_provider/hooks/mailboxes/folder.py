"""Mailboxes in a folder of this machine, for tests and demos: the local service writes the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from workflow_automation_provider.hooks.mailboxes.store import Written


class FolderStore:
    """The files of this machine; a key is a path."""

    rights = "to write to the folder"

    def sign(self, key: str, lifetime: timedelta) -> str:
        """Return the URL of a file, whose folder is made."""
        Path(key).parent.mkdir(parents=True, exist_ok=True)
        return Path(key).as_uri()

    def create(self, key: str) -> bool:
        """Write one byte."""
        try:
            with Path(key).open("xb") as file:
                file.write(b"\n")
        except FileExistsError:
            return False

        return True

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of a folder's files."""
        with contextlib.suppress(FileNotFoundError):
            for path in Path(folder).iterdir():
                yield path.name

    def read(self, key: str, limit: int) -> Written | None:
        """Return a file."""
        try:
            with Path(key).open("rb") as file:
                body = file.read(limit + 1)

            written_at = Path(key).stat().st_mtime
        except FileNotFoundError:
            return None

        return Written(body, datetime.fromtimestamp(written_at, UTC))
