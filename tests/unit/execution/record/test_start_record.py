"""
What a task asks of Airflow's store, and how often.

And what it makes of reads that find nothing.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from entry_keys import (
    ADOPTED,
    FIRST_START,
    OUTCOME,
    PROBE,
    REVOKED,
    RUN,
    SECOND_START,
    START,
)
from sentences import NOT_RECORDED
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from world_calls import TRIGGER, after, at, before

from ...starts import claims, entries, struck, trigger, triggers, waits

pytestmark = pytest.mark.usefixtures("airflow_home")


def calls(*processes, kinds=("get", "set", "delete")):
    return [call for process in processes for call in process.calls if call.kind in kinds]


def test_entries_have_their_times_in_utc(world):
    task = struck(world, claims())
    task.try_()
    assert task.state == "success"
    (revoked,) = entries(task, REVOKED).values()
    assert revoked["at"].endswith("Z")


def reads_of_run(process):
    return [call for call in process.calls if call.name.startswith(RUN)]


def test_a_retry_without_a_token_does_not_look_for_reports(world):
    task = world(trigger())
    task.try_(after("set", OUTCOME, "kill"))
    again = task.try_()
    assert reads_of_run(again) == []
    assert again.result["run_id"] == task.flow.runs[0].run_id


@pytest.mark.parametrize(("scripts", "reads"), [([], 1), ([("get", RUN, "lost")], 2)])
def test_a_retry_looks_for_reports_until_it_finds_them(world, scripts, reads):
    task = world(claims())
    task.try_(after("set", OUTCOME, "kill"))
    assert task.flow.reports("started", run_id="77") == 200
    again = task.try_(*[at(*script) for script in scripts])
    assert len(reads_of_run(again)) == reads
    assert again.result["run_id"] == "77"


def test_a_read_that_finds_nothing_hides_no_start_behind_an_earlier_one(world):
    task = struck(world, claims())
    task.try_(before("push", "", "kill"))
    task.try_(at("get", SECOND_START, "lost"))
    assert (task.state, triggers(task)) == ("success", 2)


def test_a_first_try_is_given_no_run(world):
    task = world(trigger())
    task.rows.put(ADOPTED, "77")
    assert task.try_().result["run_id"] != "77"


def test_after_a_try_that_left_nothing_a_probe_is_written_and_read(world):
    task = world(trigger())
    task.try_(before("get", START, "kill"))
    again = task.try_()
    assert task.state == "success"
    assert [call.kind for call in again.calls if call.name == PROBE] == ["set", "get"]
    assert [*entries(task, PROBE).values()] == [{"try_number": 2}]
    assert len([call for call in again.calls if call.name == FIRST_START]) == 2


def test_an_own_start_that_does_not_come_back_is_not_sent(world):
    task = world(trigger())
    first = task.try_(at("get", FIRST_START, "lost", nth=1))
    assert (type(first.error), triggers(task)) == (NotSentError, 0)
    assert task.until_end().state == "success"


def comes_back():
    """Make an operator whose policy has Airflow execute the first try again."""
    back = SimpleNamespace(action=SimpleNamespace(value="reschedule"))
    return trigger(retry_policy=SimpleNamespace(evaluate=lambda *_: back))


def is_recorded(task):
    task.try_(after("set", OUTCOME, "kill"))


def is_killed(task):
    task.try_(after("send", TRIGGER, "kill"))


def is_killed_in_the_second_of_one_try(task):
    task.faults.add("busy")
    task.try_()
    assert task.state == "up_for_reschedule"
    task.try_(after("send", TRIGGER, "kill"))


def is_in_doubt(task):
    task.faults.add("drop_after")
    task.try_()


def is_claimed(task):
    is_in_doubt(task)
    assert task.flow.reports("started", run_id=True) == 200


def has_ended(task):
    is_recorded(task)
    assert task.flow.reports("success", run_id=True) == 200


# The operator, what happens to its first try, and the state in which the task ends.
SCENES = [
    (trigger, is_recorded, "success"),
    (trigger, is_killed, "failed"),
    (comes_back, is_killed_in_the_second_of_one_try, "failed"),
    (claims, is_claimed, "success"),
    (claims, is_in_doubt, "success"),
    (waits, has_ended, "success"),
]


@pytest.mark.parametrize(("make", "happens", "state"), SCENES)
def test_one_read_that_finds_nothing_starts_no_second_run_beside_the_first(
    world, make, happens, state
):
    read, last = 0, 99
    while read < last:
        task = world(make())
        happens(task)
        process = task.try_(at("get", "", "lost", nth=read))
        for _ in range(3):
            if task.state in ("up_for_retry", "up_for_reschedule", "awaiting_input"):
                task.try_()
        assert task.state == state, read
        if happens is is_in_doubt:
            *earlier, _ = [task.flow.reports("started", run) for run in task.flow.runs]
            assert earlier in ([], [404])
        else:
            assert len(task.flow.runs) == 1, read
        last = len(calls(process, kinds=["get"]))
        read += 1
    assert last < 99


def test_an_adopted_run_is_recorded_with_the_start_of_its_token(world):
    task = world(waits(retries=5))
    task.try_(before("get", START, "kill"))
    task.faults.add("drop_after", times=2)
    task.until_end()
    run = task.flow.runs[0].run_id
    for place in ("3/0", "4/0"):
        task.adopt(run)
        task.clear()
        task.try_()
        assert task.state == "awaiting_input"
        (gave, *_), taken = entries(task, START).values(), entries(task, START)[place]
        assert (taken["run"], taken["issuer"], taken["token_hash"]) == (
            {"run_id": run},
            [2, 0],
            gave["token_hash"],
        )
        assert (taken["conn_id"], "run" in gave) == (gave["conn_id"], False)
        assert SECOND_START in [call.name for call in calls(task.last, kinds=["set"])]
        assert ADOPTED not in task.rows.entries
        task.mark("failed")
    assert triggers(task) == 1


@pytest.mark.parametrize(
    "entry", ["77", {}, {"at": "then", "max_tries": 2}, {"at": "2026-01-01", "max_tries": 2}]
)
def test_a_damaged_start_is_named_and_decides_nothing(world, entry):
    task = world(claims())
    task.faults.add("drop_after", times=2)
    task.until_end()
    key = max(key for key in task.rows.entries if key.startswith(START))
    runs = len(task.flow.runs)
    task.mark("failed")
    task.rows.put(key, entry)
    task.clear()
    again = task.try_()
    assert isinstance(again.error, InvalidRequestError)
    assert (task.state, key in str(again.error), len(task.flow.runs)) == ("failed", True, runs)
    assert {task.flow.reports("started", run) for run in range(runs)} == {503}


@pytest.mark.parametrize("failures", [1, 2])
def test_an_outcome_that_cannot_be_written_is_written_again(world, failures):
    task = world(trigger())
    first = task.try_(*[at("set", OUTCOME, "lost", nth=nth) for nth in range(failures)])
    assert first.result["run_id"] == task.flow.runs[0].run_id
    assert any(key.startswith(OUTCOME) for key in task.rows.entries) is (failures == 1)
    assert (NOT_RECORDED in first.log) is (failures == 2)
