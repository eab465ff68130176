"""
What the promise means of a run and the endpoint, where earlier versions broke it.

Only facts, through the public face.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from entry_keys import MESSAGE, RUN
from sentences import WITHOUT_FILES
from workflow_automation_provider.exceptions import RunTimeoutError
from world_calls import TRIGGER, after, at, before

from .starts import claims, later, struck, waits

MOMENT = timedelta(microseconds=1)


def test_a_stopped_run_does_not_end_the_one_that_works(world):
    task = struck(world, waits(on_run_failed="start_again"), "twice")
    works, told_to_stop = task.flow.runs
    assert task.flow.reports("started", works, run_id=True) == 200
    assert task.flow.reports("started", told_to_stop, run_id=True) == 404
    assert task.flow.reports("failed", told_to_stop) == 404
    assert task.flow.reports("success", works, run_id=True) == 200
    assert task.until_end().result["run_id"] == works.run_id
    assert len(task.requests) == 1


@pytest.mark.parametrize("ended", ["success", "failed"])
def test_the_run_id_of_an_end_is_kept(world, ended):
    task = world(waits(files=[{"name": "a"}]))
    task.faults.add("drop_after")
    task.until_end(after("send", TRIGGER, lambda: task.flow.reports(ended, run_id=True)))
    (run,) = task.flow.runs
    assert (task.state, run.end, len(run.reported)) == (ended, ended, 1)
    if ended == "success":
        assert task.last.result["run_id"] == run.run_id
        assert task.requests == ["/api/trigger", "/api/public/upload"]
    else:
        assert run.run_id in str(task.last.error)
        assert WITHOUT_FILES in task.last.log
        assert task.requests == ["/api/trigger"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_only_a_post_is_accepted(world, method):
    task = struck(world, claims())
    (run,) = task.flow.runs
    entries = task.rows.entries
    assert task.ask(run.url, method) == 405
    assert task.rows.entries == entries


def test_a_slow_store_fails_no_task_that_was_asked_to_wait(world):
    operator = claims(retries=0, send_retry_timeout=60)
    task = struck(world, operator, "busy", at("set", "", "slow", nth=None))
    assert task.state == "success"
    assert len(task.flow.runs) == 1


@pytest.mark.parametrize("limit", ["completion_timeout", "heartbeat_timeout"])
def test_a_wait_that_lasted_too_long_is_not_repeated(world, limit):
    task = world(waits(on_run_failed="start_again", **{limit: MOMENT}))
    ended = task.until_end()
    assert isinstance(ended.error, RunTimeoutError)
    assert (task.state, len(task.processes), len(task.flow.runs)) == ("failed", 1, 1)


@pytest.mark.parametrize(
    "report",
    [
        {"status": "started", "run_id": ""},
        {"status": "started", "run_id": " ", "run_link": ""},
        {"status": "running", "run_id": "", "message": "", "progress": 1.0000000000000002},
        {"status": "running", "progress": -0.1},
        {"status": "Running ", "progress": 48},
        {"status": "running", "progress": "half", "message": {"rows": 3}},
        {"status": "success", "run_id": "", "message": ""},
        {"status": "failed", "run_id": ""},
    ],
)
def test_what_is_empty_is_as_if_left_out_and_progress_is_clamped(world, report):
    task = world(waits())
    task.try_()
    assert task.flow.reports(**report) == 200
    if report["status"] in ("success", "failed"):
        assert task.until_end().state == report["status"]


def test_a_task_returns_the_run_that_has_claimed_its_start(world):
    task = world(claims())
    task.faults.add("twice")
    task.try_(after("send", TRIGGER, lambda: task.flow.reports("started", 0, run_id=True)))
    assert task.flow.reports("started", 1, run_id=True) == 404
    assert task.last.result["run_id"] == task.flow.runs[0].run_id


def test_an_end_that_the_last_look_misses_once_is_not_lost(world):
    task = world(waits(completion_timeout=MOMENT))
    responses: list[int] = []
    task.until_end(
        before("get", RUN, lambda: responses.append(task.flow.reports("success"))),
        at("get", RUN, "lost"),
    )
    assert (task.state, responses) == ("success", [200])


def test_an_end_that_two_reads_miss_is_not_lost(world):
    task = world(waits(completion_timeout=timedelta(minutes=1)))
    task.try_()
    assert task.flow.reports("success") == 200
    later(task, hours=1)
    # The read that decides, and the first of the last look.
    assert task.try_(at("get", RUN, "lost"), at("get", RUN, "lost", nth=1)).result


def test_a_message_that_is_missed_once_is_no_silence(world):
    task = world(waits(heartbeat_timeout=timedelta(minutes=1)))
    task.try_()
    assert task.flow.reports("started") == 200
    later(task, minutes=3)
    assert task.flow.reports("running") == 200
    task.try_(at("get", MESSAGE, "lost"))
    assert task.state == "awaiting_input"


def test_the_wait_for_an_adopted_run_begins_anew(world):
    task = world(waits(completion_timeout=timedelta(hours=1)))
    task.try_()
    assert task.flow.reports("started", run_id=True) == 200
    later(task, hours=2)
    assert task.until_end().state == "failed"
    task.adopt(task.flow.runs[0].run_id)
    task.clear()
    task.try_()
    assert (task.state, len(task.flow.runs)) == ("awaiting_input", 1)
    assert task.flow.reports("success", run_id=True) == 200
    assert task.until_end().state == "success"


def test_a_setting_that_came_after_a_start_hides_it_not(world, monkeypatch):
    task = struck(world, claims())
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    assert "try 1 " in str(task.until_end().error)
    assert len(task.flow.runs) == 1
