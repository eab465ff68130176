"""TriggerFlowBatchOperator against the local service: each input once, whatever fails, and all of it told."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections import Counter
from datetime import datetime

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from raw_server import response
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

from ..batches import Watched, counts, entries_of, rows, statuses, times_started
from ..starts import mentions

NOTHING = {"total": 0, "started": 0, "rejected": 0, "unknown": 0, "remaining": 0}

# What comes of a batch ------------------------------------------------------------------------------------


def test_runs_are_returned_in_the_order_of_the_batch(batch, service, monkeypatch):
    """16 threads need 16 connections at most."""
    connections = []
    create = socket.create_connection

    def count(*arguments, **named):
        connections.append(arguments)
        return create(*arguments, **named)

    monkeypatch.setattr(socket, "create_connection", count)
    items = batch(rows(100))
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    assert items == [
        {"index": n, "status": "started", "run_id": runs[n], "run_link": f"{service.url}/runs/{runs[n]}"}
        for n in range(100)
    ]
    assert len(connections) <= 16
    assert batch.context["ti"].xcoms["progress"] == {**NOTHING, "total": 100, "started": 100}


@pytest.mark.parametrize(("number", "arguments"), [(4, {}), (9, {"max_concurrency": 1})])
def test_no_more_runs_can_be_lost_than_are_sent_at_a_time(batch, service, log, number, arguments):
    batch(rows(number), **arguments)
    assert mentions(log(), "4 runs", "may have been started")


@pytest.mark.parametrize("output", [False, True])
def test_an_empty_batch_starts_nothing(batch, service, tmp_path, output):
    path = str(tmp_path / "output.jsonl")
    result = batch([], **({"output_path": path} if output else {}))
    assert result == ({"path": path, **NOTHING} if output else [])
    assert service.journal.requests() == []


@pytest.mark.parametrize(("max_concurrency", "in_flight"), [(2, 8), (8, 32)])
def test_nothing_outside_of_an_open_window_is_sent(batch, service, max_concurrency, in_flight):
    watched = []

    def store(inner):
        watched.append(Watched(inner, lambda: times_started(service)))
        return watched[0]

    batch(rows(80), store=store, max_concurrency=max_concurrency)
    (found,) = watched
    assert found.breaches == []
    assert found.most_unrecorded <= in_flight
    assert found.opened.keys() >= {"workflow_automation_batch_000000"}
    assert times_started(service) == Counter(range(80))


def test_a_rejected_item_does_not_stop_the_others(batch, service, tmp_path):
    for n in (3, 50):
        service.faults.add("reject", inputs={"n": n}, body="no such customer")
    with pytest.raises(RejectedError) as caught:
        batch(rows(60), output_path=str(tmp_path / "output.jsonl"))
    error = caught.value
    assert isinstance(error, AirflowFailException)
    assert error.accepted is Accepted.YES
    assert error.consequence == counts(60, started=58, rejected=2)
    told = [line for line in error.next_step.splitlines() if line.startswith("batch[")]
    assert [line.split(":")[0] for line in told] == ["batch[3]  rejected", "batch[50]  rejected"]
    assert "no such customer" in told[0]
    assert str(tmp_path / "output.jsonl") in error.next_step
    assert "in a batch of their own" in error.next_step
    items = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
    assert statuses(items) == {"started": 58, "rejected": 2}


def test_rejected_items_can_be_skipped(batch, service):
    service.faults.add("reject", inputs={"n": 1})
    items = batch(rows(3), on_rejected="skip", flow_id="demo-flow", max_concurrency=1)
    assert [item["status"] for item in items] == ["started", "rejected", "started"]
    assert "400 Bad Request" in items[1]["why"]
    assert items[2]["flow_id"] == "demo-flow"
    assert {run.by for run in service.runs} == {"path"}
    # The page of the runs reads the last entry only.
    entry = entries_of(batch.context["task_state_store"])[-1]
    assert (entry["conn_id"], entry["flow_id"]) == ("workflow_automation_default", "demo-flow")
    assert entry["counts"] == {**NOTHING, "total": 3, "started": 2, "rejected": 1}


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


@pytest.mark.parametrize(("fault", "status"), [("drop_after", "unknown"), ("garbage", "unidentified")])
def test_a_doubt_is_told_at_the_end(batch, service, tmp_path, fault, status):
    service.faults.add(fault, inputs={"n": 7})
    kind = OutcomeUnknownError if status == "unknown" else UnidentifiedError
    with pytest.raises(kind) as caught:
        batch(rows(30), output_path=str(tmp_path / "output.jsonl"))
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is (Accepted.MAYBE if status == "unknown" else Accepted.YES)
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
    with pytest.raises(OutcomeUnknownError) as caught:
        batch(rows(500), max_concurrency=4)
    assert isinstance(caught.value, AirflowFailException)
    assert 5 <= len(service.runs) <= 64


def test_doubts_here_and_there_do_not_end_it(batch, service):
    for n in range(0, 40, 2):
        service.faults.add("drop_after", inputs={"n": n})
    with pytest.raises(OutcomeUnknownError):
        batch(rows(40), max_concurrency=4)
    assert times_started(service) == Counter(range(40))


# Busy services, and limits ----------------------------------------------------------------------------------


def test_a_busy_service_is_waited_for_by_all(batch, service, log):
    service.faults.add("busy", retry_after="1", inputs={"n": 20})
    assert len(batch(rows(120), send_retry_timeout=30)) == 120
    assert times_started(service) == Counter(range(120))
    text = log()
    # Not by each thread.
    assert text.count("Retrying in") == text.count("Starting 120 runs of")
    at = [datetime.fromisoformat(request.at) for request in service.journal.requests()]
    gaps = [(late - early).total_seconds() for early, late in itertools.pairwise(at)]
    assert max(gaps) >= 0.9
    before = next(number for number, gap in enumerate(gaps, start=1) if gap >= 0.9)
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
        if number == 36:
            last_other.set()
        return response(f"r{number}")

    server = raw_server(respond)
    items = [{"late": 1}, *rows(40)]
    # 36 starts at this rate take longer than send_retry_timeout.
    found = batch(
        items,
        workflow_automation_conn_id="raw",
        send_retry_timeout=1,
        max_starts_per_second=30,
        max_concurrency=2,
    )
    assert statuses(found) == {"started": 41}


def test_a_retry_starts_the_rest(batch, service):
    fault = service.faults.add("busy", times=None, retry_after="30", inputs={"late": True})
    items = [*rows(20), *({"n": n, "late": True} for n in range(20, 60))]
    with pytest.raises(BusyError, match="30 s") as caught:
        batch(items)
    assert not isinstance(caught.value, AirflowFailException)
    assert "second run" not in caught.value.next_step
    assert caught.value.retry_after == 30
    fault.remaining = 0
    assert [item["status"] for item in batch(items, try_number=2)] == ["started"] * 60
    assert times_started(service) == Counter(range(60))


@pytest.mark.no_cover
def test_what_is_sent_again_is_spread_as_well(batch, service):
    for n in range(5):
        service.faults.add("busy", inputs={"n": n})
    items = batch(rows(10), max_starts_per_second=8, send_retry_timeout=60)
    assert statuses(items) == {"started": 10}
    at = [datetime.fromisoformat(request.at) for request in service.journal.requests()]
    assert len(at) == 15
    assert min((late - early).total_seconds() for early, late in itertools.pairwise(at[::2])) >= 0.15


SECRET = "the-customers-secret"


def test_neither_the_key_nor_inputs_show(batch, service, log, tmp_path):
    """Not even where the service echoes the key."""
    key = service.keys[0].value
    for n, status in ((1, 400), (2, 201), (3, 500)):
        service.faults.add("echo_key", status=status, inputs={"n": n})
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(10, password=SECRET), output_path=str(tmp_path / "output.jsonl"))
    shown = [str(caught.value), repr(caught.value), log(), (tmp_path / "output.jsonl").read_text()]
    shown.append(json.dumps(batch.context["task_state_store"]._entries))
    shown.append(json.dumps(batch.context["ti"].xcoms))
    for text in shown:
        assert key not in text
        assert SECRET not in text
