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


@pytest.mark.parametrize(("first", "second"), [({}, RUN), (RUN, {}), (RUN, {"run_id": "8"})])
def test_one_request_sent_twice(starting, say, first, second):
    task = starting()
    assert status(say(task.url, "started", **first)) == 200
    claim = task.claim
    assert status(say(task.url, "started", **second)) == 409
    assert task.claim == claim


def test_number_is_the_same_run_as_its_text(starting, say):
    task = starting()
    assert [status(say(task.url, "started", run_id=run_id)) for run_id in (7, "7")] == [200, 200]
    assert task.claim["run_id"] == "7"


def test_two_sends(starting, say):
    """A request that was handed over, and is sent again: the token of the first is revoked, or not yet."""
    task = starting()
    late = task.url
    task.renew()
    assert status(say(task.url, "started")) == 200
    assert status(say(late, "started")) == 409
    assert status(say(late)) == 409
    assert status(say(late, "running")) == 409
    assert status(say(late, "success")) == 409
    assert task.claim["digest"] == digest_of(task.token)
    assert task.row is None
    assert status(say(task.url, "success")) == 200


def test_revoked_token(starting, say):
    task = starting()
    revoked, key = task.url, task.key
    task.close()
    assert status(say(revoked, "started")) == 404
    assert task.claim is None
    task.renew()
    assert status(say(task.url, "started")) == 200
    task.enter(key)  # written again by the SDK, which repeats a request without a response
    assert status(say(revoked, "started")) == 409


def test_token_that_was_opened_again(starting, say):
    """The run had claimed before its token was deleted; a late repeat of that deletion changes nothing."""
    task = starting()
    assert status(say(task.url, "started")) == 200
    task.close()
    task.reopen()
    task.close()
    assert [status(say(task.url, *call)) for call in [("started",), (), ("running",)]] == [200] * 3
    late = task.url
    task.renew()
    assert status(say(task.url, "started")) == 409
    assert status(say(late, "success")) == 200


def test_late_token_where_the_task_looks_for_a_claim(starting, say):
    """The one that has claimed is closed for a moment: its run is the task's, unless it calls just then."""
    task = starting()
    late = task.url
    task.renew()
    task.enter(START, json.dumps({"state": "starting", "token": digest_of(task.token)}))
    assert status(say(task.url, "started")) == 200
    task.close()
    assert status(say(late, "started")) == 409
    task.open()
    assert status(say(task.url)) == 200


@pytest.mark.parametrize("over", ["ended", "stopped", "another was sent"])
def test_next_run_without_a_clear(starting, say, over):
    """A failed run is started again in the next try, and some Clears leave max_tries as it was."""
    task = starting()
    first, key = task.url, task.key
    assert status(say(first, "started")) == 200
    if over == "ended":
        assert status(say(first, "failed")) == 200
    task.close()
    if over == "stopped":
        assert status(say(first)) == 404
    task.renew()
    if over == "another was sent":
        task.enter(START, json.dumps({"state": "starting", "token": digest_of(task.token)}))
    assert [status(say(task.url, *call)) for call in [("started",), (), ("running",)]] == [200, 200, 200]
    assert task.claim["digest"] == digest_of(task.token)
    assert status(say(first)) == 404
    task.enter(key)
    assert status(say(first, "started")) == 409


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


def test_two_runs_of_one_request_end(starting, say):
    task = starting()
    assert status(say(task.url, "success", run_id="7")) == 200
    assert status(say(task.url, "success", run_id="8")) == 409


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


@pytest.mark.parametrize("call", [(), ("started",), ("running",), ("failed",)])
def test_stop_of_a_closed_token(starting, say, call):
    task = starting()
    assert status(say(task.url, "started")) == 200
    task.close()
    assert status(say(task.url, *call)) == 404
    assert "stopped" in task.claim
    assert task.read(task.key) is None


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ('{"state": "started"}', 200),
        ('{"state": "started", "waits": true}', 404),
        ('{"state": "starting"}', 404),
        ('{"state": "unidentified"}', 404),
        ('{"__airflow_ref": "s3://bucket/key"}', 200),
        ("not JSON", 200),
        ("[]", 200),
        (None, 404),
    ],
)
def test_task_that_is_green_before_its_run_works(starting, say, start, expected):
    """It does not wait; unless a person has marked it while its request was under way."""
    task = starting("success")
    if start is None:
        task.delete(START)
    else:
        task.enter(START, start)
    assert status(say(task.url, "started")) == expected
    if expected == 200:
        assert [status(say(task.url, *call)) for call in [("running",), (), ("success",)]] == [200] * 3
        task.enter(WAIT)
        assert status(say(task.url)) == 404


def test_wait_of_before_a_clear(starting, say):
    """The DAG was edited meanwhile: the task no longer waits for its run."""
    task = starting("success")
    task.enter(START, json.dumps({"state": "started"}))
    task.enter(WAIT, json.dumps({"max_tries": task.max_tries - 1}))
    assert status(say(task.url, "started")) == 200
    task.enter(WAIT, json.dumps({"max_tries": task.max_tries}))
    assert status(say(task.url)) == 404


def test_clear(starting, say):
    task = starting("failed", try_number=1)
    task.change(state="running")
    assert status(say(task.url, "started")) == 200
    claimed = task.claim
    cleared = task.max_tries
    task.change(state="failed")
    task.clear()
    assert task.max_tries != cleared
    for call in [(), ("running",), ("started",)]:
        assert status(say(task.url, *call)) == 404
    if (kept := task.read(claim_key(cleared))) is not None:  # Airflow 3.4 discards it
        assert kept.pop("stopped")
        assert kept == claimed
    first = task.token
    task.renew()
    assert status(say(task.url, "started")) == 200
    assert task.claim["digest"] == digest_of(task.token) != digest_of(first)


def test_cleared_task_that_returns_its_run(starting, say):
    """It has written its token's entry before the run has called again."""
    from airflow.utils.session import create_session

    task = starting(try_number=1)
    assert status(say(task.url, "started", **RUN)) == 200
    before = task.max_tries
    with create_session() as session:
        task._ti(session).max_tries += 1
    task.max_tries += 1
    task.open()
    assert status(say(task.url, "running")) == 200
    assert status(say(task.url, "started", **RUN)) == 200
    assert status(say(task.url, "started", run_id="8")) == 409
    assert task.claim is None
    assert "stopped" not in task.read(claim_key(before))
    working = task.url
    task.renew()
    assert status(say(task.url, "started")) == 409  # its run works
    assert status(say(working, "success", run_id=RUN["run_id"])) == 200


def test_retry(starting, say):
    """It gives the task instance another id."""
    from airflow.utils.session import create_session

    task = starting("up_for_retry", try_number=1)
    with create_session() as session:
        before = task.ti.id
        task._ti(session).prepare_db_for_next_try(session)
    assert task.ti.id != before
    calls = [("started",), (), ("running",), ("success",)]
    assert [status(say(task.url, *call)) for call in calls] == [200] * 4


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


@pytest.mark.parametrize("call", [("started",), (), ("running",)])
@pytest.mark.parametrize("how", ["ended", "cleared", "closed"])
def test_stop_of_a_run_that_had_not_claimed(starting, say, call, how):
    """A task whose state a Clear keeps (Airflow 3.4), or that Airflow counts as failed, must not return it."""
    from airflow.utils.session import create_session

    task = starting()
    task.enter(
        START,
        json.dumps({"state": "started", "token": digest_of(task.token), "max_tries": task.max_tries}),
    )
    if how == "ended":
        task.change(state="failed")
    elif how == "cleared":
        with create_session() as session:
            task._ti(session).max_tries += 1
    else:
        task.close()
        task.change(state="failed")
    assert status(say(task.url, *call)) == 404
    assert task.claim["digest"] == digest_of(task.token)
    task.change(state="running", max_tries=task.max_tries)
    task.open()
    assert "stopped" in task.claim
    assert status(say(task.url, "started")) == 404


def test_end_of_a_run_that_had_not_claimed(starting, say):
    """It is not told to stop, it has ended: a person can say how."""
    task = starting("failed")
    assert status(say(task.url, "success")) == 404
    assert task.claim is None


@pytest.mark.parametrize(("known", "expected"), [(True, 200), (False, 404)])
def test_a_late_write_of_starting_stops_no_run_of_a_green_task(starting, say, known, expected):
    task = starting("success")
    task.enter(
        "workflow_automation_started", json.dumps({"token": digest_of(task.token) if known else "another"})
    )
    assert status(say(task.url, "started")) == expected
