"""
What each event of a task costs: its calls of Airflow, each with its reason.

A call takes some 10 ms: one more needs its reason here. What a run's own call costs is in
``plugins/test_statements.py``.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from entry_keys import PREFIX
from world_calls import before

from .starts import claims, struck, trigger, waits

pytestmark = pytest.mark.usefixtures("airflow_home")

START = [
    ("get start/1/0", "this try may have been executed before"),
    ("set start/1/0", "a later try must know of a request that was sent"),
    ("get start/1/0", "Airflow still runs this try: a write alone may be repeated, or lost"),
    ("send trigger", ""),
    ("set outcome/1/0", "a later try returns this run"),
]
CLAIM = [("get report/…", "a proxy may have sent the request twice, and the other run has claimed")]
LINK = [("push _link_FlowRunLink", "the button works while the task goes on")]
RUN = [
    ("push return_value", "a person may mark the task, whose run the next one gets"),
    ("push run_id", "the same, by its key"),
    ("push run_link", "the same"),
    ("push flow_id", "the same"),
]
RESULT = [("push return_value", "Airflow's own, as each of its keys, and the link")]
THIS_TRY = [
    ("get start/1/0", "the start of this try"),
    ("get start/1/1", "the next: an execution of this try may have made another"),
]
FACTS = [
    ("get report/…", "what the run has reported"),
    ("get outcome/1/0", "the run, as the response had it"),
]
REVOKED = [("get revoked/…", "a run that has not claimed may have been told to stop")]
HEARTBEAT = [("get message/…", "when the run last reported")]
EARLIER_TRY = [
    ("get start/2/0", "the start of this try"),
    ("get start/1/0", "the start of the try before"),
    ("get start/1/1", "the next, as in a look"),
]
GIVEN = [("get run", "a run that a person gives the task")]
PROBE = [
    ("set probe", "one read may miss what is there: the store must return what it is given"),
    ("get probe", "the same"),
]
AGAIN = [
    ("get start/2/0", "what was not there before the probe; what was is known"),
    ("get start/1/1", "the same"),
]
REVOKE = [
    ("get report/…", "a run may have claimed by now: the task waits for that"),
    ("set revoked/…", "no run can claim that start from now on"),
    ("set start/1/0", "waits for what the endpoint has locked"),
    ("get report/…", "a run that has claimed before"),
    *PROBE,
    ("get report/…", "the same, certainly"),
]
SEND = [
    ("set start/2/0", "as in a first try"),
    ("get start/2/0", "the same"),
    ("get revoked/…", "the run that this one replaces must be told to stop"),
    ("states ", "a person may have marked the task"),
    ("send trigger", ""),
    ("set outcome/2/0", "as in a first try"),
    *CLAIM,
]


def names(process):
    """Return the calls of a process, each as its kind and the key, without the hash of a token."""

    def name(key):
        key = key.removeprefix(PREFIX).removeprefix("/api/")
        return f"{key.rpartition('/')[0]}/…" if len(key) > 64 else key

    return [f"{call.kind} {name(call.name)}" for call in process.calls]


def cost(*parts):
    return [call for part in parts for call, _ in part]


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (trigger, [START, RESULT]),
        (claims, [START, CLAIM, RESULT]),
        (waits, [START, CLAIM, LINK, RUN]),
        (
            lambda: waits(heartbeat_timeout=timedelta(days=1)),
            [START, CLAIM, LINK, HEARTBEAT, RUN],
        ),
    ],
)
def test_a_start(world, make, parts):
    assert names(world(make()).try_()) == cost(*parts)


def test_a_busy_service_costs_no_call(world):
    task = world(trigger(send_retry_timeout=60))
    task.faults.add("busy", retry_after="1")
    send, *outcome = START[3:]
    assert names(task.try_()) == cost(START[:3], [send], [send], outcome, RESULT)


def test_a_look_pushes_nothing_again(world):
    """And less is read of a run that has claimed. What it reported anew is pushed once."""
    task = world(waits(heartbeat_timeout=timedelta(days=1)))
    task.try_()
    for _ in range(2):
        assert names(task.try_()) == cost(THIS_TRY, FACTS, REVOKED, HEARTBEAT)

    link = "http://service/runs/another"
    assert task.flow.reports("started", run_id=True, run_link=link) == 200
    assert names(task.try_()) == cost(THIS_TRY, FACTS, HEARTBEAT, LINK, RUN)
    assert task.xcoms["run_link"] == task.xcoms["_link_FlowRunLink"] == link
    for _ in range(2):
        assert names(task.try_()) == cost(THIS_TRY, FACTS, HEARTBEAT)

    assert task.flow.reports("success", run_id=True) == 200
    assert names(task.try_()) == cost(THIS_TRY, FACTS, HEARTBEAT, RESULT)
    assert task.state == "success"


def test_what_could_not_be_pushed_is_pushed_by_the_next_look(world):
    def fail():
        raise OSError

    task = world(waits())
    task.try_(before("push", "return_value", fail))
    assert names(task.try_()) == cost(THIS_TRY, FACTS, REVOKED, LINK, RUN)
    assert names(task.try_()) == cost(THIS_TRY, FACTS, REVOKED)


@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_retry_in_doubt(world, is_claimed):
    """It returns the run that has claimed; or no run can any more, and it sends."""
    task = struck(world, claims())
    if is_claimed:
        assert task.flow.reports("started", run_id=True) == 200

    rest = [RESULT] if is_claimed else [REVOKE, SEND, RESULT]
    seen_twice = [EARLIER_TRY, FACTS, GIVEN, PROBE, AGAIN, FACTS, GIVEN]
    assert names(task.try_()) == cost(*seen_twice, *rest)
    assert len(task.flow.runs) == 2 - is_claimed


def test_a_retry_of_a_run_that_responded_and_claimed(world):
    """One pass is enough: no other start can follow such a one."""
    task = world(claims())
    task.try_(before("push", "return_value", "kill"))
    assert task.flow.reports("started", run_id=True) == 200
    assert names(task.try_()) == cost(EARLIER_TRY, FACTS, GIVEN, RESULT)


def test_a_retry_of_a_task_that_waits(world):
    """Its XComs are pushed anew, since Airflow deletes them when a try begins."""
    task = world(waits())
    task.try_()
    task.try_(before("get", "", "kill"))
    passes = [EARLIER_TRY, FACTS, REVOKED, GIVEN, PROBE, AGAIN, FACTS[:1], REVOKED, GIVEN]
    assert names(task.try_()) == cost(*passes, LINK, RUN)
