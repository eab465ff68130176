"""
kill -9 at the moments of a task's life: never a second run, and none that nobody knows of.

``tests/unit/test_every_kill.py`` has all moments, in a process of its own; here Airflow finds what was killed.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_launcher.processes import alive, wait_for
from case import OUTCOME, START, Case, Play, Played, each
from said import ASKING, MAYBE_STARTED

if TYPE_CHECKING:
    from deployment import Blow


@dataclass(frozen=True)
class Moment:
    """
    A moment to strike at, and what must come of it in the end.

    :param runs: how many runs there are
    :param state: how the task ends
    :param held: the request to the execution API that is held: its point, method and path; or else the service works
    """

    runs: int
    state: Literal["success", "failed"]
    held: tuple[Literal["before", "after"], str, str] | None = None


MOMENTS = {
    "before the start is recorded": Moment(1, "success", ("before", "GET", START)),
    "between its record and the POST": Moment(0, "failed", ("after", "PUT", START)),
    "while the service works": Moment(1, "failed"),
    "before the outcome is recorded": Moment(1, "failed", ("before", "PUT", OUTCOME)),
    "after the outcome is recorded": Moment(1, "success", ("after", "PUT", OUTCOME)),
}


@dataclass(frozen=True)
class Strike:
    """Lets a task come to a moment, strikes, and sees it to its end and to that of what is left of it."""

    when: str
    blow: Blow | Literal["freeze"]

    def __str__(self) -> str:
        return f"{self.when} {self.blow}"

    def __call__(self, case: Case) -> None:
        moment, freezes = MOMENTS[self.when], self.blow == "freeze"
        hold = case.hold(*moment.held, lost=not freezes) if moment.held else None
        fault = None if hold else case.fault("delay", seconds=20)
        case.begin()
        wait_for(
            f"{case.run_id} {self.when}", lambda: hold.reached.is_set() if hold else fault and fault.struck
        )
        (first,) = case.tries
        if self.blow == "freeze":
            os.kill(first.supervisor, signal.SIGSTOP)
            os.kill(first.pid, signal.SIGSTOP)
            case.deployment.miss_heartbeats(first.pid)
        else:
            if fault:
                # The supervisor reads the log after the request that it answered before this moment.
                wait_for("the line beforehand", lambda: ASKING in case.log)
            case.kill(self.blow)
            if hold:
                hold.released.set()
        case.api.finished(case.dag_id, case.run_id)
        if freezes:
            # It comes back when another try has long done its work.
            assert alive(first.pid)
            if hold:
                hold.released.set()
            for pid in (first.pid, first.supervisor):
                os.kill(pid, signal.SIGCONT)
        wait_for("the end of what is left", lambda: not alive(first.pid))
        if moment.runs:
            # A service that works for long may start the run when the task is long gone.
            wait_for("the run", lambda: case.runs)
        # A task that is frozen on the brink of its POST may yet send it when it thaws: one run, and announced.
        expected = len(case.runs) if freezes and case.runs and not moment.runs else moment.runs
        assert expected <= 1
        if case.dag_id == "once":
            assert ASKING in case.end("failed", runs=expected, tries=1).log
            return
        found = case.end(moment.state, runs=expected)
        if moment.state == "failed":
            assert MAYBE_STARTED in found.log
            assert found.tries < 4  # it is not retried until it has no retries left


STRIKES: list[tuple[Play, str]] = [
    *((Strike(when, blow), "patient") for when in MOMENTS for blow in ("task", "supervisor")),
    (Strike("between its record and the POST", "freeze"), "patient"),
    (Strike("before the outcome is recorded", "freeze"), "patient"),
    (Strike("while the service works", "both"), "once"),
    (Strike("before the outcome is recorded", "both"), "taskflow"),
]


def an_orphan_wakes_after_the_next_try(case: Case) -> None:
    """And starts nothing."""
    case.begin()
    case.until_here()
    (first,) = case.tries
    case.kill("supervisor")
    case.end("success", runs=1)
    assert alive(first.pid)
    (case.folder / "go").touch()
    wait_for("the end of the orphan", lambda: not alive(first.pid))
    case.end("success", runs=1)


@each([*STRIKES, (an_orphan_wakes_after_the_next_try, "waits_before")])
def test_no_second_run_and_none_unmentioned(played: Played, play: Play, dag_id: str) -> None:
    played[play].result()
