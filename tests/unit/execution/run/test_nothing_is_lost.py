"""
One read that finds nothing, a broken connection, another one, a damaged entry.

Nothing is lost, and no key is shown.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from entry_keys import (
    FIRST_OUTCOME,
    FIRST_START,
    OUTCOME,
    PROBE,
    RUN,
    SECOND_START,
    START,
    report_key,
)
from sentences import NOT_RECORDED, OTHER_RUN, WAS_STARTED
from workflow_automation_provider.exceptions import ConnectionUnusableError
from workflow_automation_provider.execution.upload import UPLOAD_KEY
from world_calls import TRIGGER, after, at, before, lost_since

from ...starts import MAYBE, claims, entries, later, mentions, struck, trigger, triggers, waits

CONNECTION = "AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT"
FILES = [{"name": "a"}]


def uploads(task):
    return task.requests.count("/api/public/upload")


def broken(monkeypatch):
    works = os.environ[CONNECTION]
    monkeypatch.setenv(CONNECTION, json.dumps({**json.loads(works), "extra": {"typo": 1}}))
    return works


def test_a_resumed_task_that_misses_its_start_once_keeps_its_run(world):
    task = world(waits(on_run_failed="start_again", retries=1))
    task.try_()
    assert task.flow.reports("failed", run_id=True) == 200
    task.try_()
    task.try_()
    assert (task.state, triggers(task)) == ("awaiting_input", 2)
    assert task.flow.reports("started", run_id=True) == 200
    assert task.flow.reports("success", run_id=True) == 200, "and so its end is lost"
    task.try_(at("get", SECOND_START, "lost"))
    assert task.state == "success", task.last.error


def test_an_outcome_that_is_missed_once_fails_no_task_with_files(world):
    task = world(claims(files=FILES))
    task.try_(before("get", UPLOAD_KEY, "kill"))
    assert entries(task, OUTCOME)
    assert task.flow.reports("started") == 200
    task.try_(at("get", FIRST_OUTCOME, "lost"))
    assert task.state == "success", task.last.error


@pytest.mark.parametrize("is_resumed", [True, False])
def test_an_outcome_that_is_missed_once_loses_no_run_id(world, is_resumed):
    task = world(waits(on_unknown_start="claim"))
    task.try_()
    run = task.flow.runs[0].run_id
    assert task.flow.reports("started") == 200
    assert task.flow.reports("success", result=1) == 200
    if not is_resumed:
        task.lose(task.last)
        task.rows.begin()
        task.rows.end("retry")
    assert task.try_(at("get", FIRST_OUTCOME, "lost")).result["run_id"] == run


def test_a_store_that_fails_hides_no_earlier_start(world):
    task = struck(world, trigger(on_unknown_start="start_again"))
    again = task.try_(at("set", PROBE, "fail after"))
    assert triggers(task) == 1
    assert mentions(again.log, "try 1 (", MAYBE)


def test_an_adopted_run_hides_no_earlier_start_that_is_missed_once(world):
    task = world(claims(retries=1))
    for _ in range(2):
        task.faults.add("drop_after")
        task.try_()
    assert (task.state, triggers(task)) == ("failed", 2)
    first = task.flow.runs[0].run_id
    task.adopt(first)
    task.clear()
    task.try_(at("get", FIRST_START, "lost"))
    assert task.flow.reports("started", 0, run_id=True) == 404
    assert task.state == "failed", "it may be that of an earlier start"


def test_no_run_is_adopted_where_an_earlier_start_cannot_be_read(world):
    task = world(claims(retries=1))
    for _ in range(2):
        task.faults.add("drop_after")
        task.try_()
    task.adopt(task.flow.runs[0].run_id)
    task.clear()
    task.try_(lost_since(FIRST_START))
    assert (task.state, [*entries(task, START)]) == ("up_for_retry", ["1/0", "2/0"])


def test_a_broken_connection_is_retried_for_a_claimed_run_with_files(world, monkeypatch):
    task = world(claims(files=FILES, claim_timeout=timedelta(seconds=5)))
    task.faults.add("drop_after")

    responses: list[int] = []
    task.try_(
        before("get", RUN, lambda: responses.append(task.flow.reports("started", run_id=True))),
        before("get", UPLOAD_KEY, "kill"),
    )
    assert responses == [200]
    works = broken(monkeypatch)
    error = task.try_().error
    assert not isinstance(error, AirflowFailException), error
    assert isinstance(error, ConnectionUnusableError)
    monkeypatch.setenv(CONNECTION, works)
    task.try_()
    assert (task.state, uploads(task)) == ("success", 1)


@pytest.mark.parametrize("make", [waits, claims, trigger])
def test_a_retry_needs_no_file_and_no_connection_for_what_is_uploaded(
    world, tmp_path, monkeypatch, make
):
    file = tmp_path / "a"
    file.write_text("x")
    task = world(make(files=str(file), retries=1))
    claim = partial(task.flow.reports, "started", run_id=True) if make is claims else None
    task.try_(*([after("send", TRIGGER, claim)] if claim else []), after("set", UPLOAD_KEY, "kill"))
    assert uploads(task) == 1
    file.unlink()
    works = broken(monkeypatch)
    task.try_()
    if make is waits:
        assert task.flow.reports("success", run_id=True) == 200
        monkeypatch.setenv(CONNECTION, works)
        task.try_()
    assert (task.state, uploads(task), triggers(task)) == ("success", 1, 1), task.last.error


def test_files_go_to_no_other_service_that_the_connection_names_by_then(world, monkeypatch):
    task = world(trigger(files=FILES, retries=3))
    task.try_(before("push", "", "kill"))
    works = os.environ[CONNECTION]
    monkeypatch.setenv(CONNECTION, works.replace("127.0.0.1", "localhost"))
    error = task.try_().error
    assert (task.state, uploads(task)) == ("up_for_retry", 0)
    assert isinstance(error, ConnectionUnusableError)
    assert mentions(str(error), "http://localhost:", "http://127.0.0.1:")
    monkeypatch.setenv(CONNECTION, works)
    task.try_()
    assert (task.state, uploads(task), triggers(task)) == ("success", 1, 1)


def test_files_go_to_the_flow_of_the_run_whatever_flow_id_is_by_then(world):
    task = world(trigger(flow_id="demo-flow", files=FILES, retries=1))
    task.try_(before("push", "", "kill"))
    assert uploads(task) == 0
    task.operator = trigger(flow_id="another", files=FILES, retries=1)
    task.try_()
    assert (task.state, uploads(task), len(task.flow.runs)) == ("success", 1, 1), task.last.error


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_a_run_that_has_succeeded_gets_no_files_again(world, tmp_path, monkeypatch, change):
    file = tmp_path / "a"
    file.write_text("x")
    task = world(waits(files=str(file), retries=1))
    task.try_()
    assert uploads(task) == 1
    assert task.flow.reports("success", run_id=True, result=1) == 200
    works = broken(monkeypatch)
    task.try_()
    assert task.state == "up_for_retry"
    monkeypatch.setenv(CONNECTION, works)
    if change == "gone":
        file.unlink()
    else:
        file.write_text("xy")
    task.try_()
    assert (task.state, uploads(task)) == ("success", 1), task.last.error


def test_another_connection_loses_no_end_of_a_run_whose_files_are_uploaded(world, monkeypatch):
    task = world(waits(files=FILES, retries=1))
    task.try_()
    assert uploads(task) == 1
    assert task.flow.reports("success", run_id=True, result=1) == 200
    task.try_(before("get", "", "kill"))
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER", os.environ[CONNECTION])
    task.operator = waits(files=FILES, retries=1, workflow_automation_conn_id="another")
    task.try_()
    assert (task.state, uploads(task)) == ("success", 1), task.last.error


@pytest.mark.parametrize("status", ["started", "success", "failed"])
def test_the_key_that_started_the_run_is_withheld_under_another_connection(
    world, monkeypatch, status
):
    from world import KEY

    task = world(waits(retries=1))
    task.try_()
    own = f"x{KEY.value}"
    report = {"result": own, "message": own, "run_id": own}
    assert task.flow.reports(status, **report) == 200
    other = {**json.loads(os.environ[CONNECTION]), "password": "another-key-of-another-flow"}
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER", json.dumps(other))
    task.operator = waits(retries=1, workflow_automation_conn_id="another")
    ended = task.try_()
    shown = ended.output + str(task.xcoms) + str(ended.error and vars(ended.error))
    assert KEY.value not in shown


def test_a_status_that_is_a_secret_is_not_stored(world):
    """A flow that maps the wrong field."""
    from world import KEY

    task = world(waits())
    task.try_()
    assert task.ask(task.flow.runs[0].url, body={"status": KEY.value}) == 400
    assert not [text for text in task.rows.entries.values() if KEY.value[:12] in text]


def test_a_read_that_fails_after_the_response_does_not_fail_for_good(world):
    """The look at run/{d} once the outcome is written is only for a proxy that sends twice."""

    def fail():
        raise RuntimeError("No database")

    task = world(claims(retries=0))
    task.try_(before("get", RUN, fail))
    run = task.flow.runs[0].run_id
    assert task.state == "success" or run in str(task.last.error), task.last.error
    assert mentions(task.last.log, "Whether another run has claimed is unknown")
    assert "No database" in task.last.log


def test_a_run_that_could_not_be_recorded_is_named(world):
    def fail():
        raise RuntimeError("No database")

    task = world(waits())
    task.try_(before("set", OUTCOME, fail, nth=None))
    run = task.flow.runs[0].run_id
    assert task.state == "failed"
    error = task.last.error
    assert error.run_id == run
    assert f"Run {run} was started." in error.consequence
    assert mentions(str(error), NOT_RECORDED, "wait for its end")


def test_a_run_that_could_be_recorded_at_the_second_attempt_is_awaited(world):
    def fail():
        raise RuntimeError("No database")

    task = world(waits())
    task.try_(before("set", OUTCOME, fail))
    assert task.state == "awaiting_input", task.last.error
    assert [*entries(task, OUTCOME)] == ["1/0"]


def test_a_run_that_could_not_be_recorded_keeps_its_id(world):
    task = world(claims(wait_for_completion=True, claim_timeout=timedelta(seconds=5)))

    responses: list[int] = []

    def fail():
        raise RuntimeError("No database")

    task.try_(
        before("set", OUTCOME, lambda: responses.append(task.flow.reports("started"))),
        before("set", OUTCOME, fail, nth=None),
    )
    assert responses == [200]
    run = task.flow.runs[0].run_id
    assert task.state == "awaiting_input"
    assert task.xcoms["return_value"].get("run_id") == run


def test_an_end_that_comes_while_files_are_uploaded_is_seen_at_once(world):
    task = world(waits(files=FILES))
    task.try_(before("get", UPLOAD_KEY, "kill"))
    later(task, hours=2)
    task.try_(before("set", UPLOAD_KEY, lambda: task.flow.reports("success", result=1)))
    if task.state == "awaiting_input":
        left = task.rows.ti.trigger_timeout - datetime.now(UTC)
        assert left < timedelta(minutes=1)


def test_the_xcoms_of_another_run_are_replaced_also_after_the_end(world):
    task = world(waits())
    task.faults.add("twice")
    task.try_()
    assert task.flow.reports("started", 0, run_id=True) == 200
    named = task.xcoms["return_value"]["run_id"]
    if named == task.flow.runs[0].run_id:
        pytest.skip("the response named the first")
    assert task.flow.reports("failed", 0, run_id=True) == 200
    ended = task.try_()
    assert ended.error.run_id == task.flow.runs[0].run_id
    assert mentions(ended.log, OTHER_RUN, named)
    assert task.xcoms["return_value"].get("run_id") != named
    assert task.xcoms["_link_FlowRunLink"] == ""


def test_files_are_those_of_the_run_that_claims_after_the_upload(world):
    task = world(waits(files=FILES))
    task.faults.add("twice")
    task.try_()
    assert uploads(task) == 1
    named = task.xcoms["return_value"]["run_id"]
    claimer = next(run for run in task.flow.runs if run.run_id != named)
    assert task.flow.reports("started", claimer, run_id=True) == 200
    assert task.flow.reports("success", claimer, run_id=True) == 200
    task.try_()
    is_said = "files" in task.last.output.lower()
    assert task.state != "success" or uploads(task) == 2 or is_said


def test_a_broken_connection_does_not_take_back_what_was_pushed(world, monkeypatch):
    task = world(claims(wait_for_completion=True, claim_timeout=timedelta(seconds=5)))
    task.faults.add("drop_after")
    task.try_(before("get", RUN, lambda: task.flow.reports("started", run_id=True)))
    run = task.flow.runs[0].run_id
    assert task.xcoms["return_value"]["run_id"] == run
    broken(monkeypatch)
    task.try_()
    assert task.state == "awaiting_input"
    assert task.xcoms["return_value"].get("run_id") == run


def test_an_end_without_the_run_id_of_the_claim_leaves_a_trace(world):
    task = world(waits())
    task.try_()
    assert task.flow.reports("started", run_id=True) == 200
    before_ = dict(task.rows.entries)
    status = task.flow.reports("success", result=1)
    assert status == 200 or task.rows.entries != before_, status


@pytest.mark.parametrize("kind", ["get", "set"])
def test_a_probe_that_is_missed_once_fails_no_last_try(world, kind):
    """Any other read that finds nothing once does no harm."""
    task = world(claims(files=FILES, retries=1))
    task.try_(before("get", UPLOAD_KEY, "kill"))
    assert task.flow.reports("started", run_id=True) == 200
    task.try_(at(kind, PROBE, "lost"))
    run = task.flow.runs[0].run_id
    assert task.state == "success" or run in task.last.output, task.last.error


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (FIRST_OUTCOME, {"status": "started"}),
        (FIRST_OUTCOME, "text"),
        (report_key("{d}"), {"claim": "x"}),
        (FIRST_START, {"run": {"run_link": "x"}}),
    ],
)
def test_an_entry_that_a_person_has_damaged_is_named(world, key, value):
    task = world(waits(retries=1))
    task.try_()
    (start,) = entries(task, START).values()
    key = key.format(d=start["token_hash"])
    if isinstance(value, dict) and "run" in value:
        value = {**start, **value}
    task.rows.put(key, value)
    error = task.try_().error
    assert key in str(error), repr(error)


def test_the_last_try_does_not_promise_a_next_one(world, monkeypatch):
    task = world(waits(retries=0))
    task.try_()
    assert task.flow.reports("success") == 200
    broken(monkeypatch)
    error = str(task.try_().error)
    assert task.state == "failed"
    assert "next try" not in error, error
    assert task.flow.runs[0].run_id in error
    assert WAS_STARTED not in error, "it says it twice"


@pytest.mark.parametrize("becomes", ["as it was", "damaged", "gone"])
def test_each_earlier_start_in_doubt_is_mentioned_by_its_place(world, becomes):
    """What is stored of it is where it is, and what it says is read when it is shown."""
    task = struck(world, trigger(on_unknown_start="start_again"))
    task.faults.add("drop_after")
    task.try_()
    starts = entries(task, START)
    assert [start.get("earlier") for start in starts.values()] == [None, [[1, 0]]]
    if becomes == "damaged":
        task.rows.put(FIRST_START, {"at": 7})
    elif becomes == "gone":
        task.rows.store(None, "delete", FIRST_START)
    task.faults.add("drop_after")
    error = str(task.try_().error)
    assert mentions(error, "Before, try 1", ". try 2 (")
    assert mentions(error, "cannot be read") == (becomes != "as it was")
    assert triggers(task) == 3
