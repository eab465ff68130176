"""A run that claims the task's start, over HTTP, against a real metadata database."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from workflow_automation_provider.execution.callback import claim_key, digest_of

UNFINISHED = ["running", "queued", "scheduled", "up_for_retry", "up_for_reschedule", "awaiting_input", None]
ENDED = ["failed", "skipped", "upstream_failed", "removed", "restarting"]

START, WAIT = "workflow_automation_start", "workflow_automation_wait"
RUN = {"run_id": "7", "run_link": "http://service/runs/7"}


@pytest.fixture
def starting(waiting):
    """Make a task instance that has handed over a request, and does not wait for the end of its run."""

    def make(state="running", **options):
        task = waiting(state=state, **options)
        task.delete(WAIT)
        task.enter(START, json.dumps({"state": "starting"}))
        return task

    return make


def status(reply):
    return reply[0]


@pytest.mark.parametrize("state", UNFINISHED)
@pytest.mark.parametrize("fields", [{}, {"run_id": "7"}, RUN])
def test_claim(starting, say, state, fields):
    task = starting(state)
    assert status(say(task.url, "started", **fields)) == 200
    claim = task.claim
    assert datetime.fromisoformat(claim.pop("at")) <= datetime.now(UTC)
    assert claim == {"digest": digest_of(task.token), **fields}
    before = task.claim
    assert status(say(task.url, "started", **fields)) == 200
    assert task.claim == before
    assert task.ti.state == state


def test_number_is_the_same_run_as_its_text(starting, say):
    task = starting()
    assert [status(say(task.url, "started", run_id=run_id)) for run_id in (7, "7")] == [200, 200]
    assert task.claim["run_id"] == "7"


@pytest.mark.parametrize("call", [(), ("running",)])
def test_claim_first(starting, say, call):
    task = starting()
    assert status(say(task.url, *call)) == 409
    assert "started" in say(task.url, *call)[1]
    assert task.word is None


def test_words(starting, say):
    task = starting()
    assert status(say(task.url, "started", **RUN)) == 200
    for word in ({"message": "Half", "progress": 0.5}, {"progress": 1}, {"message": "Done"}, {}):
        assert status(say(task.url, "running", **word)) == 200
        found = task.word
        assert datetime.fromisoformat(found.pop("at")) <= datetime.now(UTC)
        assert found == word
    assert status(say(task.url, "running", run_id="7")) == 200
    assert status(say(task.url, "running", run_id="8")) == 409
    assert status(say(task.url)) == 200


def test_the_token_is_not_stored(starting, say):
    task = starting()
    assert status(say(task.url, "started", run_id=task.token, run_link=f"http://a{task.url}")) == 200
    assert status(say(task.url, "running", message=f"called {task.url}")) == 200
    assert task.token not in json.dumps([task.claim, task.word])
    assert status(say(task.url, "started", run_id=task.token)) == 200


# The end.


def test_end(starting, say):
    task = starting()
    assert status(say(task.url, "started", **RUN)) == 200
    assert status(say(task.url, "success", run_id="8")) == 409
    assert task.row is None
    assert status(say(task.url, "success", result=3, run_id="7")) == 200
    assert status(say(task.url, "success", result=3, run_id="7")) == 200
    assert status(say(task.url, "success", result=3, run_id="8")) == 409


# What is told to stop.


@pytest.mark.parametrize("state", [*ENDED, "success"])
@pytest.mark.parametrize("call", [(), ("started",), ("running",), ("success",)])
def test_stop(waiting, say, state, call):
    """Also where a person has marked a waiting task as success. It is recorded before it is said."""
    task = waiting()
    assert status(say(task.url, "started")) == 200
    task.change(state=state)
    assert status(say(task.url, *call)) == 404
    stopped = task.claim["stopped"]
    task.change(state="running")
    assert status(say(task.url, *call)) == 404
    assert task.claim["stopped"] == stopped


@pytest.mark.parametrize("state", ENDED)
def test_stop_without_a_claim(starting, say, state):
    task = starting(state)
    assert status(say(task.url, "started")) == 404
    assert "stopped" in task.claim


def test_entries_that_only_the_worker_can_read(starting, say):
    task = starting()
    task.enter(task.key, '{"__airflow_ref": "s3://bucket/key"}')
    task.enter(START, '{"__airflow_ref": "s3://bucket/key"}')
    assert [status(say(task.url, *call)) for call in [("started",), (), ("running",)]] == [200, 200, 200]


# The parked task.


def test_a_task_that_waits_for_the_end_is_not_woken(waiting, say):
    task = waiting()
    for call in [("started",), ("running",), ()]:
        assert status(say(task.url, *call)) == 200
    assert task.seconds_left() > 60


# At once.


def test_what_takes_no_lock(starting, say, impatient, locked_database):
    """A repeated claim; a word, where the database has locks for rows."""
    from airflow import settings

    task = starting()
    assert status(say(task.url, "started")) == 200
    calls = [("started",)]
    if settings.get_engine().dialect.name != "sqlite":
        calls += [("running",), ("running",)]
    with locked_database():
        assert [status(say(task.url, *call)) for call in calls] == [200] * len(calls)


def test_first_claim_waits_for_the_lock(starting, say, impatient, locked_database):
    task = starting()
    with locked_database():
        assert status(say(task.url, "started")) == 503
    assert task.claim is None
    assert status(say(task.url, "started")) == 200


def test_two_claims_at_once(starting, say):
    for _ in range(8):
        task = starting()
        urls = [task.url]
        task.renew()
        urls.append(task.url)
        with ThreadPoolExecutor(4) as pool:
            found = [status(reply) for reply in pool.map(lambda url: say(url, "started"), urls * 2)]
        assert sorted(found) == [200, 200, 409, 409]
        assert found[:2] == found[2:]


def test_claim_and_revocation_at_once(starting, say):
    for _ in range(20):
        task = starting()
        with ThreadPoolExecutor(2) as pool:
            call, closing = pool.submit(say, task.url, "started"), pool.submit(task.close)
            closing.result()
            claimed = task.claim is not None
        assert status(call.result()) == (200 if claimed else 404)


def test_stop_and_return_at_once(starting, say):
    """Where a cleared task returns its run, and the run asks: it was told to stop, or the task is told so."""
    from airflow.utils.session import create_session

    for _ in range(20):
        task = starting(try_number=1)
        assert status(say(task.url, "started")) == 200
        key = claim_key(task.max_tries)
        with create_session() as session:
            task._ti(session).max_tries += 1
        task.max_tries += 1

        def adopt(task=task, key=key):
            task.reopen()
            return "stopped" not in task.read(key)

        with ThreadPoolExecutor(2) as pool:
            call, adopting = pool.submit(say, task.url), pool.submit(adopt)
            answers = status(call.result()), adopting.result()
        assert answers in [(200, True), (404, False), (503, True)]
        assert status(say(task.url)) == (200 if answers[1] else 404)
