"""
kill -9 at every moment of a task's life: never a second run, and none that nobody knows of.

Many cases run at once, each a DAG run of its own; then each is looked at.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from airflow_launcher.processes import alive
from airflow_launcher.waiting import wait_for
from cases import OUTCOME, START
from deployment import CANNOT_MISS_HEARTBEATS
from gate import Hold, Try
from outcomes import ASKING, Outcome, outcome, run_ids
from said import MAYBE_STARTED

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


@dataclass(frozen=True)
class Window:
    """
    A moment to strike at, and what must come of it in the end.

    :param runs: how many runs there are.
    :param state: how the task ends.
    :param hold: the request to the execution API that is held: its point, method, path and what it says.
    :param fault: or the fault of the service that keeps the task waiting, and for how many seconds.
    """

    runs: int
    state: Literal["success", "failed"]
    hold: tuple[Literal["before", "after"], str, str, str] | None = None
    fault: tuple[str, float] | None = None


WINDOWS = {
    "before the start is recorded": Window(1, "success", hold=("before", "GET", START, "")),
    "between its record and the POST": Window(0, "failed", hold=("after", "PUT", START, "")),
    "while the service works": Window(1, "failed", fault=("delay", 15)),
    "after it accepted": Window(1, "failed", fault=("hang_after", 20)),
    "while its response is read": Window(1, "failed", fault=("drip", 20)),
    "before the outcome is recorded": Window(1, "failed", hold=("before", "PUT", OUTCOME, "")),
    "after the outcome is recorded": Window(1, "success", hold=("after", "PUT", OUTCOME, "")),
    "while its result is pushed": Window(1, "success", hold=("before", "POST", "/return_value", "")),
}

# What a later moment of a task's only try would show again: the line is in the log.
UNTIL_SENT = ("before the start is recorded", "between its record and the POST", "while the service works")
# A start within a task is recorded and sent as that of an operator, but under its name.
RECORDED = (
    "between its record and the POST",
    "before the outcome is recorded",
    "after the outcome is recorded",
)

# A frozen process is what a kill is not: it comes back, when another try has long done its work.
KILLS = ("kill the task", "kill the supervisor")
FREEZE = "freeze both"
STRIKES = KILLS if CANNOT_MISS_HEARTBEATS else (*KILLS, FREEZE)
SKIP_FREEZE = pytest.mark.skipif(
    CANNOT_MISS_HEARTBEATS, reason="Airflow 3.4.0b2's scheduler ends at the first task without heartbeats"
)


def ended(process: Try) -> None:
    wait_for(f"the end of the task process {process.pid}", lambda: not alive(process.pid))


def strike(
    deployment: Deployment,
    service: LocalService,
    window: Window,
    blow: str,
    case: str,
    dag_id: str = "patient",
) -> Outcome:
    """Let a task come to the moment, strike, and see it to its end and to that of what is left of it."""
    hold = fault = None
    if window.hold:
        hold = deployment.gate.hold(Hold(case, *window.hold, lost=blow != FREEZE))
    if window.fault:
        kind, seconds = window.fault
        fault = service.faults.add(kind, seconds=seconds, inputs={"case": case})
    deployment.api.trigger(dag_id, case)
    if hold:
        wait_for("the held request", hold.reached.is_set)
    if fault:
        wait_for(
            "the fault", lambda: fault.struck and (fault.fault.kind == "delay" or run_ids(service, case))
        )
    (first,) = deployment.gate.tries_of(case)
    assert alive(first.pid)
    if blow == FREEZE:
        os.kill(first.supervisor, signal.SIGSTOP)
        os.kill(first.pid, signal.SIGSTOP)
    else:
        if fault:
            # The supervisor reads the log after the request that it answered before this moment.
            wait_for("the line beforehand", lambda: ASKING in deployment.log(dag_id, case))
        os.kill(first.pid if blow == "kill the task" else first.supervisor, signal.SIGKILL)
    if blow != "kill the task":
        deployment.miss_heartbeats(first.pid)
    if hold and blow != FREEZE:
        hold.released.set()
    found = outcome(deployment, service, dag_id, case)
    if blow == FREEZE:
        assert alive(first.pid)
        if hold:
            hold.released.set()
        os.kill(first.pid, signal.SIGCONT)
        os.kill(first.supervisor, signal.SIGCONT)
    ended(first)
    if fault:
        # A service that works for long may start the run when the task is long gone.
        wait_for("the run", lambda: run_ids(service, case))
    # What is left of the first try may have started a run after all, or changed how the task ended.
    again = outcome(deployment, service, dag_id, case)
    assert (again.state, again.tries, again.result) == (found.state, found.tries, found.result)
    return again


Outcomes = dict[tuple[str, str, str], "Future[Outcome]"]


@pytest.fixture(scope="module")
def outcomes(
    deployment: Deployment, service: LocalService, note: Callable[[str], None]
) -> Iterator[Outcomes]:
    cases = [(name, blow, "patient") for name in WINDOWS for blow in STRIKES]
    cases += [(name, blow, "once") for name in UNTIL_SENT for blow in KILLS]
    cases += [(name, "kill the task", "taskflow") for name in RECORDED]
    # More at once only wait for one another, and then for longer than anything here is waited for.
    with ThreadPoolExecutor(16) as pool:
        outcomes = {
            (name, blow, dag_id): pool.submit(
                strike,
                deployment,
                service,
                WINDOWS[name],
                blow,
                f"{name} {blow} {dag_id}".replace(" ", "-"),
                dag_id,
            )
            for name, blow, dag_id in cases
        }
        yield outcomes
    for (name, blow, _), future in outcomes.items():
        if not future.exception():
            found = future.result()
            note(f"{name:30} {blow:20} runs {len(found.runs)}  tries {found.tries}  {found.state}")


@pytest.mark.parametrize(
    ("name", "blow", "dag_id"),
    [
        *((name, blow, "patient") for name in WINDOWS for blow in KILLS),
        *(pytest.param(name, FREEZE, "patient", marks=SKIP_FREEZE) for name in WINDOWS),
        *((name, "kill the task", "taskflow") for name in RECORDED),
    ],
)
def test_no_second_run_and_none_unmentioned(outcomes: Outcomes, name: str, blow: str, dag_id: str) -> None:
    found = outcomes[name, blow, dag_id].result()
    window = WINDOWS[name]

    # A task that is frozen on the brink of its POST may yet send it when it thaws: one run, and announced.
    thawed = blow == FREEZE and window.runs == 0
    assert len(found.runs) in ((0, 1) if thawed else (window.runs,))
    assert (found.state, found.tries) == (window.state, 2)
    if window.state == "success":
        assert found.result is not None
        assert [found.result["run_id"]] == found.runs
    else:
        assert MAYBE_STARTED in found.log


@pytest.mark.parametrize("blow", KILLS)
@pytest.mark.parametrize("name", UNTIL_SENT)
def test_the_only_try_leaves_word_of_its_run(outcomes: Outcomes, name: str, blow: str) -> None:
    found = outcomes[name, blow, "once"].result()

    assert (found.state, found.tries) == ("failed", 1)
    if name == "before the start is recorded":
        assert found.runs == []
    else:
        assert len(found.runs) == WINDOWS[name].runs
        # A supervisor reads what it is sent in any order. Killed while it writes the record, it may not have read the
        # line yet; but the task then gets no response, and sends nothing.
        assert ASKING in found.log or (blow == "kill the supervisor" and WINDOWS[name].runs == 0)


def test_an_orphan_that_wakes_after_the_next_try_starts_nothing(
    deployment: Deployment, service: LocalService, tmp_path: Path
) -> None:
    case = "late-orphan"
    deployment.api.trigger("waits_before", case, {"folder": str(tmp_path)})
    wait_for("the task", (tmp_path / "here").exists)
    (first,) = deployment.gate.tries_of(case)
    os.kill(first.supervisor, signal.SIGKILL)
    deployment.miss_heartbeats(first.pid)
    found = outcome(deployment, service, "waits_before", case)
    assert alive(first.pid)
    (tmp_path / "go").touch()
    ended(first)

    assert (found.state, found.tries) == ("success", 2)
    assert run_ids(service, case) == found.runs
    assert len(found.runs) == 1
