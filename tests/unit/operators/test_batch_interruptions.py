"""
A batch that is interrupted, by Airflow, its store or a full disk.

No run is started twice, or goes unmentioned.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from entry_keys import batch_key
from sentences import NOTHING_SENT
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    FileUnavailableError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

from ..batches import counts, entries_of, failing, rows, statuses, times_started
from ..starts import interrupted, mentions


def stated_runs(text):
    """Return the runs that the log names, by item."""
    return {int(n): run for n, run in re.findall(r"batch\[(\d+)\]: (\w+)", text)}


@pytest.mark.parametrize(("fail_at", "to_file"), [(2, True), (3, False)])
def test_a_store_that_fails_in_the_last_try_hides_no_run(
    batch, service, log, tmp_path, fail_at, to_file
):
    path = tmp_path / "output.jsonl"
    options = {"output_path": str(path)} if to_file else {}
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(100), before_set=failing(fail_at), retries=0, **options)
    error = caught.value
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    assert error.code is Code.BATCH_INTERRUPTED
    assert error.consequence == counts(100, started=len(runs))
    assert error.accepted is Accepted.YES

    if to_file:
        assert str(path) in error.next_step
        items = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(items) == 100
        assert runs_of(items) == runs
        return

    entries = entries_of(batch.context["task_state_store"])
    named = re.findall(r"workflow_automation_batch_(\d+)", str(error))
    assert [int(number) for number in named] == [0]
    recorded = {
        int(index): item["run_id"] for entry in entries for index, item in entry["results"].items()
    }
    assert {**recorded, **stated_runs(log())} == runs


def runs_of(items):
    """Return the runs that were started, by item."""
    return {item["index"]: item["run_id"] for item in items if item["status"] == "started"}


def in_world(**options):
    """Make an operator whose tries a world executes."""
    arguments = {
        "batch": rows(20),
        "max_concurrency": 1,
        "send_retry_timeout": 0,
        "retries": 3,
        **options,
    }
    return TriggerFlowBatchOperator(task_id="flow", **arguments)


def at_writes(acts):
    """Return what happens at each write, by its number."""
    writes = itertools.count()
    return lambda call: acts.get(next(writes)) if call.kind == "set" else None


@pytest.mark.parametrize("act", ["lost", "fail after"])
def test_a_store_that_fails_once_is_left_to_the_next_try(world, tmp_path, act):
    """What that write was to open was not sent, whether or not it took effect."""
    output = tmp_path / "output.jsonl"
    task = world(in_world(output_path=str(output)))
    error = task.try_(at_writes({1: act})).error
    assert not isinstance(error, AirflowFailException)
    assert error.consequence == counts(20, started=len(task.flow.runs))
    assert 0 < len(task.flow.runs) < 20
    assert not output.exists()
    assert task.try_().result["started"] == len(task.flow.runs) == 20


def test_a_write_that_airflow_repeats_late_undoes_no_later_one(world):
    """
    Its SDK repeats a request without a response.

    And the API server may carry out the first one last.
    """
    task = world(in_world())
    task.try_(at_writes({0: "slow", 1: "slow", 3: "kill"}))
    entries = dict(task.rows.entries)
    assert len(entries) == 3
    for late in task.late:
        late()
    assert task.rows.entries == entries


def test_the_last_write_of_a_killed_try_hides_nothing_however_late_it_is_carried_out(
    batch, service
):
    """Also where the next try has written by then, and is killed as well."""
    late: dict[str, Any] = {}

    def kill_at_second_write(key, value):
        if late or key == batch_key(1):
            late.setdefault(key, value)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batch(rows(8), max_concurrency=1, before_set=kill_at_second_write)
    opened: list[int] = []

    def kill_once_what_is_opened_was_sent(key, value):
        if opened:
            wait_for_runs(service, opened)
            raise KeyboardInterrupt
        opened.extend(map(int, value.get("opened", ())))

    with pytest.raises(KeyboardInterrupt):
        batch(
            rows(8), max_concurrency=1, try_number=2, before_set=kill_once_what_is_opened_was_sent
        )
    batch.store.entries.update(late)
    with pytest.raises(OutcomeUnknownError):
        batch(rows(8), max_concurrency=1, try_number=3)
    assert {*times_started(service).values()} == {1}


def wait_for_runs(service, items):
    until = time.monotonic() + 10
    while not times_started(service).keys() >= {*items}:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_that_airflow_has_given_up_sends_nothing_though_its_write_is_carried_out(
    batch, service
):
    """Its API server may have looked whose the task is just before that changed."""

    def give_up(key, _):
        if key == batch_key(1):
            with pytest.raises(OutcomeUnknownError):
                batch(rows(8), max_concurrency=1, try_number=2)
            batch.store.before_get = batch.store.lost.append  # as of another's task instance
            batch.store.before_set = refuse

    def refuse(*_):
        time.sleep(0.5)  # in which the threads go on
        raise RuntimeError

    with pytest.raises(WorkflowAutomationError, match="interrupted by RuntimeError: Airflow"):
        batch(rows(8), max_concurrency=1, before_set=give_up)
    assert times_started(service) == Counter(range(8))


def test_on_kill_stops_all_threads(batch, service):
    def kill_soon(task):
        def wait_and_kill():
            while len(service.journal.requests()) < 20:
                time.sleep(0.01)
            task.on_kill()

        threading.Thread(target=wait_and_kill, daemon=True).start()

    service.faults.add("delay", seconds=0.02, times=None)
    with pytest.raises(NotSentError):
        batch(rows(100), before=kill_soon)
    sent = len(service.journal.requests())
    assert sent < 100
    time.sleep(0.1)
    assert len(service.journal.requests()) == sent
    service.faults.clear()
    # What had been sent is recorded, and nothing is in doubt.
    assert statuses(batch(rows(100), try_number=2)) == {"started": 100}
    assert times_started(service) == Counter(range(100))


def test_on_kill_ends_a_wait_for_a_busy_service(batch, service):
    service.faults.add("busy", retry_after="40", times=None)

    began = time.monotonic()
    with pytest.raises(NotSentError):
        batch(
            rows(50),
            send_retry_timeout=60,
            before=lambda task: threading.Timer(0.3, task.on_kill).start(),
        )
    assert time.monotonic() - began < 30
    assert service.runs == []


def test_a_task_that_was_ended_before_sends_nothing(batch, service):
    with pytest.raises(NotSentError):
        batch(rows(5), before=lambda task: task.on_kill())
    assert service.journal.requests() == []


@pytest.mark.parametrize("has_store", [True, False])
def test_an_execution_timeout_says_where_the_runs_are(
    workflow_automation_context, service, log, has_store
):
    service.faults.add("delay", seconds=0.1, times=None)
    task = TriggerFlowBatchOperator(task_id="batch", batch=rows(200))
    context = workflow_automation_context(task)
    if not has_store:
        context.pop("task_state_store", None)
    with interrupted(1):
        task.execute(context)
    text = log()
    assert service.runs
    if has_store:
        assert counts(200, started=len(service.runs)) in text
        assert mentions(text, "workflow_automation_batch_000000")
    else:
        assert text.count("before Airflow 3.3") == text.count("Starting 200 runs") > 0
        assert stated_runs(text) == {run.inputs["n"]: run.run_id for run in service.runs}


def test_an_interruption_while_the_last_responses_are_awaited(batch, service, log):
    """After an error of Airflow, which leaves time for them."""
    service.faults.add("delay", seconds=8, inputs={"n": 3})
    with interrupted(1):
        batch(rows(30), before_set=failing(2), max_concurrency=2)
    text = log()
    assert mentions(text, "may have started", "batch[3]")
    assert len(service.runs) > 1
    assert stated_runs(text) == {3: "unknown"} | {
        run.inputs["n"]: run.run_id for run in service.runs
    }


def test_an_interruption_before_the_batch_is_read_counts_what_was_started(batch, service, log):
    service.faults.add("reject", status=401, inputs={"n": 3})
    with pytest.raises(RejectedError):
        batch(rows(5), max_concurrency=1)

    with pytest.raises(KeyboardInterrupt):
        batch(rows(5), try_number=2, before_set=Mock(side_effect=KeyboardInterrupt))
    assert counts(5, started=3) in log()


@pytest.mark.parametrize("is_last", [False, True])
def test_an_output_file_that_cannot_be_written_at_the_end(batch, service, tmp_path, log, is_last):
    """The next try writes it; after the last one, the log names what it would."""
    folder = tmp_path / "output"
    folder.mkdir()

    def lose_the_folder():
        while not service.journal.requests():
            time.sleep(0.001)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    options = {"output_path": str(folder / "output.jsonl"), "retries": 0 if is_last else 3}
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(
            rows(40), before=lambda _: threading.Thread(target=lose_the_folder).start(), **options
        )
    assert isinstance(caught.value, AirflowFailException) is is_last
    assert caught.value.consequence == counts(40, started=40)
    if is_last:
        assert stated_runs(log()) == {run.inputs["n"]: run.run_id for run in service.runs}
        return
    assert isinstance(caught.value, FileUnavailableError)
    assert "workflow_automation_batch_000000" in caught.value.next_step
    folder.mkdir()
    assert batch(rows(40), try_number=2, **options)["started"] == 40
    assert times_started(service) == Counter(range(40))


def test_an_output_file_that_no_retry_writes_is_in_the_log(batch, service, tmp_path, log):
    """A rejected item is final, also with retries left."""
    folder = tmp_path / "output"
    folder.mkdir()
    service.faults.add("reject", inputs={"n": 3})

    def lose_the_folder(_key, _entry):
        if service.journal.requests() and folder.exists():
            folder.rmdir()

    with pytest.raises(AirflowFailException):
        batch(
            rows(40),
            before_set=lose_the_folder,
            output_path=str(folder / "output.jsonl"),
            retries=3,
        )
    started = {run.inputs["n"]: run.run_id for run in service.runs}
    text = log()
    assert stated_runs(text).items() >= started.items()
    assert mentions(text, folder.name, "cannot be written")
    assert NOTHING_SENT not in text
