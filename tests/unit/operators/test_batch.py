"""
TriggerFlowBatchOperator against the local service.

Each item is started once, whatever fails, and each is in the result.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections import Counter
from datetime import datetime

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from batch_counts import batch_counts
from raw_server import response
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    InvalidRequestError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

from ..batches import OpenWindows, counts, entries_of, rows, statuses, times_started
from ..starts import mentions

NOTHING = batch_counts(0)

# Results --------------------------------------------------------------------------------------------------


def test_runs_are_returned_in_the_order_of_the_batch(batch, service, monkeypatch):
    """Each request has a connection of its own: the service may close one that is kept."""
    connections = []
    create = socket.create_connection

    def count(*arguments, **named):
        connections.append(arguments)
        return create(*arguments, **named)

    monkeypatch.setattr(socket, "create_connection", count)
    items = batch(rows(50))
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    assert items == [
        {
            "index": n,
            "status": "started",
            "run_id": runs[n],
            "run_link": f"{service.url}/runs/{runs[n]}",
        }
        for n in range(50)
    ]
    assert len(connections) == 50
    assert batch.context["ti"].xcoms["progress"] == {**NOTHING, "total": 50, "started": 50}


@pytest.mark.parametrize(("number", "arguments"), [(4, {}), (9, {"max_concurrency": 1})])
def test_the_log_says_how_many_runs_a_kill_may_lose(batch, service, log, number, arguments):
    batch(rows(number), **arguments)
    assert mentions(log(), "killed", "4 runs")


@pytest.mark.parametrize("output", [False, True])
def test_an_empty_batch_starts_nothing(batch, service, tmp_path, output):
    path = str(tmp_path / "output.jsonl")
    result = batch([], **({"output_path": path} if output else {}))
    assert result == ({"path": path, **NOTHING} if output else [])
    assert service.journal.requests() == []


def test_nothing_is_sent_that_no_write_has_opened(batch, service):
    found = OpenWindows(service)
    batch(rows(40), before_set=found, max_concurrency=2)
    assert found.breaches == []
    assert found.most_unrecorded <= 8
    assert found.opened.keys() >= {"workflow_automation_batch_000000"}
    assert times_started(service) == Counter(range(40))


@pytest.mark.parametrize(
    ("fault", "kind", "status", "number", "others"),
    [
        ("reject", RejectedError, "rejected", 2, 20),
        ("reject", RejectedError, "rejected", 30, 1),
        ("drop_after", OutcomeUnknownError, "unknown", 15, 15),
        ("garbage", UnidentifiedError, "unidentified", 15, 15),
    ],
)
def test_failed_items_are_listed_and_stop_no_others(
    batch, service, tmp_path, fault, kind, status, number, others
):
    """The table is cut, and the file is whole."""
    output = tmp_path / "output.jsonl"
    total = number + others
    is_rejected = status == "rejected"
    body = {"body": "no such customer " * 99} if is_rejected else {}
    for n in range(number):
        service.faults.add(fault, inputs={"n": n}, **body)

    with pytest.raises(kind) as caught:
        batch(rows(total), output_path=str(output))
    error = caught.value
    assert isinstance(caught.value, AirflowFailException)
    assert error.accepted is (Accepted.MAYBE if status == "unknown" else Accepted.YES)
    assert error.consequence == counts(total, started=others, **{status: number})

    lines = str(error).splitlines()
    table = [line for line in lines if line.startswith("batch[")]
    assert [line.split(":")[0] for line in table] == [
        f"batch[{n}]  {status}" for n in range(min(number, 20))
    ]
    assert all(len(line) <= 160 for line in table)
    assert all("no such customer" in line for line in table) is is_rejected
    assert ("… and 10 more." in lines) is (number == 30)

    assert str(output) in error.next_step
    items = [json.loads(line) for line in output.read_text().splitlines()]
    assert statuses(items) == {"started": others, status: number}
    times = times_started(service)
    assert len(times) == (others if is_rejected else total)
    assert set(times.values()) == {1}


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


def test_where_the_results_are_is_recorded(batch, tmp_path):
    """For the tab of the task."""
    output = str(tmp_path / "output.jsonl")
    batch(rows(1), output_path=output)
    entries = entries_of(batch.context["task_state_store"])
    assert {entry["output_path"] for entry in entries} == {output}
    batch(rows(1))
    assert all(
        "output_path" not in entry for entry in entries_of(batch.context["task_state_store"])
    )


def test_the_flow_of_the_connection_is_recorded(batch, workflow_automation_connect):
    workflow_automation_connect(extra={"flow_id": "of-the-connection"})
    batch(rows(1))
    assert entries_of(batch.context["task_state_store"])[-1]["flow_id"] == "of-the-connection"


def test_a_batch_that_loses_items_while_they_are_sent_fails(batch, service):
    items = rows(9)

    def lose_the_last(*_):
        del items[8:]

    with pytest.raises(InvalidRequestError, match=r"batch\[8\] changed"):
        batch(items, max_concurrency=1, before_set=lose_the_last)
    assert {*times_started(service).values()} == {1}


def test_a_file_that_grows_while_it_is_sent_fails(batch, service, tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(9)))

    def add_one(*_):
        with path.open("a") as file:
            file.write('{"n": 9}\n')

    with pytest.raises(InvalidRequestError, match=r"batch\[9\] .*changed"):
        batch(str(path), max_concurrency=1, before_set=add_one)
    assert {*times_started(service)} <= {*range(9)}


def test_a_response_without_run_id_is_kept(batch, service):
    service.faults.add("response", inputs={"n": 0}, body={"queued": True})
    service.faults.add("response", inputs={"n": 1}, body={"text": "x" * 5000})
    longest = {"text": "x" * (2000 - len('{"text": ""}'))}
    service.faults.add("response", inputs={"n": 3}, body=longest)
    first, second, third, fourth = batch(rows(4))
    assert first == {"index": 0, "status": "started", "response": {"queued": True}}
    assert second["response"].startswith('{"text": "xxx')
    assert len(second["response"]) < 5000
    assert third["run_id"]
    assert fourth["response"] == longest


def test_an_entry_with_long_keys_stays_within_the_limit_of_airflow(batch, service):
    items = [{"n": n, "customer": f"{n:03}{'🙂' * 97}"} for n in range(300)]
    found = batch(items, key="customer", max_concurrency=64)
    assert statuses(found) == {"started": 300}
    entries = entries_of(batch.store)
    assert max(len(json.dumps(entry)) for entry in entries) < 64 * 1024
    keys = {int(index): key for entry in entries for index, key in entry.get("keys", {}).items()}
    assert keys == {n: item["customer"] for n, item in enumerate(items)}


def test_the_key_of_an_item_is_in_result_output_and_table(batch, service, log, tmp_path):
    """Whatever became of it; one that holds the API key is not shown."""
    secret = service.keys[0].value
    items = [{"n": n, "customer": f"C-{n}"} for n in range(5)]
    items[4]["customer"] = f"C-{secret}"
    arguments = {"key": "customer", "max_concurrency": 1, "on_rejected": "skip"}

    service.faults.add("reject", inputs={"n": 1})
    found = batch(items, **arguments)
    shown = ["C-0", "C-1", "C-2", "C-3"]
    assert [item["key"] for item in found[:4]] == shown
    assert secret not in f"{found}{entries_of(batch.context['task_state_store'])}"

    service.faults.add("drop_after", inputs={"n": 2})
    service.faults.add("reject", status=401, inputs={"n": 3})
    output = tmp_path / "output.jsonl"
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(items, output_path=str(output), **arguments)
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert [item["key"] for item in written[:4]] == shown
    assert [item["status"] for item in written[2:]] == ["unknown", "not started", "not started"]
    assert mentions(caught.value.next_step, "batch[2] (C-2)", "unknown")
    assert secret not in f"{caught.value}{log()}{output.read_text()}"

    # Nor are the keys lost where the batch cannot be read in a later try.
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(5, try_number=2, **arguments)
    assert mentions(caught.value.next_step, "batch[2] (C-2)", "unknown")


def test_unknown_outcomes_in_a_row_end_the_batch(batch, service):
    service.faults.add("status_after", status=502, times=None)
    with pytest.raises(OutcomeUnknownError) as caught:
        batch(rows(100), max_concurrency=4)
    assert "502" in caught.value.reason
    assert 5 <= len(service.runs) <= 64


@pytest.mark.parametrize(
    ("faults", "number"),
    [
        ({1: "drop_after", 2: "drop_after"}, 3),
        ({1: "drop_after", 2: "garbage"}, 3),
        ({1: 403, 2: 403}, 3),
        ({1: "drop_after", 2: 403}, 3),
        ({0: "drop_after", 2: "drop_after", 4: 403}, 6),
        ({0: "drop_after", 1: 400, 2: "drop_after"}, 6),
        ({0: 400, 1: 400, 2: 400}, 6),
    ],
)
def test_as_many_may_fail_in_a_row_as_are_sent_at_a_time(batch, service, faults, number):
    for n, fault in faults.items():
        if isinstance(fault, int):
            service.faults.add("reject", status=fault, inputs={"n": n})
        else:
            service.faults.add(fault, inputs={"n": n})
    with pytest.raises(WorkflowAutomationError):
        batch(rows(6), max_concurrency=1)
    assert len(service.journal.requests()) == number


def test_a_batch_whose_items_are_all_forbidden_fails_though_rejected_ones_are_skipped(
    batch, service
):
    """The key may be meant, not the items."""
    service.faults.add("reject", status=403, inputs={"n": 0}, times=2)
    items = batch(rows(2), on_rejected="skip")
    assert statuses(items) == {"rejected": 1, "started": 1}
    with pytest.raises(RejectedError):
        batch(rows(1), on_rejected="skip")


# Busy services, and limits ------------------------------------------------------------------------


BUSY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"


def test_a_busy_service_is_waited_for(batch, raw_server, log):
    numbers, together = itertools.count(), threading.Barrier(4)

    def respond(_):
        number = next(numbers)
        if number >= 4:
            return response(f"r{number}")
        together.wait(30)
        return BUSY

    raw_server(respond)
    found = batch(
        rows(12), workflow_automation_conn_id="raw", send_retry_timeout=60, max_concurrency=4
    )
    assert statuses(found) == {"started": 12}
    # Not by each thread.
    text = log()
    assert text.count("Retrying in") == text.count("Starting 12 runs of")


def test_a_service_that_closes_connections_unannounced_leaves_no_doubt(batch, service):
    service.faults.add("stale", times=None)
    assert statuses(batch(rows(64))) == {"started": 64}
    assert times_started(service) == Counter(range(64))


def test_an_item_that_is_always_busy_gives_up_alone(batch, raw_server):
    """Nor do the others wait until it does."""
    numbers = itertools.count()
    is_of_it: list[bool] = []

    def respond(_):
        is_busy = b'"always"' in server.local.body
        is_of_it.append(is_busy)
        # So that the others are sent by then, and wait with it.
        time.sleep(0.02)
        return BUSY if is_busy else response(f"r{next(numbers)}")

    server = raw_server(respond)
    items = [{"always": 1}, *rows(5_000)]
    options = {"send_retry_timeout": 1, "max_concurrency": 4}
    with pytest.raises(BusyError) as caught:
        batch(items, workflow_automation_conn_id="raw", **options)
    assert caught.value.accepted is Accepted.YES
    assert 2 <= is_of_it.count(True) < 100
    in_a_row = [len(list(group)) for of_it, group in itertools.groupby(is_of_it) if of_it]
    assert max(in_a_row) <= 2


@pytest.mark.no_cover
def test_what_is_sent_again_is_spread_as_well(batch, service):
    for n in range(3):
        service.faults.add("busy", inputs={"n": n})
    items = batch(rows(3), max_starts_per_second=2, send_retry_timeout=60)
    assert statuses(items) == {"started": 3}
    at = [datetime.fromisoformat(request.at) for request in service.journal.requests()]
    # A second, but for the time by which the first of them came late.
    assert (at[-1] - at[-3]).total_seconds() >= 0.3


SECRET = "the-customers-secret"


def test_neither_the_key_nor_inputs_show(batch, service, log, tmp_path):
    """Not even where the service echoes the key."""
    key = service.keys[0].value
    for n, status in ((1, 400), (2, 201), (3, 500)):
        service.faults.add("echo_key", status=status, inputs={"n": n})
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(10, password=SECRET), output_path=str(tmp_path / "output.jsonl"))
    kept = batch.context["task_state_store"].entries, batch.context["ti"].xcoms
    shown = f"{caught.value}{caught.value!r}{log()}{(tmp_path / 'output.jsonl').read_text()}{kept}"
    assert key not in shown
    assert SECRET not in shown
