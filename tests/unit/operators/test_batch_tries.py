"""Later tries of a batch: what is recorded is returned, and what may have run is not sent again."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from entry_keys import batch_key
from workflow_automation_provider.exceptions import (
    Accepted,
    BatchInterruptedError,
    FileUnavailableError,
    InvalidRequestError,
    OutcomeUnknownError,
    RejectedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

from ..batches import entries_of, failing, rows, statuses, times_started
from ..starts import mentions


def test_a_later_try_returns_what_is_recorded(batch, service, tmp_path):
    service.faults.add("reject", inputs={"n": 5})
    output = tmp_path / "output.jsonl"
    options = {"on_rejected": "skip", "output_path": str(output)}
    first, written = batch(rows(9), **options), output.read_bytes()
    service.stop()  # not even asked
    assert batch(rows(9), **options, try_number=2) == first
    assert output.read_bytes() == written
    assert len(service.runs) == 8


@pytest.mark.parametrize("is_sent", [True, False])
def test_only_what_is_left_to_be_sent_needs_the_batch(batch, service, tmp_path, is_sent):
    path = tmp_path / "batch.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n')
    if not is_sent:
        service.faults.add("reject", status=401, inputs={"n": 1})
    with contextlib.suppress(RejectedError):
        batch(str(path), max_concurrency=1)

    path.unlink()
    if is_sent:
        assert statuses(batch(str(path), try_number=2)) == {"started": 2}
    else:
        with pytest.raises(FileUnavailableError) as caught:
            batch(str(path), try_number=2)
        assert caught.value.accepted is Accepted.YES
    assert times_started(service) == Counter(range(2 if is_sent else 1))


def test_an_item_in_doubt_has_its_key_though_the_batch_is_gone(batch, service, tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n')
    with pytest.raises(WorkflowAutomationError):
        batch(str(path), key="n", before_set=failing(2))  # only what was opened is recorded
    path.unlink()
    with pytest.raises(OutcomeUnknownError) as caught:
        batch(str(path), key="n", try_number=2)
    opened_at = entries_of(batch.store)[0]["at"][:19]
    for n in range(2):
        assert mentions(caught.value.next_step, f"batch[{n}] ({n})  unknown", "Try 1", opened_at)
    assert times_started(service) == Counter(range(2))


def test_a_clear_starts_all_anew(batch, service, log):
    batch(rows(10))
    store = batch.context["task_state_store"]
    batch.task = TriggerFlowBatchOperator(task_id="batch", batch=rows(10), retries=3)
    context = {**batch.context, "ti": type(batch.context["ti"])("batch", 2, max_tries=4)}
    assert context["task_state_store"] is store
    assert statuses(batch.task.execute(context)) == {"started": 10}
    assert times_started(service) == Counter(dict.fromkeys(range(10), 2))
    assert mentions(log(), "cleared")


def test_start_again_is_left_to_the_next_try(batch, service):
    service.faults.add("drop_after", inputs={"n": 3})
    with pytest.raises(OutcomeUnknownError) as caught:
        batch(rows(9), on_unknown_start="start_again")
    assert not isinstance(caught.value, AirflowFailException)
    assert times_started(service) == Counter(range(9))
    items = batch(rows(9), on_unknown_start="start_again", try_number=2)
    assert statuses(items) == {"started": 9}
    assert times_started(service) == Counter([*range(9), 3])


def test_a_404_for_the_record_starts_no_second_run(batch, service):
    first = batch(rows(5))
    batch.store.lost = [batch_key(0)]
    assert batch(rows(5), try_number=2) == first
    assert batch.store.lost == []
    assert times_started(service) == Counter(range(5))


def test_a_404_for_all_entries_for_a_while_starts_no_second_run(batch, service):
    batch(rows(5))
    reads = itertools.count()

    def lose_the_first(key):
        if next(reads) < 3:
            batch.store.lost.append(key)

    with pytest.raises(BatchInterruptedError):
        batch(rows(5), try_number=2, before_get=lose_the_first)
    assert times_started(service) == Counter(range(5))


def test_an_entry_of_a_newer_version_is_named_and_nothing_is_sent(batch, service):
    batch(rows(2))
    batch.store.entries[batch_key(1)] = {"of": "a newer version"}
    with pytest.raises(InvalidRequestError, match=batch_key(1)):
        batch(rows(2), try_number=2)
    assert times_started(service) == Counter(range(2))


def test_a_404_for_what_was_just_written_interrupts_nothing(batch, service):
    def miss_the_next_read(key, _):
        batch.store.lost = [key]

    assert statuses(batch(rows(5), before_set=miss_the_next_read)) == {"started": 5}
    assert times_started(service) == Counter(range(5))


@pytest.mark.parametrize("status", [400, 401, 429])
def test_a_doubt_stays_where_a_later_try_starts_no_run(batch, service, status):
    """Of the later try that is all; of the task it is not."""
    service.faults.add("drop_after", inputs={"n": 3})
    with pytest.raises(OutcomeUnknownError):
        batch(rows(5), on_unknown_start="start_again")
    service.faults.add("reject" if status < 429 else "busy", status=status, inputs={"n": 3})
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(5), on_unknown_start="start_again", try_number=2)
    assert mentions(caught.value.consequence, "1 unknown")
    assert mentions(caught.value.next_step, "batch[3]", "unknown")
    with pytest.raises(OutcomeUnknownError):
        batch(rows(5), on_unknown_start="fail", try_number=3)
    assert times_started(service) == Counter(range(5))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda items: items[7].update(n=77), "batch[7]"),
        (lambda items: items.insert(2, {"n": 99}), "batch[2]"),
        (lambda items: items.clear(), "batch has 0 items"),
        (lambda _: {"items": 5}, "batch"),
        (lambda _: {"flow_id": "{{ a }}"}, "flow_id"),
        (lambda _: {"output_path": 5}, "output_path"),
    ],
)
def test_what_changed_is_named_beside_what_was_started(batch, service, change, named):
    service.faults.add("reject", status=401, inputs={"n": 9})
    with pytest.raises(RejectedError):
        batch(rows(10), max_concurrency=1)
    arguments = {"items": rows(10)}
    arguments |= change(arguments["items"]) or {}
    with pytest.raises(InvalidRequestError, match=re.escape(named)) as caught:
        batch(**arguments, try_number=2)
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.accepted is Accepted.YES
    assert mentions(caught.value.consequence, "9 started")
    assert len(service.runs) == 9


@pytest.mark.parametrize(
    ("change", "is_written"),
    [
        (lambda items, _: items[7].update(n=77), True),
        (lambda *_: {"items": 5}, True),
        (lambda items, _: items.append({"n": float("nan")}), True),
        (lambda _, path: {"items": str(path), "output_path": str(path)}, False),
    ],
)
def test_what_was_started_is_in_the_file_though_the_batch_has_changed(
    batch, service, tmp_path, change, is_written
):
    """Unless the file is not the one that the earlier try has checked."""
    output, source = tmp_path / "output.jsonl", tmp_path / "batch.jsonl"
    source.write_text("a batch")
    service.faults.add("reject", status=401, inputs={"n": 9})
    with pytest.raises(RejectedError):
        batch(rows(10), max_concurrency=1, output_path=str(output))
    written = output.read_bytes()
    output.unlink()
    arguments = {"items": rows(10), "output_path": str(output)}
    arguments |= change(arguments["items"], source) or {}
    with pytest.raises(InvalidRequestError):
        batch(**arguments, try_number=2)
    assert output.exists() == is_written
    assert source.read_text() == "a batch"
    if is_written:
        assert output.read_bytes().splitlines()[:9] == written.splitlines()[:9]
        assert batch.context["ti"].xcoms["return_value"]["started"] == 9


def test_what_was_started_is_in_the_file_though_the_last_try_has_no_connection(
    batch, service, tmp_path, monkeypatch
):
    output = tmp_path / "output.jsonl"
    service.faults.add("busy", inputs={"n": 4})
    for number in (1, 4):
        with pytest.raises(WorkflowAutomationError):
            batch(rows(5), max_concurrency=1, output_path=str(output), try_number=number)
        assert output.exists() == (number == 4)
        monkeypatch.delenv("AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT", raising=False)
    assert len(output.read_text().splitlines()) == 5


def test_what_was_not_started_may_change_and_items_may_be_added(batch, service):
    service.faults.add("reject", status=401, inputs={"n": 2})
    with pytest.raises(RejectedError):
        batch(rows(3), max_concurrency=1)
    assert statuses(batch([*rows(2), {"n": 7}, {"n": 8}], try_number=2)) == {"started": 4}
    assert times_started(service) == Counter([0, 1, 7, 8])
