"""
The record of a batch.

What a try leaves, the next one reads, within the limits of Airflow's store.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.execution.batch.batch_record import BatchRecord
from workflow_automation_provider.execution.batch.source import DIGEST_BYTES, Item

LIMIT = 65_535  # of [state_store] max_value_storage_bytes, which Airflow warns of


def check_sizes(store):
    """Check that all entries are within the limits; each only grows."""
    assert all(len(json.dumps(value)) <= LIMIT for value in store.entries.values())


def digest(index):
    return index.to_bytes(DIGEST_BYTES, "big")


def started(index, run_id="1001"):
    return {"index": index, "status": "started", "run_id": run_id}


def record_of(context, store, **options):
    return BatchRecord(context(store, task_id="batch", **options))


def opened(*indexes):
    return [Item(index, b"{}", digest(index), f"batch[{index}]") for index in indexes]


def state(record):
    """Return what the entries say: the result of each item, None where it has none."""
    record.read()
    items = {index: record.results.get(index) for index in record.results.with_run()}
    for sent in opened(*items):
        assert record.has(sent)
        assert not record.must_send(sent.index)
    return {index: None if item["status"] == "unknown" else item for index, item in items.items()}


@st.composite
def histories(draw):
    """
    Draw what several tries write: in each write, items to open, and results of items that are open.

    With whether the task was cleared before the try.
    """
    size = draw(st.integers(0, 99))
    unopened, opened = [*range(size)], list[int]()
    history: list[Any] = []
    for _ in range(draw(st.integers(1, 4))):
        writes = []
        if is_cleared := bool(history) and draw(st.booleans()):
            unopened, opened = [*range(size)], []
        for _ in range(draw(st.integers(0, 6))):
            number = draw(st.integers(0, 20))
            # In any order: an item may come back that was not started.
            done = [
                opened.pop(draw(st.integers(0, len(opened) - 1))) for _ in range(number) if opened
            ]
            more, unopened = unopened[:number], unopened[number:]
            opened += more
            writes.append((more, done))
        history.append((is_cleared, writes))
    return history


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), run_id=st.text(min_size=1, max_size=200))
def test_what_was_written_is_read(context, store, history, run_id):
    store.entries.clear()
    max_tries, expected = 3, dict[int, object]()
    for number, (is_cleared, writes) in enumerate(history, start=1):
        if is_cleared:
            max_tries, expected = max_tries + 3, {}
        record = record_of(context, store, try_number=number, max_tries=max_tries)
        assert state(record) == expected
        in_flight = set[int]()
        for more, done in writes:
            results = [started(index, run_id) for index in done]
            in_flight -= {*done}
            record.write(opened(*more), results)
            in_flight |= {*more}
            if more or done:
                assert [*store.entries.values()][-1]["in_flight"] == len(in_flight)
            expected |= dict.fromkeys(more)
            expected |= {item["index"]: item for item in results}
    record = record_of(context, store, try_number=9, max_tries=max_tries)
    assert state(record) == expected
    found = [entry.get("max_tries", max_tries) for entry in store.entries.values()]
    assert record.was_cleared is any(number != max_tries for number in found)
    check_sizes(store)


def test_many_items_stay_inside_the_limits(context, store):
    record = record_of(context, store)
    link = "https://service.example/workspaces/0f0e0d0c/flows/the-flow/runs/{}"
    expected = dict[int, object]()
    results = list[Any]()
    for first in range(0, 5_000, 1000):
        indexes = range(first, first + 1000)
        record.write(opened(*indexes), results)
        expected |= {item["index"]: item for item in results} | dict.fromkeys(indexes)
        results = [
            {**started(index, f"run-{index:032}"), "run_link": link.format(index)}
            for index in indexes
        ]
    check_sizes(store)
    assert len(store.entries) < 100
    assert state(record_of(context, store, try_number=2)) == expected


def test_long_results_have_entries_of_their_own(context, store):
    record = record_of(context, store)
    results = [started(index, "1" * (LIMIT // 2)) for index in range(2)]
    record.write(opened(0, 1), [])
    record.write([], results)
    check_sizes(store)
    assert state(record_of(context, store, try_number=2)) == dict(enumerate(results))


@pytest.mark.parametrize("is_written", [False, True])
def test_an_interruption_at_a_new_entry_leaves_no_gap(context, store, monkeypatch, is_written):
    """Reading ends at a gap, and what is beyond it would be read once the gap is filled."""
    write = store.set
    record = record_of(context, store)
    record.write(opened(0, 1), [started(0, "1" * 20_000)])

    def interrupt(*arguments, **options):
        if is_written:
            write(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "set", interrupt)
        with pytest.raises(KeyboardInterrupt):
            record.write([], [started(1)])
    record.write([], [started(1)])
    assert [*store.entries] == [
        "workflow_automation_batch_000000",
        "workflow_automation_batch_000001",
    ]
    assert state(record_of(context, store))[1] == started(1)


def test_results_that_were_not_written_are_written_again(context, store):
    record = record_of(context, store)
    record.write(opened(0, 1), [])
    store.failures["set"] = 1
    with pytest.raises(RuntimeError):
        record.write(opened(2), [started(0)])
    record.write([], [started(0), started(1)])
    # What that write would have opened is not open.
    assert state(record_of(context, store, try_number=2)) == {0: started(0), 1: started(1)}
