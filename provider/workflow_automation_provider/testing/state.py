"""What the running service knows: flows, keys, and the runs it started, also those before a restart."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workflow_automation_provider.testing.journal import Run, Upload
    from workflow_automation_provider.testing.keys import Key

__all__ = ["RunIdType", "State"]

RunIdType = Literal["string", "number"]
"""How run ids are answered."""


class State:
    """
    The flows, keys, runs and uploads of a service.

    :param keys: the keys that are known.
    :param flows: the flows that are known, besides those of the keys; ``None`` for any.
    :param run_id_type: whether run ids are answered as strings or as numbers.
    :param first_run_id: the id of the first run.
    :param url: where the service's pages are.
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
        self._next_run_id = first_run_id
        self._started: Counter[tuple[str, str | None]] = Counter()

    def knows_flow(self, flow_id: str) -> bool:
        """
        Tell whether there is such a flow.

        :param flow_id: the flow.
        """
        return self.flows is None or flow_id in self.flows

    def find_key(self, value: bytes | None) -> Key | None:
        """
        Return the key with a value, ``None`` if there is none.

        :param value: the value as sent.
        """
        return None if value is None else self.keys.get(value)

    def exhausted(self, key: Key) -> bool:
        """
        Tell whether a key has started all the runs it may.

        :param key: the key.
        """
        return key.max_runs is not None and self._started[key.flow_id, key.name] >= key.max_runs

    def next_run_id(self) -> str | int:
        """Return the id the next run will have, as it will be answered."""
        return str(self._next_run_id) if self.run_id_type == "string" else self._next_run_id

    def run_link(self, run_id: str | int) -> str:
        """
        Return the address of a run's page.

        :param run_id: the run.
        """
        return f"{self.url}/runs/{run_id}"

    def add_run(self, run: Run) -> None:
        """
        Remember a run that is in the journal.

        :param run: the run.
        """
        self.runs[str(run.run_id)] = run
        self._next_run_id = max(self._next_run_id, int(run.run_id) + 1)
        if run.by == "key":
            self._started[run.flow_id, run.key] += 1

    def add_upload(self, upload: Upload) -> None:
        """
        Remember an upload that is in the journal.

        :param upload: the upload.
        """
        self.uploads.append(upload)
