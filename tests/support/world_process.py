"""A process that executes a task, and its calls to Airflow and to the service: for :mod:`world`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from world_calls import Call, Script

if TYPE_CHECKING:
    from world import Run, World


class Killed(BaseException):
    """The process was killed: nothing that it does from now on has an effect."""


class Process:
    """
    One execution of a task: a try, or what continues it after it was suspended.

    :param script: what happens at its calls
    """

    def __init__(self, world: World, row: Any, script: Script) -> None:
        self.ti_id: UUID = row.id
        self.try_number: int = row.try_number
        self.calls: list[Call] = []
        self.log = ""
        self.runs: list[Run] = []
        self.clears = world.clears
        self.state = "running"
        self.result: Any = None
        self.error: BaseException | None = None
        self.trigger: Any = None
        self.late_by = 0.0
        self._world = world
        self._script = script
        self._lock = threading.RLock()

    @property
    def is_dead(self) -> bool:
        return self.state == "killed"

    @property
    def output(self) -> str:
        """All that it shows: its log, its error, and what it returned."""
        error = "" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"{self.log}{error}\n{json.dumps(self.result)}"

    def call(
        self,
        kind: str,
        name: str,
        do: Callable[[], Any],
        again: Callable[[], Any] | None = None,
        lost: Callable[[], Any] | None = None,
    ) -> Any:
        """
        Carry out a call as the script says.

        :param again: carries it out later, without asking whose the task instance is by then
        :param lost: returns, or raises, what a 404 comes to
        """
        with self._lock:
            self._check()
            call = Call(len(self.calls), kind, name)
            self.calls.append(call)
            act = self._script(call)
            self._check()
        if act == "kill":
            self._die()
        if act == "lost" and lost:
            return lost()
        value = do()
        self._check()
        if act == "kill after":
            self._die()
        if act == "fail after" and kind in ("set", "delete"):
            raise self._world.store_error()
        if act == "slow" and again:
            self._world.late.append(again)
            self.late_by += 6
        return value

    def _check(self) -> None:
        if self.is_dead:
            raise Killed

    def _die(self) -> None:
        self.state = "killed"
        raise Killed


class Store:
    """What Airflow's SDK puts into the context as ``task_state_store``."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def get(self, key: str, default: Any = None) -> Any:
        def read() -> Any:
            value = self._world.rows.read(self._process.ti_id, key)
            return default if value is None else json.loads(value)

        return self._process.call("get", key, read, lost=lambda: default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self._write("set", key, json.dumps(value))

    def delete(self, key: str) -> None:
        self._write("delete", key)

    def _write(self, operation: str, *values: str) -> None:
        def write(ti_id: UUID | None = None) -> None:
            self._world.rows.store(ti_id, operation, *values)

        def lost() -> None:
            raise self._world.store_error()

        self._process.call(operation, values[0], lambda: write(self._process.ti_id), write, lost)
