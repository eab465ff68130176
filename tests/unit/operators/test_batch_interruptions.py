"""A batch that is interrupted, by Airflow, its store or a full disk: no run is sent twice, or goes unmentioned."""

from __future__ import annotations

import json
import random
import re
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    FileUnavailableError,
    NotSentError,
    WorkflowAutomationError,
)
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

from ..batches import Watched, counts, entries_of, failing, rows, statuses, times_started
from ..starts import TaskTimeout, interrupted, mentions


def test_a_task_instance_that_belongs_to_another_process_stops_at_once(batch, service, log):
    store = failing(service, 4, "another process")
    with pytest.raises(WorkflowAutomationError, match="another process"):
        batch(rows(1000), store=store, max_concurrency=8)
    started = times_started(service)
    time.sleep(0.3)
    assert times_started(service) == started
    found = batch.context["task_state_store"]
    assert len(started) <= len(set().union(*found.opened.values()))
    # What could not be recorded is in the log.
    text = log()
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    for n in set(started) - found.recorded:
        assert f"batch[{n}]: {runs[n]}" in text


def stated_runs(text):
    """Return the runs that the log names, by item."""
    return {int(n): run for n, run in re.findall(r"batch\[(\d+)\]: (\w+)", text)}


@pytest.mark.parametrize(("fail_at", "to_file"), [(2, True), (5, False)])
def test_a_store_that_fails_in_the_last_try_hides_no_run(batch, service, log, tmp_path, fail_at, to_file):
    output = {"output_path": str(tmp_path / "output.jsonl")} if to_file else {}
    with pytest.raises(WorkflowAutomationError, match="The store is gone") as caught:
        batch(rows(250), store=failing(service, fail_at), retries=0, **output)
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    assert caught.value.consequence == counts(250, started=len(runs))
    assert caught.value.accepted is Accepted.YES
    if to_file:
        assert str(tmp_path / "output.jsonl") in caught.value.next_step
        items = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
        assert len(items) == 250
        assert {item["index"]: item["run_id"] for item in items if item["status"] == "started"} == runs
    else:
        (where,) = [line for line in str(caught.value).splitlines() if "workflow_automation_batch_" in line]
        assert "the log" in where
        entries = entries_of(batch.context["task_state_store"])
        named = {0, len(entries) - 1}
        assert re.findall(r"workflow_automation_batch_(\d+)", where) == [f"{n:06}" for n in sorted(named)]
        recorded = {int(n): item["run_id"] for entry in entries for n, item in entry["results"].items()}
        assert {**recorded, **stated_runs(log())} == runs


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_store_that_fails_once_is_left_to_the_next_try(batch, service, tmp_path, is_durable):
    """What that write was to open was not sent, whether or not it took effect."""

    class FailsOnce(Watched):
        def set(self, key, value, *, retention=None):
            if is_durable or self.writes != 1:
                super().set(key, value, retention=retention)
            else:
                self.writes += 1
            if self.writes == 2 and not self.error:
                self.error = RuntimeError("The store is gone")
                raise self.error

    output = tmp_path / "output.jsonl"
    with pytest.raises(WorkflowAutomationError, match="The store is gone") as caught:
        batch(
            rows(50),
            store=lambda inner: FailsOnce(inner, lambda: times_started(service)),
            max_concurrency=2,
            output_path=str(output),
        )
    assert not isinstance(caught.value, AirflowFailException)
    assert caught.value.consequence == counts(50, started=len(service.runs))
    assert not output.exists()
    assert len(service.runs) < 50
    assert batch(rows(50), try_number=2, output_path=str(output))["started"] == 50
    assert times_started(service) == Counter(range(50))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_fails_no_input_is_sent_twice_and_each_is_accounted_for(batch, service, tmp_path, seed):
    chance = random.Random(seed)
    kinds = ["drop_before", "drop_after", "status_after", "reject", "busy", "garbage", "stale", "reset_after"]
    for n in range(60):
        if chance.random() < 0.2:
            service.faults.add(chance.choice(kinds), inputs={"n": n})
    output = tmp_path / "output.jsonl"
    for number in range(1, 5):
        fail_at = chance.randrange(2, 12) if number < 4 else 0
        error = chance.choice([RuntimeError("The store is gone"), TaskTimeout()])

        def store(inner, fail_at=fail_at, error=error):
            return Watched(getattr(inner, "inner", inner), lambda: times_started(service), fail_at, error)

        try:
            batch(
                rows(60),
                try_number=number,
                store=store,
                output_path=str(output),
                send_retry_timeout=20,
                max_concurrency=chance.choice([1, 8]),
            )
        except TaskTimeout:
            assert number < 4
        except WorkflowAutomationError as raised:
            if raised.code != "batch-interrupted":
                break
            assert number < 4
    started = times_started(service)
    assert max(started.values()) == 1
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    for item in map(json.loads, output.read_text().splitlines()):
        match item["status"]:
            case "started":
                assert item["run_id"] == runs[item["index"]]
            case "rejected" | "not started":
                assert item["index"] not in runs
            case "unidentified":
                assert item["index"] in runs


def test_on_kill_stops_all_threads(batch, service):
    def kill_soon(task):
        def wait_and_kill():
            while len(service.journal.requests()) < 40:
                time.sleep(0.01)
            task.on_kill()

        threading.Thread(target=wait_and_kill, daemon=True).start()

    service.faults.add("delay", seconds=0.02, times=None)
    with pytest.raises(NotSentError):
        batch(rows(200), before=kill_soon)
    sent = len(service.journal.requests())
    assert sent < 200
    time.sleep(0.3)
    assert len(service.journal.requests()) == sent
    service.faults.clear()
    # What had been sent is recorded, and nothing is in doubt.
    assert statuses(batch(rows(200), try_number=2)) == {"started": 200}
    assert times_started(service) == Counter(range(200))


def test_on_kill_ends_a_wait_for_a_busy_service(batch, service):
    service.faults.add("busy", retry_after="40", times=None)

    def kill_soon(task):
        threading.Timer(1, task.on_kill).start()

    began = time.monotonic()
    with pytest.raises(NotSentError):
        batch(rows(50), send_retry_timeout=60, before=kill_soon)
    assert time.monotonic() - began < 30
    assert service.runs == []


def test_a_task_that_was_ended_before_sends_nothing(batch, service):
    with pytest.raises(NotSentError):
        batch(rows(5), before=lambda task: task.on_kill())
    assert service.journal.requests() == []


def test_an_execution_timeout_leaves_nothing_in_doubt_that_had_a_response(batch, service, log):
    service.faults.add("delay", seconds=0.2, times=None)
    before = signal.getsignal(signal.SIGALRM)
    with interrupted(1.0):
        batch(rows(200))
    assert signal.getsignal(signal.SIGALRM) is before
    text = log()
    assert counts(200, started=len(service.runs)) in text
    assert mentions(text, "state store", "workflow_automation_batch_000000")
    assert 0 < len(service.runs) < 200
    service.faults.clear()
    assert statuses(batch(rows(200), try_number=2)) == {"started": 200}
    assert times_started(service) == Counter(range(200))


def test_an_interruption_while_the_last_responses_are_awaited(batch, service, log):
    """After an error of Airflow, which leaves time for them."""
    service.faults.add("delay", seconds=8, inputs={"n": 3})
    with interrupted(2):
        batch(rows(30), store=failing(service, 2), max_concurrency=2)
    text = log()
    assert mentions(text, "no response", "may have started", "batch[3]")
    assert len(service.runs) > 1
    for run in service.runs:
        if run.inputs["n"] != 3:
            assert f"batch[{run.inputs['n']}]: {run.run_id}" in text


def test_without_a_store_the_log_names_what_an_interrupted_try_started(
    workflow_automation_context, workflow_automation_connection, service, log
):
    service.faults.add("delay", seconds=0.1, times=None)
    task = TriggerFlowBatchOperator(task_id="batch", batch=rows(500))
    context = workflow_automation_context(task)
    context.pop("task_state_store", None)
    with interrupted(1.0):
        task.execute(context)
    text = log()
    assert text.count("before Airflow 3.3") == text.count("Starting 500 runs") > 0
    assert service.runs
    for run in service.runs:
        assert f"batch[{run.inputs['n']}]: {run.run_id}" in text


def losing(service, folder):
    """Return what removes a folder once something was sent."""

    def lose_the_folder(task):
        def wait_and_lose():
            while not service.journal.requests():
                time.sleep(0.001)
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()

        threading.Thread(target=wait_and_lose, daemon=True).start()

    return lose_the_folder


def test_an_output_file_that_cannot_be_written_at_the_end_is_written_by_the_next_try(
    batch, service, tmp_path
):
    folder = tmp_path / "output"
    folder.mkdir()
    with pytest.raises(FileUnavailableError) as caught:
        batch(rows(100), output_path=str(folder / "output.jsonl"), before=losing(service, folder))
    assert caught.value.consequence == counts(100, started=100)
    assert "workflow_automation_batch_000000" in caught.value.next_step
    folder.mkdir()
    summary = batch(rows(100), output_path=str(folder / "output.jsonl"), try_number=2)
    assert summary["started"] == 100
    assert times_started(service) == Counter(range(100))


def test_after_the_last_try_the_log_names_what_the_output_file_would(batch, service, tmp_path, log):
    folder = tmp_path / "output"
    folder.mkdir()
    with pytest.raises(WorkflowAutomationError, match="The log") as caught:
        batch(rows(20), output_path=str(folder / "output.jsonl"), before=losing(service, folder), retries=0)
    assert isinstance(caught.value, AirflowFailException)
    text = log()
    for run in service.runs:
        assert f"batch[{run.inputs['n']}]: {run.run_id}" in text


def test_a_write_that_airflow_repeats_late_undoes_no_later_one(batch, service, monkeypatch):
    """Its SDK repeats a request without a response, and the API server may carry out the first one last."""
    monkeypatch.setenv("AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MIN", "0.2")

    class Repeats(Watched):
        late: tuple[str, Any]

        def set(self, key, value, *, retention=None):
            if self.writes == 2 and "_probe" not in key:
                self.inner.set(*self.late)
                self.fail_at = 1  # killed
            super().set(key, value, retention=retention)
            if self.writes == 1:
                self.late = key, value
                time.sleep(0.2)

    error = RuntimeError("killed")
    with pytest.raises(WorkflowAutomationError):
        batch(rows(50), store=lambda inner: Repeats(inner, dict, error=error), max_concurrency=2)
    assert len(service.runs) > 8
    with pytest.raises(WorkflowAutomationError):
        batch(rows(50), try_number=2)
    assert max(times_started(service).values()) == 1
