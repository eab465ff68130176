"""
The record of a start as an exhaustive model.

What holds in every state that can be reached, up to a size.

A task starts runs and records it, its endpoint hears them, and anything happens between any two
steps: kills, writes that are carried out again at any later time, lost requests and responses,
gateways that lie, proxies that send twice, reads that find nothing, a run that a person enters,
marks, Clears, a DAG run that is deleted. ``rules.py`` has what the task and the endpoint do,
``events.py`` what happens to them, ``person.py`` what a person does who follows the tab *Flow run*,
``promises.py`` what is to hold, ``state.py`` what a state is, and ``words.py`` the words for what
may happen and for the rules that can be left out. What is decided, the code's own
``start_decision.py``, ``callback_decision.py`` and ``advice.py`` with ``actions.py`` decide, so that they are checked,
and no copy.

A size is ``TOKENS KILLS CLEARS REPEATS WORDS …``. ``checks.txt`` lists sizes that hold, sizes that
break because a rule is left out, and known limits, in three sections: *test* is part of ``make
test``, *model* is ``make model``, and *by-hand* is for a change to the protocol.

Each step of the task reads or writes one thing, but for the reads of an execution that begins,
which are one step. The model has no time: a timeout may come whenever there is something to wait
for. A try that may be retried is one that Airflow may also not retry.

.. code-block:: sh

    python tests/model/explore.py model             # a section
    python tests/model/explore.py 2 1 0 0 no-touch  # one size: prints what led to the breach
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

from events import World
from promises import Promises
from state import State
from words import Size

MAX_STATES = 4_000_000


class Result(NamedTuple):
    """What was found: how many states, what is broken (empty if nothing is), and what led there."""

    states: int
    breach: str
    path: Sequence[State] = ()


def explore(size: Size) -> Result:
    """Go through all states."""
    world = World(size)
    promises = Promises(world)
    first = State()
    came_from: dict[State, State | None] = {first: None}
    numbers = {first: 0}
    by_itself: list[tuple[int, int]] = []
    queue = deque([first])
    while queue:
        s = queue.popleft()
        for t, is_by_itself in world.steps(s):
            is_new = t not in came_from
            if breach := promises.step(s, t) or (promises.state(t) if is_new else ""):
                return Result(len(came_from), breach, [*_path(came_from, s), t])
            if is_new:
                came_from[t] = s
                numbers[t] = len(numbers)
                queue.append(t)
                if len(came_from) > MAX_STATES:
                    raise MemoryError(f"More than {MAX_STATES} states.")
            if is_by_itself and "live" in size.words:
                by_itself.append((numbers[s], numbers[t]))
    if "live" in size.words:
        states = list(came_from)
        for words, goal in promises.goals.items():
            if (stuck := _first_stuck(goal, states, by_itself)) is not None:
                return Result(len(states), f"not always: {words}", _path(came_from, states[stuck]))
    return Result(len(came_from), "")


def _first_stuck(
    goal: Callable[[State], bool], states: list[State], steps: list[tuple[int, int]]
) -> int | None:
    """Return the first state from which no steps lead to a goal."""
    before: list[list[int]] = [[] for _ in states]
    for a, b in steps:
        before[b].append(a)
    todo = [number for number, s in enumerate(states) if goal(s)]
    reaches = bytearray(len(states))
    for number in todo:
        reaches[number] = 1
    while todo:
        for a in before[todo.pop()]:
            if not reaches[a]:
                reaches[a] = 1
                todo.append(a)
    stuck = reaches.find(0)
    return None if stuck < 0 else stuck


def _path(came_from: dict[State, State | None], s: State | None) -> list[State]:
    path = []
    while s is not None:
        path.append(s)
        s = came_from[s]
    return path[::-1]


def story(path: Sequence[State]) -> str:
    """Return what led to a state, each step by what it changed."""
    lines = []
    for before, after in pairwise(path):
        changed = {
            name: new for name, new in after._asdict().items() if new != getattr(before, name)
        }
        if "reports" in changed:
            changed["reports"] = [after.reports_of(token) for token in range(len(after.reports))]
        lines.append("  ".join(f"{name}={_shown(value)}" for name, value in changed.items()))
    return "\n".join(lines)


def _shown(value: object) -> str:
    return str(
        [tuple(x) if isinstance(x, tuple) else x for x in value]
        if isinstance(value, frozenset)
        else value
    )


def checks(section: str) -> list[tuple[str, str]]:
    """Return what is to be found, and for which size, in a section of ``checks.txt``."""
    text = Path(__file__).with_name("checks.txt").read_text("utf-8")
    lines = text.partition(f"# {section}: ")[2].partition("\n# ")[0].splitlines()[1:]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line]


def is_as_expected(check: tuple[str, str]) -> bool:
    """Explore one size, say what was found, and return whether it is what is to be found."""
    (expected, text), begun = check, time.process_time()
    gc.disable()  # There are no cycles among millions of states.
    found = explore(Size.read(text))
    seconds = time.process_time() - begun
    is_expected = expected == "show" or bool(found.breach) == (expected != "holds")
    mark = "" if is_expected else " UNEXPECTED:"
    print(
        f"{mark}{expected} {text} | {found.states} states, {seconds:.0f} s: {found.breach or 'holds'}",
        flush=True,
    )
    if not is_expected or expected == "show":
        print(story(found.path), flush=True)
    return is_expected


def main(words: list[str]) -> bool:
    """Run all checks of a section, or show one."""
    if len(words) > 1:
        return is_as_expected(("show", " ".join(words)))
    with Pool(maxtasksperchild=1) as pool:
        return all([*pool.imap_unordered(is_as_expected, checks(words[0]))])


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
