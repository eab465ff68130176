"""The state of the running service: flows, keys, runs, uploads and callbacks, including those from before a restart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workflow_automation_provider.testing.journal import Journal, Run, SentCallback, Upload
    from workflow_automation_provider.testing.keys import Key

__all__ = ["RunIdType", "State"]

RunIdType = Literal["string", "number"]
"""The JSON type of the run IDs in responses."""


class State:
    """
    The flows, keys, runs, uploads and callbacks of a service.

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

    def restore(self, journal: Journal) -> None:
        """Add what is in the journal."""
        for run in journal.runs():
            self.add_run(run)
        self.uploads += journal.uploads()
        self.callbacks += journal.callbacks()

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

    def add_run(self, run: Run) -> None:
        """Add a run that is in the journal."""
        self.runs[str(run.run_id)] = run
        self._next_run_id = max(self._next_run_id, int(run.run_id) + 1)
        if run.by == "key":
            self._started[run.flow_id, run.key] += 1
