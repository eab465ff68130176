"""A task state store in memory, which fails where a test says so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from entry_keys import PREFIX


def _nothing(*_: object) -> None:
    """Do nothing."""


class StateStore:
    """
    What Airflow 3.3+ puts into the context as ``task_state_store``.

    A test may call a function before each read or write, which may raise.
    """

    def __init__(self) -> None:
        self.before_get: Callable[[str], object] = _nothing
        self.before_set: Callable[[str, Any], object] = _nothing
        self.entries: dict[str, Any] = {}
        self.retentions: dict[str, Any] = {}
        self.failures: Counter[str] = Counter()
        """How often a write fails: *set*, or *set start*, *set upload* and so on."""
        self.lost: list[str] = []
        """Keys of which the next read finds nothing, as Airflow's SDK has it for any 404."""

    def get(self, key: str, default: Any = None) -> Any:
        self.before_get(key)
        if key in self.lost:
            self.lost.remove(key)
            return default
        return _copy(self.entries.get(key, default))

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.before_set(key, value)
        kind = key.removeprefix(PREFIX).partition("/")[0]
        for operation in ("set", f"set {kind}"):
            if self.failures[operation]:
                self.failures[operation] -= 1
                raise RuntimeError("The store is not there")
        self.entries[key] = _copy(value)
        self.retentions[key] = retention

    def delete(self, key: str) -> None:
        self.entries.pop(key, None)


def _copy(value: Any) -> Any:
    """Return what comes back of a value that was stored as JSON."""
    return json.loads(json.dumps(value))
