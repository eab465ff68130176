"""
A task whose run writes its end to a mailbox: whatever is killed or cleared, it has its own end.

What each fault comes to is in ``tests/unit/execution/run/test_mailbox.py``; here Airflow finds
what was killed.
"""

from __future__ import annotations

import pytest

from airflow_launcher.processes import wait_for
from case import Case, play
from emulators import AZURITE, NO_AZURITE

MAILBOXES = [
    "mailboxes_file",
    "mailboxes_s3",
    "mailboxes_gs",
    pytest.param("mailboxes_abfs", marks=[] if AZURITE else [pytest.mark.skip(reason=NO_AZURITE)]),
]
CREATED = (200, 201)


@play(*MAILBOXES)
def test_the_triggerer_is_killed_before_the_end(case: Case) -> None:
    flow = case.held_flow()
    case.begin()
    case.deferred()
    with case.deployment.without_triggerer():
        flow.end()
        assert case.answers()[0] in CREATED
    case.end_well()


@play("mailboxes_file")
def test_killed_while_it_reads_the_end(case: Case) -> None:
    """With its supervisor."""
    flow = case.held_flow()
    case.begin()
    case.deferred()
    hold = case.hold("before", "PUT", "/workflow_automation_report/")
    flow.end()
    wait_for("the task continues", hold.reached.is_set)
    case.kill()
    hold.released.set()
    case.end_well()


@play(*MAILBOXES)
def test_the_end_settles_a_start_whose_response_is_lost(case: Case) -> None:
    case.calls_back(result={"rows": 3})
    case.fault("hang_after", seconds=100, times=1)
    case.begin()
    assert case.answers()[0] in CREATED
    case.kill("task")
    assert case.end("success", runs=1)["result"] == {"rows": 3}


@play(*MAILBOXES)
def test_cleared_while_it_is_deferred(case: Case) -> None:
    """The run of before writes to a mailbox of its own."""
    before, after = case.held_flow(times=1), case.held_flow(times=1)
    case.begin()
    case.deferred()
    case.clear()
    wait_for("another run", lambda: len(case.runs) == 2)
    before.end()
    case.answers()
    case.deferred()
    after.end()
    result = case.end("success", runs=2)
    assert (result["run_id"], result["result"]) == (case.runs[1], {"rows": 3})
