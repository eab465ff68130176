"""What the running service knows: flows, keys, and what has happened, also before a restart."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.testing.journal import Run, SentCallback, Upload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workflow_automation_provider.testing._server.journal_writer import JournalWriter
    from workflow_automation_provider.testing.journal import Journal, Record
    from workflow_automation_provider.testing.keys import Key

__all__ = ["RunIdType", "State", "now"]

RunIdType = Literal["string", "number"]
"""The JSON type of the run IDs in responses."""


def now() -> str:
    """Return the time, as the journal has it."""
    return datetime.now(UTC).isoformat()


class State:
    """
    The flows and keys of a service, and its journal.

    :param flows: the known flows, besides those of the keys; ``None`` if every flow is known
    :param url: the address of the pages, for the run links
    """

    def __init__(
        self,
        keys: Iterable[Key],
        flows: Iterable[str] | None,
        run_id_type: RunIdType,
        first_run_id: int,
        url: str,
        journal: Journal,
        writer: JournalWriter,
    ) -> None:
        self.keys = {key.value.encode("utf-8"): key for key in keys}
        self.flows = None if flows is None else {*flows, *(key.flow_id for key in self.keys.values())}
        self.run_id_type = run_id_type
        self.url = url
        self.runs: dict[str, Run] = {}
        self.uploads: list[Upload] = []
        self.callbacks: list[SentCallback] = []
        self._next_run_id = first_run_id
        self._started: Counter[tuple[str, str | None]] = Counter()
        self._writer = writer
        for records in (journal.runs(), journal.uploads(), journal.callbacks()):
            for record in records:
                self._keep(record)

    def add(self, *records: Record) -> None:
        """Write to the journal what has happened, at once, and keep it."""
        self._writer.write(*records)
        for record in records:
            self._keep(record)

    def _keep(self, record: Record) -> None:
        match record:
            case Run():
                self.runs[str(record.run_id)] = record
                self._next_run_id = max(self._next_run_id, int(record.run_id) + 1)
                self._started[record.flow_id, record.key] += 1  # the key of a run by path is None
            case Upload():
                self.uploads.append(record)
            case SentCallback():
                self.callbacks.append(record)

    def knows_flow(self, flow_id: str) -> bool:
        """Return whether there is such a flow."""
        return self.flows is None or flow_id in self.flows

    def find_key(self, value: bytes | None) -> Key | None:
        """Return the key that has this value."""
        return None if value is None else self.keys.get(value)

    def exhausted(self, key: Key) -> bool:
        """Return whether a key has started its maximum number of runs."""
        return key.max_runs is not None and self._started[key.flow_id, key.name] >= key.max_runs

    def next_run_id(self) -> str | int:
        """Return the ID of the next run, in the type of the response."""
        return str(self._next_run_id) if self.run_id_type == "string" else self._next_run_id

    def run_link(self, run_id: str | int) -> str:
        """Return the URL of a run's page."""
        return f"{self.url}/runs/{run_id}"
