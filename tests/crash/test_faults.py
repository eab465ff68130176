"""
What Airflow's own retries make of each kind of failure: how the task ends, in how many tries and runs.

What each fault comes to is in ``tests/unit/test_fault_table.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from airflow_launcher.waiting import wait_for
from outcomes import Outcome, outcome, run_ids
from said import MAYBE_STARTED as UNKNOWN

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService, Request

STARTED = "A run was started"
NOTHING = "No run was started"
WAIT = 8  # seconds of Retry-After; the DAGs' own retry_delay is 1 s


@dataclass(frozen=True)
class Case:
    """
    A fault that strikes once, and what must come of it.

    :param kind: the fault, as the local service calls it.
    :param state: how the task ends, after how many ``tries`` and with how many ``runs``.
    :param says: what the log says.
    :param options: the fault's options.
    :param conn_id: the connection.
    :param dag_id: the DAG.
    """

    kind: str | None
    state: str
    tries: int
    runs: int
    says: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    conn_id: str = "workflow_automation_default"
    dag_id: str = "patient"


CASES = {
    # Nobody can tell whether there is a run: no second try.
    "dropped": Case("drop_after", "failed", 1, 1, UNKNOWN),
    "hangs": Case("hang_after", "failed", 1, 1, UNKNOWN, {"seconds": 20}, conn_id="hasty"),
    "503": Case("status_after", "failed", 1, 1, UNKNOWN, {"status": 503, "headers": {"Retry-After": "1"}}),
    # There is one, and its id is unknown: no second try.
    "garbage": Case("garbage", "failed", 1, 1, STARTED),
    # There is none, and trying again cannot help.
    "401": Case("reject", "failed", 1, 0, NOTHING, {"status": 401}),
    # There is none, and Airflow comes back: when the service said, else after retry_delay.
    "429, date": Case("busy", "success", 2, 1, "", {"retry_after": "a date"}),
    "429": Case("busy", "success", 2, 1),
    "429, seconds": Case("busy", "success", 2, 1, "", {"retry_after": str(WAIT)}),
    "429, no retries": Case("busy", "failed", 1, 0, NOTHING, {"retry_after": "1"}, dag_id="once"),
    "wrong host": Case(None, "failed", 4, 0, NOTHING, conn_id="wrong_host"),
    # No connection is used twice, so none goes stale.
    "stale": Case("stale", "success", 1, 2, dag_id="two_calls"),
    # The user accepts a second run: it is started, in the next try.
    "start_again, dropped": Case("drop_after", "success", 2, 2, UNKNOWN, dag_id="start_again"),
    "start_again, truncated": Case("truncate", "failed", 1, 1, STARTED, dag_id="start_again"),
}


def run(deployment: Deployment, service: LocalService, case: Case, run_id: str) -> Outcome:
    options = dict(case.options)
    if options.get("retry_after") == "a date":
        # Long enough that it is still ahead when the task comes to it.
        date = datetime.now(UTC) + timedelta(seconds=3 * WAIT)
        options["retry_after"] = format_datetime(date, usegmt=True)
    if case.kind:
        service.faults.add(case.kind, inputs={"case": run_id}, **options)
    deployment.api.trigger(case.dag_id, run_id, {"conn_id": case.conn_id})
    deployment.api.finished(case.dag_id, run_id)
    # A slow service starts the run when the task has long given up.
    wait_for(f"the runs of {run_id}", lambda: len(run_ids(service, run_id)) >= case.runs)
    return outcome(deployment, service, case.dag_id, run_id)


def closed_unread(service: LocalService) -> list[Request]:
    return [request for request in service.journal.requests() if request.outcome == "closed unread"]


@pytest.fixture(scope="module")
def closed_before(service: LocalService) -> list[Request]:
    """What the batches of other tests met: they use connections again."""
    return closed_unread(service)


@pytest.fixture(scope="module")
def outcomes(
    deployment: Deployment,
    service: LocalService,
    closed_before: list[Request],
    note: Callable[[str], None],
) -> Iterator[dict[str, Future[Outcome]]]:
    with ThreadPoolExecutor(len(CASES)) as pool:
        outcomes = {
            name: pool.submit(run, deployment, service, case, _run_id(name)) for name, case in CASES.items()
        }
        yield outcomes
    for name, future in outcomes.items():
        if not future.exception():
            found = future.result()
            note(f"{name:30} {'':20} runs {len(found.runs)}  tries {found.tries}  {found.state}")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _run_id(name: str) -> str:
    return f"fault-{name.replace(' ', '-').replace(',', '')}"


@pytest.mark.parametrize("name", CASES)
def test_fault(outcomes: dict[str, Future[Outcome]], name: str) -> None:
    case = CASES[name]
    found = outcomes[name].result()

    assert (found.state, found.tries, len(found.runs)) == (case.state, case.tries, case.runs)
    assert case.says in found.log
    if case.state == "success" and isinstance(found.result, dict):
        assert found.result["run_id"] == found.runs[-1]


@pytest.mark.parametrize(("name", "least"), [("429", 1), ("429, seconds", WAIT)])
def test_next_try_does_not_come_before_the_service_said(
    deployment: Deployment, outcomes: dict[str, Future[Outcome]], name: str, least: float
) -> None:
    """How much later it comes is up to the scheduler."""
    outcomes[name].result()
    ((first, second),) = pairwise(deployment.api.tries("patient", _run_id(name), "trigger"))
    wait = (at(second["start_date"]) - at(first["end_date"])).total_seconds()

    assert round(wait, 3) >= least


def test_next_try_does_not_come_before_the_date_that_the_service_said(
    deployment: Deployment, service: LocalService, outcomes: dict[str, Future[Outcome]]
) -> None:
    outcomes["429, date"].result()
    (run_at,) = [at(run.at) for run in service.runs if run.inputs["case"] == _run_id("429, date")]
    (fault,) = [s.fault for s in service.faults.all() if s.fault.inputs == {"case": _run_id("429, date")}]
    late = run_at - parsedate_to_datetime(str(fault.retry_after))

    assert late.total_seconds() >= 0


def test_stale_connection_was_never_used_again(
    service: LocalService, closed_before: list[Request], outcomes: dict[str, Future[Outcome]]
) -> None:
    assert len(outcomes["stale"].result().runs) == 2
    assert closed_unread(service) == closed_before
