"""TriggerFlowBatchOperator against the local service: each input once, whatever fails, and all of it told."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from raw_server import Server, response
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.testing.context import has_state_store

from ..starts import TaskTimeout, interrupted

needs_store = pytest.mark.skipif(
    not has_state_store(), reason="Before Airflow 3.3 nothing outlives a try, so all is started again"
)


class Batches:
    """Execute batches, each as a try of a task does; ``task`` and ``context`` are those of the last one."""

    task: TriggerFlowBatchOperator
    context: Any

    def __init__(self, make_context):
        self._make_context = make_context

    def __call__(self, items, *, try_number=1, store=None, before=None, **arguments):
        options = {"send_retry_timeout": 0, "retries": 3, **arguments}
        self.task = TriggerFlowBatchOperator(task_id="batch", batch=items, **options)
        self.context = self._make_context(self.task, try_number=try_number)
        if store is not None:
            self.context["task_state_store"] = store(self.context["task_state_store"])
        if before:
            before(self.task)
        return self.task.execute(self.context)


@pytest.fixture
def batch(workflow_automation_context, workflow_automation_connection):
    return Batches(workflow_automation_context)


def rows(number, **more):
    return [{"n": n, **more} for n in range(number)]


def times_started(service):
    return Counter(run.inputs["n"] for run in service.runs)


def statuses(items):
    return Counter(item["status"] for item in items)


class Watched:
    """
    A task state store that looks at the service before each write.

    :param inner: the store
    :param runs: returns how often each item was started
    :param fail_at: the number of the write that fails, from 1
    """

    def __init__(self, inner, runs, fail_at=0, error=None):
        self.inner, self.runs, self.fail_at, self.error = inner, runs, fail_at, error
        self.writes = 0
        self.opened: dict[str, set[int]] = {}
        self.breaches: list[str] = []
        self.most_unrecorded = 0
        self.recorded: set[int] = set()

    def get(self, key, default=None):
        return self.inner.get(key, default)

    def delete(self, key):
        self.inner.delete(key)

    def set(self, key, value, *, retention=None):
        if key == "workflow_automation_probe":
            self.inner.set(key, value, retention=retention)
            return
        self.writes += 1
        time.sleep(0.02)  # as long as a write takes in Airflow, in which the threads go on
        started = set(self.runs())
        self.most_unrecorded = max(self.most_unrecorded, len(started - self.recorded))
        if not started <= set().union(*self.opened.values()):
            self.breaches.append(f"{started} of {self.opened}")
        if self.fail_at and self.writes >= self.fail_at:
            raise self.error
        self.inner.set(key, value, retention=retention)
        self.opened[key] = {n for first, last in value["opened"] for n in range(first, last + 1)}
        self.recorded |= {int(n) for n in value["results"]}


# What comes of a batch ------------------------------------------------------------------------------------


def test_runs_are_returned_in_the_order_of_the_batch(batch, service):
    items = batch(rows(100))
    runs = {run.inputs["n"]: run for run in service.runs}
    assert items == [
        {
            "index": n,
            "status": "started",
            "run_id": runs[n].run_id,
            "run_link": f"{service.url}/runs/{runs[n].run_id}",
        }
        for n in range(100)
    ]
    assert batch.context["ti"].xcoms["progress"] == {
        "total": 100,
        "started": 100,
        "rejected": 0,
        "unknown": 0,
        "remaining": 0,
    }


@pytest.mark.parametrize(("number", "arguments"), [(4, {}), (9, {"window_size": 4})])
def test_no_more_runs_can_be_lost_than_are_sent_at_a_time(batch, service, log, number, arguments):
    batch(rows(number), **arguments)
    assert "up to 4 runs may have been started" in log()


def test_the_flow_of_a_trigger_by_path_is_part_of_each_item(batch, service):
    assert batch(rows(2), flow_id="demo-flow")[1]["flow_id"] == "demo-flow"
    assert {run.by for run in service.runs} == {"path"}


@pytest.mark.parametrize("output", [False, True])
def test_an_empty_batch_starts_nothing(batch, service, tmp_path, output):
    path = str(tmp_path / "output.jsonl")
    counts = {"total": 0, "started": 0, "rejected": 0, "unknown": 0, "remaining": 0}
    result = batch([], **({"output_path": path} if output else {}))
    assert result == ({"path": path, **counts} if output else [])
    assert service.journal.requests() == []


def test_connections_are_kept(batch, service, monkeypatch):
    """16 threads need 16 connections at most."""
    connections = []
    create = socket.create_connection

    def count(*arguments, **named):
        connections.append(arguments)
        return create(*arguments, **named)

    monkeypatch.setattr(socket, "create_connection", count)
    batch(rows(300))
    assert len(service.runs) == 300
    assert len(connections) <= 16


@needs_store
@pytest.mark.parametrize(("window_size", "max_concurrency"), [(64, 16), (8, 16), (1, 4), (200, 16)])
def test_nothing_outside_of_an_open_window_is_sent(batch, service, window_size, max_concurrency):
    watched = []

    def store(inner):
        watched.append(Watched(inner, lambda: times_started(service)))
        return watched[0]

    batch(rows(120), store=store, window_size=window_size, max_concurrency=max_concurrency)
    (found,) = watched
    assert found.breaches == []
    assert found.most_unrecorded <= window_size
    assert found.opened.keys() >= {"workflow_automation_batch_0"}
    assert times_started(service) == Counter(range(120))


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("reject", "The service rejected 1 item."),
        ("drop_after", "It is unknown whether the run of 1 item was started."),
        ("garbage", "The run of 1 item was started, but its id is unknown."),
    ],
)
def test_one_item_is_told_in_the_singular(batch, service, fault, text):
    service.faults.add(fault, inputs={"n": 1})
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(3))
    assert str(caught.value).splitlines()[0] == text


def test_a_rejected_item_does_not_stop_the_others(batch, service, tmp_path):
    for n in (3, 50):
        service.faults.add("reject", inputs={"n": n}, body="no such customer")
    with pytest.raises(RejectedError, match=r"The service rejected 2 items\.") as caught:
        batch(rows(60), output_path=str(tmp_path / "output.jsonl"))
    error = caught.value
    assert isinstance(error, AirflowFailException)
    assert error.accepted is Accepted.YES
    text = str(error).splitlines()
    assert "Of 60 items: 58 started, 2 rejected, 0 unknown, 0 not started." in text
    told = [line for line in text if line.startswith("batch[")]
    assert [line.split(":")[0] for line in told] == ["batch[3]  rejected", "batch[50]  rejected"]
    assert "no such customer" in told[0]
    assert f"What became of each item is in {tmp_path / 'output.jsonl'}." in text
    assert "clearing the task starts all items again" in str(error)
    items = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
    assert statuses(items) == {"started": 58, "rejected": 2}


def test_rejected_items_can_be_skipped(batch, service):
    service.faults.add("reject", inputs={"n": 1})
    items = batch(rows(3), on_refused="skip")
    assert [item["status"] for item in items] == ["started", "rejected", "started"]
    assert "400 Bad Request" in items[1]["why"]


def test_the_table_is_cut_and_the_file_is_whole(batch, service, tmp_path):
    service.faults.add("reject", times=None, body="x" * 2000)
    with pytest.raises(RejectedError) as caught:
        batch(rows(100), output_path=str(tmp_path / "output.jsonl"))
    lines = str(caught.value).splitlines()
    assert len([line for line in lines if line.startswith("batch[")]) == 20
    assert "… and 80 more." in lines
    assert all(len(line) <= 160 for line in lines)
    assert caught.value.accepted is Accepted.NO
    assert len((tmp_path / "output.jsonl").read_text().splitlines()) == 100


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_rejection_that_is_not_the_items_own_stops_the_batch(batch, service, tmp_path, status):
    service.faults.add("reject", status=status, times=None, inputs={"late": True})
    with pytest.raises(RejectedError, match=str(status)) as caught:
        batch([*rows(40), *rows(500, late=True)], output_path=str(tmp_path / "output.jsonl"))
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.status == status
    assert len(service.journal.requests()) < 40 + 64
    items = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
    assert statuses(items)["started"] == len(service.runs) <= 40
    assert statuses(items)["not started"] == 540 - len(service.runs)
    assert str(status) in items[-1]["why"]


def test_a_key_without_runs_left(batch, service, workflow_automation_keys, monkeypatch):
    monkeypatch.setattr(type(service.keys[0]), "max_runs", 30, raising=False)
    object.__setattr__(service.keys[0], "max_runs", 30)
    try:
        with pytest.raises(RejectedError, match="403 Forbidden"):
            batch(rows(200))
    finally:
        object.__setattr__(service.keys[0], "max_runs", None)
    assert len(service.runs) == 30


@pytest.mark.parametrize(("fault", "status"), [("drop_after", "unknown"), ("garbage", "unidentified")])
def test_a_doubt_is_told_at_the_end(batch, service, tmp_path, fault, status):
    service.faults.add(fault, inputs={"n": 7})
    kind = OutcomeUnknownError if status == "unknown" else ResponseUnusableError
    with pytest.raises(kind) as caught:
        batch(rows(30), output_path=str(tmp_path / "output.jsonl"))
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is (Accepted.MAYBE if status == "unknown" else Accepted.YES)
    assert "Look in the workflow's list of runs." in str(caught.value).splitlines()
    assert f"batch[7]  {status}: " in str(caught.value)
    assert times_started(service) == Counter(range(30))


def test_a_response_without_run_id_is_kept(batch, service):
    service.faults.add("response", inputs={"n": 0}, body={"queued": True})
    service.faults.add("response", inputs={"n": 1}, body={"text": "x" * 5000})
    first, second, third = batch(rows(3))
    assert first == {"index": 0, "status": "started", "response": {"queued": True}}
    assert second["response"].startswith("(not kept: ")
    assert third["run_id"]


def test_a_service_that_loses_everything_ends_the_batch(batch, service):
    service.faults.add("status_after", status=502, times=None)
    with pytest.raises(OutcomeUnknownError, match="requests in a row were sent without a usable response"):
        batch(rows(500), max_concurrency=4)
    assert 5 <= len(service.runs) <= 64


@pytest.mark.parametrize("status", [200, 302])
def test_a_login_page_in_front_of_the_service_ends_the_batch(batch, service, status):
    service.faults.add("reject", status=status, times=None, body="<html>Log in")
    with pytest.raises(OutcomeUnknownError, match="requests in a row"):
        batch(rows(500), max_concurrency=4)
    assert len(service.journal.requests()) <= 64


def test_doubts_here_and_there_do_not_end_it(batch, service):
    for n in range(0, 100, 2):
        service.faults.add("drop_after", inputs={"n": n})
    with pytest.raises(OutcomeUnknownError, match="unknown whether runs of 50 items"):
        batch(rows(100), max_concurrency=4)
    assert times_started(service) == Counter(range(100))


def test_a_long_row_of_doubts_with_many_waiting_items_ends_the_batch(batch, service):
    """More items wait than Python allows nested calls."""
    service.faults.add("status_after", status=502, times=None)
    with pytest.raises(OutcomeUnknownError, match="requests in a row were sent without a usable response"):
        batch(rows(1000), max_concurrency=4, window_size=1000)


# Busy services, and limits ----------------------------------------------------------------------------------


def test_a_busy_service_is_waited_for_by_all(batch, service, log):
    service.faults.add("busy", retry_after="1", inputs={"n": 20})
    assert len(batch(rows(300), send_retry_timeout=30)) == 300
    assert times_started(service) == Counter(range(300))
    text = log()
    # Not by each thread.
    assert text.count("The batch continues in") == text.count("Starting 300 runs of")
    at = [datetime.fromisoformat(request.at) for request in service.journal.requests()]
    gaps = [(late - early).total_seconds() for early, late in itertools.pairwise(at)]
    before = gaps.index(max(gaps)) + 1
    assert max(gaps) >= 0.9
    # Besides those before the busy one, only what was under way was sent until the wait was over.
    assert before <= 21 + 2 * 16


def test_a_late_429_does_not_end_a_batch_in_which_others_get_through(batch, raw_server):
    """It comes later than the time for which the service may be busy."""
    others, has_been_busy = itertools.count(1), threading.Event()
    last_other = threading.Event()

    def respond(_):
        if b'"late"' in server.local.body and not has_been_busy.is_set():
            has_been_busy.set()
            last_other.wait(60)
            return b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
        number = next(others)
        if number == 40:
            last_other.set()
        return response(f"r{number}")

    server = raw_server(respond)
    items = [{"late": 1}, *rows(60)]
    # 40 starts at this rate take longer than send_retry_timeout.
    found = batch(
        items,
        workflow_automation_conn_id="raw",
        send_retry_timeout=2,
        max_starts_per_second=15,
        window_size=4,
    )
    assert statuses(found) == {"started": 61}


@pytest.mark.parametrize(("fault", "kind"), [("busy", BusyError), ("drop_before", OutcomeUnknownError)])
def test_a_service_that_stays_away(batch, service, fault, kind):
    service.faults.add(fault, times=None, inputs={"late": True})
    with pytest.raises(kind) as caught:
        batch([*rows(20), *rows(200, late=True)])
    assert times_started(service) <= Counter(range(20))
    assert isinstance(caught.value, AirflowFailException) == (kind is OutcomeUnknownError)


@needs_store
def test_a_retry_starts_the_rest(batch, service):
    fault = service.faults.add("busy", times=None, retry_after="30", inputs={"late": True})
    items = [*rows(20), *({"n": n, "late": True} for n in range(20, 120))]
    # Airflow 3.4 and later can wait without using a retry.
    told = r"^Airflow (retries this task in 30 s \(try 2 of 4\)|reschedules this task in 30 s, without using a retry)\.$"
    with pytest.raises(BusyError, match=f"(?m){told}") as caught:
        batch(items)
    text = str(caught.value)
    assert "may start a second run" not in text
    assert caught.value.retry_after == 30
    fault.remaining = 0
    assert [item["status"] for item in batch(items, try_number=2)] == ["started"] * 120
    assert times_started(service) == Counter(range(120))


def test_a_service_that_is_not_there(batch, service):
    service.stop()
    with pytest.raises(NotSentError) as caught:
        batch(rows(100))
    assert not isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is Accepted.NO


@pytest.mark.no_cover
def test_starts_per_second(batch, service):
    began = time.monotonic()
    batch(rows(21), max_starts_per_second=20)
    assert time.monotonic() - began >= 1.0


# Tries -------------------------------------------------------------------------------------------------------


@needs_store
def test_a_later_try_returns_what_is_recorded(batch, service, tmp_path):
    service.faults.add("reject", inputs={"n": 5})
    output = str(tmp_path / "output.jsonl")
    first = batch(rows(50), on_refused="skip", output_path=output)
    written = (tmp_path / "output.jsonl").read_bytes()
    service.stop()  # not even asked
    assert batch(rows(50), on_refused="skip", output_path=output, try_number=2) == first
    assert (tmp_path / "output.jsonl").read_bytes() == written
    assert len(service.runs) == 49


@needs_store
def test_a_clear_starts_all_anew(batch, service, log):
    batch(rows(10))
    store = batch.context["task_state_store"]
    batch.task = TriggerFlowBatchOperator(task_id="batch", batch=rows(10), retries=3)
    context = {**batch.context, "ti": type(batch.context["ti"])("batch", 2, max_tries=4)}
    assert context["task_state_store"] is store
    assert statuses(batch.task.execute(context)) == {"started": 10}
    assert times_started(service) == Counter(dict.fromkeys(range(10), 2))
    assert "The task has been cleared since an earlier try: starting all items again." in log()


@needs_store
@pytest.mark.parametrize("on_unknown_start", ["fail", "start_again"])
def test_what_a_killed_try_left_open(batch, service, on_unknown_start):
    """The process is gone: what it had opened and not recorded may have been sent."""
    killed = RuntimeError("Killed")

    def store(inner):
        return Watched(inner, lambda: times_started(service), fail_at=3, error=killed)

    with pytest.raises(WorkflowAutomationError, match="Killed"):
        batch(rows(200), store=store, window_size=16, max_concurrency=4)
    before = times_started(service)
    assert 0 < len(before) < 200
    if on_unknown_start == "fail":
        with pytest.raises(OutcomeUnknownError) as caught:
            batch(rows(200), try_number=2, on_unknown_start="fail")
        lost = [line for line in str(caught.value).splitlines() if line.startswith("batch[")]
        assert 0 < len(lost) <= 16
        assert all("Try 1 ended before its outcome was known" in line for line in lost)
        assert max(times_started(service).values()) == 1
        # And a third one says the same.
        with pytest.raises(OutcomeUnknownError) as again:
            batch(rows(200), try_number=3, on_unknown_start="fail")
        assert [line for line in str(again.value).splitlines() if line.startswith("batch[")] == lost
    else:
        items = batch(rows(200), try_number=2, on_unknown_start="start_again")
        assert statuses(items) == {"started": 200}
        assert times_started(service).keys() == {*range(200)}
        assert sum(times_started(service).values()) <= 200 + 16


@needs_store
def test_start_again_is_left_to_the_next_try(batch, service):
    service.faults.add("drop_after", inputs={"n": 3})
    with pytest.raises(OutcomeUnknownError, match="which may start a second run") as caught:
        batch(rows(20), on_unknown_start="start_again")
    assert not isinstance(caught.value, AirflowFailException)
    assert times_started(service)[3] == 1
    items = batch(rows(20), on_unknown_start="start_again", try_number=2)
    assert statuses(items) == {"started": 20}
    assert times_started(service)[3] == 2
    assert sum(times_started(service).values()) == 21


@needs_store
def test_a_404_for_the_record_starts_no_second_run(batch, service):
    first = batch(rows(5))

    def store(inner):
        inner.lost = ["workflow_automation_batch_0"]
        return inner

    assert batch(rows(5), try_number=2, store=store) == first
    assert times_started(service) == Counter(range(5))


@needs_store
@pytest.mark.parametrize("status", [400, 401, 429])
def test_a_doubt_stays_where_a_later_try_starts_no_run(batch, service, status):
    """Of the later try that is all; of the task it is not."""
    service.faults.add("drop_after", inputs={"n": 3})
    with pytest.raises(OutcomeUnknownError):
        batch(rows(5), on_unknown_start="start_again")
    service.faults.add("reject" if status < 429 else "busy", status=status, inputs={"n": 3})
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(5), on_unknown_start="start_again", try_number=2)
    assert "1 unknown, 0 not started." in str(caught.value)
    assert "batch[3]  unknown: POST" in str(caught.value)
    assert "was sent, but got no response" in str(caught.value)
    with pytest.raises(OutcomeUnknownError, match=r"It is unknown whether the run of 1 item was started\."):
        batch(rows(5), on_unknown_start="fail", try_number=3)
    assert times_started(service) == Counter(range(5))


@needs_store
def test_a_task_instance_that_belongs_to_another_process_stops_at_once(batch, service, log):
    gone = RuntimeError("This task instance belongs to another process")

    def store(inner):
        return Watched(inner, lambda: times_started(service), fail_at=4, error=gone)

    with pytest.raises(WorkflowAutomationError, match="belongs to another process"):
        batch(rows(1000), store=store, window_size=32, max_concurrency=8)
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


@needs_store
@pytest.mark.parametrize("to_file", [False, True])
@pytest.mark.parametrize("fail_at", [2, 5])
def test_a_store_that_fails_in_the_last_try_hides_no_run(batch, service, log, tmp_path, fail_at, to_file):
    def store(inner):
        error = RuntimeError("The store is gone")
        return Watched(inner, lambda: times_started(service), fail_at=fail_at, error=error)

    output = {"output_path": str(tmp_path / "output.jsonl")} if to_file else {}
    with pytest.raises(WorkflowAutomationError, match="The store is gone") as caught:
        batch(rows(400), store=store, retries=0, **output)
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    lines = str(caught.value).splitlines()
    assert (
        f"Of 400 items: {len(runs)} started, 0 rejected, 0 unknown, {400 - len(runs)} not started." in lines
    )
    assert "Airflow has no retries left for this task." in lines
    assert caught.value.accepted is Accepted.YES
    if to_file:
        assert f"What became of each item is in {tmp_path / 'output.jsonl'}." in lines
        items = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
        assert len(items) == 400
        assert {item["index"]: item["run_id"] for item in items if item["status"] == "started"} == runs
    else:
        (where,) = [line for line in lines if line.startswith("The runs are in the task's state store (")]
        assert where.endswith(" and in the log.")
        entries = batch.context["task_state_store"]
        recorded = {
            int(n): item["run_id"]
            for name in re.findall(r"workflow_automation_batch_\d+", where)
            for n, item in entries.get(name)["results"].items()
        }
        assert {**recorded, **stated_runs(log())} == runs


@needs_store
def test_a_store_that_fails_is_left_to_the_next_try(batch, service, tmp_path):
    def store(inner):
        error = RuntimeError("The store is gone")
        return Watched(inner, lambda: times_started(service), fail_at=4, error=error)

    output = tmp_path / "output.jsonl"
    with pytest.raises(WorkflowAutomationError, match=r"(?m)^Airflow retries this task") as caught:
        batch(rows(400), store=store, output_path=str(output))
    assert not isinstance(caught.value, AirflowFailException)
    assert f"Of 400 items: {len(service.runs)} started" in str(caught.value)
    assert output.read_text() == ""


@needs_store
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda items: items[7].update(n=77), r"batch\[7\] has other inputs than in try 1"),
        (lambda items: items.insert(2, {"n": 99}), r"batch\[2\] has other inputs than in try 1"),
        (lambda items: items.pop(), r"batch has 29 items, and batch\[29\], which try 1 sent, is missing"),
    ],
)
def test_a_batch_that_changed_is_an_error_that_names_the_item(batch, service, change, words):
    batch(rows(30))
    items = rows(30)
    change(items)
    with pytest.raises(InvalidRequestError, match=words) as caught:
        batch(items, try_number=2)
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is Accepted.YES
    assert str(caught.value).splitlines()[1:3] == [
        "Nothing was sent in this try.",
        "In earlier tries: 30 items started, 0 rejected, 0 unknown.",
    ]
    assert len(service.runs) == 30


@needs_store
def test_of_a_file_that_changed_the_line_is_named(batch, tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1}\n')
    batch(str(path))
    path.write_text('{"n": 0}\n\n{"n": 2}\n')
    words = rf"^batch\[1\] \(line 3 of '{path}'\) has other inputs than in try 1"
    with pytest.raises(InvalidRequestError, match=words):
        batch(str(path), try_number=2)


@needs_store
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"items": 5}, "batch is an int"),
        ({"items": "{{ a }}"}, "batch is "),
        ({"flow_id": "{{ a }}"}, "flow_id is "),
        ({"output_path": 5}, "output_path is an int"),
    ],
)
def test_a_wrong_argument_does_not_hide_what_earlier_tries_started(batch, service, change, words):
    batch(rows(3))
    with pytest.raises(InvalidRequestError, match=words) as caught:
        batch(**{"items": rows(3), **change}, try_number=2)
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is Accepted.YES
    lines = str(caught.value).splitlines()
    assert "In earlier tries: 3 items started, 0 rejected, 0 unknown." in lines
    assert "Fix the cause, then clear the task." not in lines
    assert len(service.runs) == 3


@needs_store
def test_the_file_of_the_batch_as_its_output_does_not_hide_it_either(batch, service, tmp_path):
    items = tmp_path / "items.jsonl"
    items.write_text('{"n": 0}\n{"n": 1}\n')
    batch(str(items))
    with pytest.raises(InvalidRequestError, match="the file of the batch") as caught:
        batch(str(items), output_path=str(items), try_number=2)
    assert caught.value.accepted is Accepted.YES
    assert "Of 2 items: 2 started, 0 rejected, 0 unknown, 0 not started." in str(caught.value)
    assert len(service.runs) == 2


@needs_store
def test_another_flow_is_a_change(batch, service):
    batch(rows(3))
    with pytest.raises(InvalidRequestError, match="or the flow_id changed"):
        batch(rows(3), flow_id="demo-flow", try_number=2)
    assert len(service.runs) == 3


@needs_store
def test_items_may_be_added_at_the_end(batch, service):
    batch(rows(3))
    assert len(batch(rows(5), try_number=2)) == 5
    assert times_started(service) == Counter(range(5))


@needs_store
def test_what_was_not_started_may_change(batch, service):
    service.faults.add("reject", status=401)
    with pytest.raises(RejectedError):
        batch([{"n": 1}])
    assert batch([{"n": 2}], try_number=2)[0]["status"] == "started"


@pytest.mark.parametrize("shorter", [False, True])
def test_a_file_that_changes_while_it_is_read(batch, service, tmp_path, shorter):
    """All items were checked, and not all were read again."""
    path = tmp_path / "batch.jsonl"

    def lines(letter):
        # Longer than the blocks in which a file is read.
        return "".join(f"{json.dumps(row)}\n" for row in rows(300, filling=letter * 2000))

    def change_soon(task):
        def wait_and_change():
            while not service.journal.requests():
                time.sleep(0.001)
            with path.open("r+") as file:
                if shorter:
                    file.truncate(lines("a").rindex("\n", 0, -1) + 1)
                else:
                    file.write(lines("b"))

        threading.Thread(target=wait_and_change, daemon=True).start()

    path.write_text(lines("a"))
    place = rf"^batch\[\d+\] \({'' if shorter else 'line [0-9]+ '}of '{path}'\)"
    with pytest.raises(InvalidRequestError, match=f"{place} changed while the batch was read") as caught:
        batch(str(path), before=change_soon, output_path=str(tmp_path / "output.jsonl"))
    left = 300 - len(service.runs)
    assert (
        f"Of 300 items: {len(service.runs)} started, 0 rejected, 0 unknown, {left} not started."
        in str(caught.value).splitlines()
    )
    items = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
    assert {item["run_id"] for item in items if item["status"] == "started"} == {
        run.run_id for run in service.runs
    }
    assert max(times_started(service).values()) == 1
    assert {run.inputs["filling"][0] for run in service.runs} == {"a"}


@needs_store
@pytest.mark.parametrize("seed", range(4))
def test_whatever_fails_no_input_is_sent_twice_and_each_is_accounted_for(batch, service, tmp_path, seed):
    chance = random.Random(seed)
    kinds = ["drop_before", "drop_after", "status_after", "reject", "busy", "garbage", "stale", "reset_after"]
    for n in range(300):
        if chance.random() < 0.1:
            service.faults.add(chance.choice(kinds), inputs={"n": n})
    output = tmp_path / "output.jsonl"
    for number in range(1, 5):
        fail_at = chance.randrange(2, 12) if number < 4 else 0
        error = chance.choice([RuntimeError("The store is gone"), TaskTimeout()])

        def store(inner, fail_at=fail_at, error=error):
            return Watched(getattr(inner, "inner", inner), lambda: times_started(service), fail_at, error)

        try:
            batch(
                rows(300),
                try_number=number,
                store=store,
                output_path=str(output),
                send_retry_timeout=20,
                window_size=chance.choice([5, 32]),
                request_timeout=10,
            )
        except TaskTimeout:
            assert number < 4
        except WorkflowAutomationError as raised:
            if "interrupted by" not in str(raised):
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


# When Airflow ends the task ---------------------------------------------------------------------------------


@needs_store
def test_on_kill_stops_all_threads(batch, service):
    def kill_soon(task):
        def wait_and_kill():
            while len(service.journal.requests()) < 100:
                time.sleep(0.001)
            task.on_kill()

        threading.Thread(target=wait_and_kill, daemon=True).start()

    service.faults.add("delay", seconds=0.02, times=None)
    with pytest.raises(NotSentError, match="The task was ended"):
        batch(rows(500), before=kill_soon)
    sent = len(service.journal.requests())
    assert sent < 500
    time.sleep(0.3)
    assert len(service.journal.requests()) == sent
    service.faults.clear()
    # What had been sent is recorded, and nothing is in doubt.
    assert statuses(batch(rows(500), try_number=2)) == {"started": 500}
    assert times_started(service) == Counter(range(500))


def test_on_kill_ends_a_wait_for_a_busy_service(batch, service):
    service.faults.add("busy", retry_after="40", times=None)

    def kill_soon(task):
        threading.Timer(1, task.on_kill).start()

    began = time.monotonic()
    with pytest.raises(NotSentError, match="The task was ended"):
        batch(rows(50), send_retry_timeout=60, before=kill_soon)
    assert time.monotonic() - began < 30
    assert service.runs == []


def test_a_task_that_was_ended_before_sends_nothing(batch, service):
    with pytest.raises(NotSentError, match="The task was ended"):
        batch(rows(5), before=lambda task: task.on_kill())
    assert service.journal.requests() == []


@needs_store
def test_an_execution_timeout_leaves_nothing_in_doubt_that_had_a_response(batch, service, log):
    service.faults.add("delay", seconds=0.1, times=None)
    before = signal.getsignal(signal.SIGALRM)
    with interrupted(1.0):
        batch(rows(500))
    assert signal.getsignal(signal.SIGALRM) is before
    assert f"Of 500 items: {len(service.runs)} started" in log()
    assert "The runs are in the task's state store (workflow_automation_batch_0" in log()
    assert 0 < len(service.runs) < 500
    service.faults.clear()
    assert statuses(batch(rows(500), try_number=2)) == {"started": 500}
    assert times_started(service) == Counter(range(500))


# Without a store, and secrets -------------------------------------------------------------------------------


def test_without_a_store_it_says_once_what_it_cannot_promise(service, log, context, request):
    request.getfixturevalue("workflow_automation_connection")
    task = TriggerFlowBatchOperator(task_id="trigger", batch=rows(100))
    items: Any = task.execute(context())
    text = log()
    assert text.count("does not persist across tries before Airflow 3.3") == text.count(
        "Starting 100 runs of"
    )
    # So the log names the runs.
    for item in items:
        assert f"batch[{item['index']}]: {item['run_id']}" in text


@needs_store
def test_an_interruption_while_the_last_responses_are_awaited(batch, service, log):
    """After an error of Airflow, which leaves time for them."""
    service.faults.add("delay", seconds=8, inputs={"n": 3})

    def store(inner):
        return Watched(
            inner, lambda: times_started(service), fail_at=2, error=RuntimeError("The store is gone")
        )

    with interrupted(3):
        batch(rows(30), store=store, window_size=8, max_concurrency=4)
    text = log()
    assert "These items have no response yet, and may have started runs: batch[3]" in text
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
    assert service.runs
    for run in service.runs:
        assert f"batch[{run.inputs['n']}]: {run.run_id}" in text


SECRET = "the-customers-secret"


def test_neither_the_key_nor_inputs_show(batch, service, log, tmp_path):
    """Not even where the service echoes the key."""
    key = service.keys[0].value
    for n, status in ((1, 400), (2, 201), (3, 500)):
        service.faults.add("echo_key", status=status, inputs={"n": n})
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(10, password=SECRET), output_path=str(tmp_path / "output.jsonl"))
    shown = [str(caught.value), repr(caught.value), log(), (tmp_path / "output.jsonl").read_text()]
    if has_state_store():
        shown.append(json.dumps(batch.context["task_state_store"]._entries))
    shown.append(json.dumps(batch.context["ti"].xcoms))
    for text in shown:
        assert key not in text
        assert SECRET not in text


# Arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": None}, "batch is None"),
        ({"flow_id": None}, "flow_id is None"),
        ({"max_concurrency": 0}, "max_concurrency is 0: expected a whole number from 1 to 256"),
        ({"max_concurrency": 257}, "max_concurrency is 257"),
        ({"window_size": 0}, "window_size is 0: expected a whole number from 1 to 1000"),
        ({"window_size": 1001}, "window_size is 1001"),
        ({"window_size": True}, "window_size is True"),
        ({"max_starts_per_second": 0}, "max_starts_per_second is 0"),
        ({"max_starts_per_second": float("inf")}, "max_starts_per_second is inf"),
        ({"on_unknown_start": "retry"}, "on_unknown_start 'retry' is not supported"),
        ({"on_refused": "ignore"}, "on_refused 'ignore' is not supported; expected 'fail' or 'skip'"),
        ({"request_timeout": 0}, "request_timeout is 0"),
        ({"send_retry_timeout": -1}, "send_retry_timeout is -1"),
    ],
)
def test_a_wrong_argument_is_an_error_of_the_dag_file(arguments, words):
    with pytest.raises(ValueError, match=words):
        TriggerFlowBatchOperator(**{"task_id": "batch", "batch": [], **arguments})


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"batch": [{"a": 1}, {"a": {1}}]}, InvalidRequestError, r"batch\[1\]\.a is a set"),
        ({"batch": 7}, InvalidRequestError, "batch is an int"),
        ({"batch": [{}], "flow_id": ""}, InvalidRequestError, "flow_id is ''"),
        ({"batch": [{}], "output_path": ""}, InvalidRequestError, "output_path is ''"),
        ({"batch": [{}], "output_path": 7}, InvalidRequestError, "output_path is an int"),
        (
            {"batch": [{}], "output_path": "/nowhere/output.jsonl"},
            InvalidRequestError,
            "(?s)'/nowhere/output.jsonl', which cannot be written: No such file.*Create its folder or bucket first",
        ),
        (
            {"batch": [{}], "output_path": "/"},
            InvalidRequestError,
            "output_path is '/', a folder: expected a file",
        ),
        (
            {"batch": [{}], "output_path": "/tmp"},
            InvalidRequestError,
            "output_path is '/tmp', .*: Is a directory",
        ),
        (
            {"batch": [{}], "output_path": "/etc/hosts/x"},
            InvalidRequestError,
            "cannot be written: Not a directory",
        ),
        (
            {"batch": [{}], "output_path": "nowhere://a/b"},
            InvalidRequestError,
            "output_path is 'nowhere://a/b'",
        ),
    ],
)
def test_a_wrong_value_is_named_before_anything_is_sent(batch, service, arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        batch(arguments.pop("batch"), **arguments)
    assert "Nothing was sent." in str(caught.value)
    assert service.journal.requests() == []


def test_a_pipe_or_a_device_is_named_before_anything_is_sent(batch, service, tmp_path):
    """Reading or writing a pipe would wait for ever, and a device must not be replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for items, output in (
        (str(pipe), None),
        (f"file://{pipe}", None),
        (rows(1), str(pipe)),
        (rows(1), os.devnull),
    ):
        with pytest.raises(InvalidRequestError, match="a pipe or a device: expected a regular file"):
            batch(items, output_path=output)
    assert service.journal.requests() == []


@pytest.fixture
def raw_server(monkeypatch):
    """Return what makes a server of which a test decides every byte, and the connection to it."""
    with contextlib.ExitStack() as stack:

        def make(respond):
            server = Server(respond)
            stack.callback(server.close)
            connection = {
                "conn_type": "workflow_automation",
                "host": server.url,
                "password": "a-key-of-the-tests",
            }
            monkeypatch.setenv("AIRFLOW_CONN_RAW", json.dumps(connection))
            return server

        yield make


def test_the_numbers_of_a_file_are_sent_as_written(batch, raw_server, tmp_path):
    path = tmp_path / "batch.jsonl"
    numbers = ["1234567890123456789.25", "1.10", "1E400", "-0", f"{'9' * 4000}", "0.1e-7"]
    server = raw_server(lambda _: response("7"))
    path.write_text(f'{{"ü \\" 1.50": [{", ".join(numbers)}], "b": "2.50  3"}}\n')
    assert batch(str(path), workflow_automation_conn_id="raw")[0]["status"] == "started"
    body = f'{{"inputs":{{"\\u00fc \\" 1.50":[{",".join(numbers)}],"b":"2.50  3"}}}}'
    assert server.bodies == [body.encode()]


@needs_store
def test_a_repeated_response_gives_no_item_the_run_of_another(batch, raw_server):
    runs, started, lock = itertools.count(), {}, threading.Lock()

    def respond(number):
        body = json.loads(server.local.body)
        with lock:
            run = started[body["inputs"]["n"]] = f"r{next(runs)}"
        if number == 3 and hasattr(server.local, "last"):
            yield response(server.local.last)  # a second time, once the next request is there
        server.local.last = run
        yield response(run)

    server = raw_server(respond)
    with pytest.raises(OutcomeUnknownError, match="It is unknown whether"):
        batch(rows(100), workflow_automation_conn_id="raw", max_concurrency=4)
    entry = batch.context["task_state_store"].get("workflow_automation_batch_0")
    known = {int(n): item["run_id"] for n, item in entry["results"].items() if "run_id" in item}
    assert 50 < len(known) < 100
    assert known.items() <= started.items()
    assert len(started) == 100


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


@needs_store
def test_an_output_file_that_cannot_be_written_at_the_end_is_written_by_the_next_try(
    batch, service, tmp_path
):
    folder = tmp_path / "output"
    folder.mkdir()
    with pytest.raises(FileUnavailableError, match=r"(?m)^Airflow retries this task") as caught:
        batch(rows(100), output_path=str(folder / "output.jsonl"), before=losing(service, folder))
    assert "Of 100 items: 100 started, 0 rejected, 0 unknown, 0 not started." in str(caught.value)
    assert "The runs are in the task's state store (workflow_automation_batch_0" in str(caught.value)
    folder.mkdir()
    summary = batch(rows(100), output_path=str(folder / "output.jsonl"), try_number=2)
    assert summary["started"] == 100
    assert times_started(service) == Counter(range(100))


def test_after_the_last_try_the_log_names_what_the_output_file_would(batch, service, tmp_path, log):
    folder = tmp_path / "output"
    folder.mkdir()
    with pytest.raises(WorkflowAutomationError, match="The log names the runs") as caught:
        batch(rows(20), output_path=str(folder / "output.jsonl"), before=losing(service, folder), retries=0)
    assert isinstance(caught.value, AirflowFailException)
    text = log()
    for run in service.runs:
        assert f"batch[{run.inputs['n']}]: {run.run_id}" in text


@pytest.mark.parametrize("output", ["./batch.jsonl", "hard", "soft"])
@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
@pytest.mark.parametrize("batch_scheme", ["", "local://"])
def test_the_file_of_the_batch_is_not_written_over(batch, service, tmp_path, scheme, batch_scheme, output):
    path = tmp_path / "batch.jsonl"
    path.write_text('{"n": 1}\n')
    (tmp_path / "hard").hardlink_to(path)
    (tmp_path / "soft").symlink_to(path)
    with pytest.raises(InvalidRequestError, match="the file of the batch: expected another file"):
        batch(f"{batch_scheme}{path}", output_path=f"{scheme}{tmp_path}/{output}")
    assert path.read_text() == '{"n": 1}\n'
    assert service.journal.requests() == []


@needs_store
def test_an_error_before_anything_is_sent_leaves_the_output_file_as_it_is(batch, service, tmp_path):
    path = tmp_path / "output.jsonl"
    batch(rows(3), output_path=str(path))
    written = path.read_text()
    with pytest.raises(InvalidRequestError, match=r"batch\[0\] has other inputs"):
        batch([{"n": "another"}], output_path=str(path), try_number=2)
    assert path.read_text() == written


def test_a_batch_inside_a_task(workflow_automation_context, service):
    context = workflow_automation_context(TriggerFlowBatchOperator(task_id="outer", batch=[]))
    with pytest.raises(InvalidRequestError, match="is executed inside the task 'outer'") as caught:
        TriggerFlowBatchOperator(task_id="ada", batch=[{"n": 1}]).execute(context)
    assert "trigger_flow_once" in caught.value.next_step
    assert service.journal.requests() == []
