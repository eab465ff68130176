"""
A task context without Airflow's database, to call ``execute`` of an operator directly.

It has what the operators of this provider read: ``ti``, ``dag_run``, ``task`` and, where a state
store is given, ``task_state_store`` (Airflow 3.3+).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Literal, Protocol
from uuid import UUID, uuid4

__all__ = ["MinimalTaskInstance", "StateStore", "Task", "has_state_store", "make_context"]


class Task(Protocol):
    """What a context reads of an operator."""

    task_id: str
    retries: int | None


class StateStore:
    """A task state store in memory, which keeps its entries across the tries of a task instance."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of an entry."""
        if key not in self._entries:
            return default
        return json.loads(self._entries[key])

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        """
        Write an entry.

        :param value: any JSON value
        :param retention: accepted as Airflow does; entries are kept as long as the store
        """
        self._entries[key] = json.dumps(value)

    def delete(self, key: str) -> None:
        """Remove an entry, if there is one."""
        self._entries.pop(key, None)


@dataclass
class MinimalTaskInstance:
    """
    A try of a task instance.

    :param max_tries: the number of the last try that Airflow would still retry
    :param xcoms: the XComs that the task pushed, such as the link to the run, by key
    """

    task_id: str
    try_number: int
    max_tries: int
    id: UUID = field(default_factory=uuid4)
    xcoms: dict[str, Any] = field(default_factory=dict)
    dag_id: str = "dag"
    run_id: str = "run"
    map_index: int = -1

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep an XCom in :attr:`xcoms`."""
        self.xcoms[key] = value

    def get_task_states(self, **_: object) -> dict[str, dict[str, str]]:
        """Return that this task is running."""
        return {self.run_id: {self.task_id: "running"}}


def has_state_store() -> bool:
    """Return whether this Airflow has a task state store (3.3+)."""
    return find_spec("airflow.models.task_state_store") is not None


def make_context(
    task: Task,
    *,
    try_number: int = 1,
    store: StateStore | Literal["new"] | None = "new",
    **more: Any,
) -> dict[str, Any]:
    """
    Return the context of one try of a task.

    :param task: the operator to execute
    :param try_number: 1 for the first try; a later try sees what earlier ones wrote to ``store``
    :param store: the task state store, None for a context without one; by default a new one where
        Airflow has a task state store
    :param more: further variables, such as ``ds``, for the templates
    """
    context = {
        "ti": MinimalTaskInstance(task.task_id, try_number, max_tries=task.retries or 0),
        "dag_run": SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC), clear_number=0),
        "task": task,
    }
    if store == "new":
        store = StateStore() if has_state_store() else None
    if store is not None:
        context["task_state_store"] = store

    return context | more
