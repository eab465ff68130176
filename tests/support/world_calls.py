"""
The calls of a process, and what happens at them: for :mod:`world`.

A test names a call by what it is::

    task.try_(before("set", OUTCOME, "kill"))
    task.try_(after("send", TRIGGER, lambda: task.flow.reports("started")))
    task.try_(at("get", FIRST_START, "lost", nth=1))

``nth`` counts those that are named alike, from 0; with None it happens at each. What a test has
scripted must happen: else :meth:`world.World.try_` fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Act = str | Callable[[], object]
"""What happens at a call: see :mod:`world`."""

_ACTS = ("kill", "kill after", "lost", "fail after", "slow")

TRIGGER = "/api/trigger"
"""The path by which a run is started by key."""


@dataclass
class Call:
    """
    A call of a task's process to Airflow or to the service.

    :param number: from 0, within the process
    :param kind: ``get``, ``set``, ``delete``, ``push``, ``states`` or ``send``
    :param name: the key of the entry or the XCom, or the path of the request
    """

    number: int
    kind: str
    name: str


Script = Callable[[Call], Act | None]
"""Returns what happens at a call of a process."""


class Happening:
    """Something that happens at a call: see :func:`before`, :func:`after` and :func:`at`."""

    def __init__(
        self, kind: str, name: str, act: Act, nth: int | None, *, is_after: bool = False
    ) -> None:
        assert callable(act) or act in _ACTS, act
        self.has_happened = False
        self._kind, self._name = kind, name
        self._act = act
        self._nth = nth
        self._is_after = is_after
        self._seen = 0
        self._is_due = False

    def __repr__(self) -> str:
        return f"{self._act} at call {self._nth} to {self._kind} {self._name!r}"

    def __call__(self, call: Call) -> Act | None:
        is_named = self._is_named(call)
        happens = self._is_due if self._is_after else is_named
        self._is_due = is_named
        if not happens:
            return None
        self.has_happened = True
        return self._act

    def _is_named(self, call: Call) -> bool:
        """Return whether it is the call that the test has named."""
        if call.kind != self._kind or not call.name.startswith(self._name):
            return False
        self._seen += 1
        return self._nth is None or self._seen == self._nth + 1


def before(kind: str, name: str, act: Act, *, nth: int | None = 0) -> Happening:
    """Have the process killed, or call a function, before a call whose name begins so."""
    return Happening(kind, name, act, nth)


def after(kind: str, name: str, act: Act, *, nth: int | None = 0) -> Happening:
    """Have the process killed, or call a function, once a call is done and before the next."""
    return Happening(kind, name, act, nth, is_after=True)


def at(kind: str, name: str, act: Act, *, nth: int | None = 0) -> Happening:
    """Have a call be lost, fail after it was carried out, or be slow."""
    return Happening(kind, name, act, nth)


def lost_since(name: str) -> Script:
    """Have Airflow respond to all reads with 404, from the first of an entry on."""
    has_begun = False

    def act(call: Call) -> Act | None:
        nonlocal has_begun
        if call.kind != "get":
            return None
        has_begun = has_begun or call.name.startswith(name)
        return "lost" if has_begun else None

    return act


def together(*scripts: Script) -> Script:
    """Make one script of several: functions are called, and then the first of the rest happens."""

    def act(call: Call) -> Act | None:
        found: Act | None = None
        for script in scripts:
            happens = script(call)
            if callable(happens):
                happens()
            else:
                found = found or happens
        return found

    return act
