"""
What a run is told, and what is recorded of it, over HTTP, against a real metadata database.

Closed starts, Clears, and runs that a person enters are in ``tests/unit/execution/test_claim.py``,
with the task itself.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from workflow_automation_provider.execution.record.entries import Claim, RunReports
from workflow_automation_provider.plugins import callback_store

EVERY = ["started", "running", "success"]
RUN = {"run_id": "7", "run_link": "http://service/runs/7"}


@pytest.mark.parametrize(("state", "fields"), [("running", {}), ("awaiting_input", RUN)])
def test_claim(waiting, say, state, fields):
    task = waiting(state=state)
    assert say(task.url, "started", **fields) == 200
    reports = task.reports
    assert reports.claim.at <= datetime.now(UTC)
    assert reports == RunReports(claim=Claim(reports.claim.at, **fields))
    assert say(task.url, "started", **fields) == 200
    assert (task.reports, task.ti.state) == (reports, state)


def test_only_the_run_that_claimed_goes_on(waiting, http):
    """A request that a proxy sends twice; a number is the same run as its text."""
    task = waiting()
    answers = []
    for status, run_id in (
        *(("running", "7"), ("started", 7), ("started", "8"), ("started", "7")),
        *(
            ("running", "8"),
            ("running", "7"),
            ("success", None),
            ("success", "7"),
            ("started", "7"),
        ),
    ):
        answers.append(http.post(task.url, json={"status": status, "run_id": run_id}).status_code)
    assert answers == [200, 200, 404, 200, 404, 200, 404, 200, 404]
    assert (task.reports.run_ids, task.reports.refused) == ({"7"}, ("8",))


def test_the_first_heartbeat_claims(waiting, say):
    """A flow without a first step is protected by it."""
    task = waiting()
    assert say(task.url, message="Half", **RUN) == 200
    reports = task.reports
    assert reports == RunReports(claim=Claim(reports.claim.at, **RUN))
    assert task.last_message["message"] == "Half"
    assert say(task.url, "started", run_id="8") == 404


def test_progress(waiting, say):
    task = waiting()
    assert say(task.url, "started") == 200
    reports = task.reports
    for report in ({"message": "Half", "progress": 0.5}, {}):
        assert say(task.url, **report) == 200
        found = task.last_message
        assert datetime.fromisoformat(found.pop("at")) <= datetime.now(UTC)
        assert found == report
    assert task.reports == reports


@pytest.mark.parametrize("state", ["failed", "success", "cleared", "sent again"])
def test_stop(waiting, say, state):
    """
    Also where a person has marked a waiting task as success.

    It is recorded before it is answered, and stays.
    """
    task = waiting()
    url, token = task.url, task.token
    assert say(url, "started") == 200
    assert task.seconds_left() > 60
    before = task.reports
    if state == "cleared":
        task.change(max_tries=7)
    elif state == "sent again":
        task.give()
    else:
        task.change(state=state)
    assert say(url) == 404
    task.token = token
    stopped = task.reports
    assert stopped == replace(before, stopped=stopped.stopped)
    task.change(state="running", max_tries=task.max_tries)
    assert [say(url, status) for status in EVERY] == [404, 404, 404]
    assert (task.reports, task.reports.end) == (stopped, None)


@pytest.mark.parametrize(
    ("state", "claim", "end"),
    [("running", 503, 503), ("awaiting_input", 200, 200), ("failed", 404, 200)],
)
def test_revoked(waiting, say, state, claim, end):
    """
    An end is kept whatever the task's state.

    Who clears it once it has adopted that run gets the result.
    """
    for status, answer in (("started", claim), ("success", end)):
        task = waiting(state=state)
        assert task.close() == RunReports()
        assert say(task.url, status) == answer
        assert (task.reports == RunReports()) == (answer == 503)


# At once; test_claim_races.py has runs that call together.


@pytest.mark.parametrize("status", EVERY)
def test_a_report_that_waits_too_long_for_a_lock_is_to_be_repeated(
    waiting, say, locked_database, status
):
    task = waiting(state="running")
    with locked_database():
        assert say(task.url, status) == 503
    assert say(task.url, status) == 200


@pytest.mark.parametrize("state", ["running", "failed"])
def test_task_that_is_missing_from_its_dag_for_now(waiting, say, state):
    """
    A deployment may lack it for seconds.

    While its DAG run goes on, its runs are to ask again.
    """
    task = waiting(state="removed")
    task.change_dag_run(state)
    claim = 503 if state == "running" else 404
    assert [say(task.url, "started"), say(task.url, "success")] == [
        claim,
        200 if claim == 503 else 404,
    ]


def test_task_instance_that_was_deleted_and_made_again(waiting, say):
    """Its tries begin at 1; what it had before is left."""
    task = waiting(state="running")
    task.change(try_number=3)
    before = task.give(try_number=3)
    task.change(try_number=1)
    after = task.give(try_number=1, number=1)
    assert [say(before, "started"), say(after, "started")] == [404, 200]


@pytest.mark.parametrize(("age", "soon"), [(5, 20), (60, 0)])
def test_wake_is_counted_from_the_suspension(waiting, say, age, soon):
    task = waiting()
    task.change(updated_at=datetime.now(UTC) - timedelta(seconds=age))
    assert say(task.url, "success") == 200
    assert soon - 5 < task.seconds_left() <= soon


def test_the_dag_run_is_deleted(waiting, say, monkeypatch):
    """After the token was found, before the report is stored."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    task = waiting()

    def delete_run(token, report):
        with create_session() as session:
            session.execute(delete(DagRun).filter_by(run_id=task.run_id))
        return respond(token, report)

    respond = callback_store.respond
    monkeypatch.setattr(callback_store, "respond", delete_run)
    assert [say(task.url, status) for status in EVERY] == [404, 404, 404]
