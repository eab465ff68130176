"""What a task instance keeps of its wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from workflow_automation_provider.execution.callback import Answer, end_key, token_key, token_keys
from workflow_automation_provider.execution.claim import ClaimRecord
from workflow_automation_provider.execution.wait_state import Waiting, WaitRecord

WAIT = "workflow_automation_wait"


@pytest.fixture
def record(store, context):
    def make(**attempt):
        return WaitRecord(context(store, **attempt))

    return make


def test_nothing_is_known(record, store):
    assert record().read() == Waiting()
    assert record().answer(None) is None
    assert record().answer("a") is None
    assert store.entries == {}


def said(store, digest, answer):
    """Answer as the endpoint does."""
    store.entries[end_key(digest)] = dict(answer.row("2026-01-01T00:00:00+00:00"))


def opened(record, token="a"):
    """A record of a wait for a run that was given a token."""
    ClaimRecord(record._context).open(token)
    record.token = token
    return record


def keys(store):
    return {key for key in store.entries if key != WAIT}


@pytest.mark.parametrize("answer", [None, Answer("success", 1)])
def test_close(record, store, answer):
    opened(record())
    if answer:
        said(store, "a", answer)
    assert record().close("a") == answer
    assert token_key("a", 3) not in store.entries
    assert record().answer("a") == answer


def test_close_without_a_token(record, store):
    assert record().close(None) is None
    assert store.deleted == []


def test_began(record):
    first = opened(record())
    found = first.began(first.read())
    assert datetime.now(UTC) - found.since < timedelta(seconds=5)
    assert first.read() == found == Waiting("a", found.since)
    assert record(try_number=2).read() == found


ANSWERS = [Answer("success", [1], "m"), Answer("failed"), Answer("success", 0)]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answer_of_the_flow(record, store, answer):
    opened(record())
    said(store, "a", answer)
    assert record(try_number=2).answer("a") == answer
    assert record().answer("b") is None


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("digest", ["a", None])
def test_answered(record, store, answer, digest):
    """In an entry of the task's own; the flow's answer is deleted, and no other counts."""
    first = opened(record()) if digest else record()
    began = first.began(first.read())
    said(store, "a", Answer("failed", "secret"))
    first.store_answer(digest, answer)
    second = record(try_number=2)
    assert second.read() == began
    assert second.answer(digest) == first.answer(digest) == answer
    assert record(max_tries=4).answer(digest) is None
    assert keys(store) == (set() if digest else {end_key("a")})


def test_the_token_is_closed_before_the_answer_is_deleted(record, store):
    """Or the endpoint could write it again."""
    opened(record())
    record().store_answer("a", Answer("success"))
    assert store.deleted == [*token_keys("a", 3), end_key("a")]


@pytest.mark.parametrize("row", [{}, {"status": "done"}, "success", ["success"], 7])
def test_a_row_that_is_no_answer(record, store, row):
    store.entries[end_key("a")] = row
    assert record().answer("a") is None


class TestClear:
    @pytest.mark.parametrize("attempt", [{"max_tries": 4}, {"max_tries": 4, "clear_number": 1}])
    def test_nothing_counts(self, record, attempt):
        first = opened(record())
        first.began(first.read())
        assert record(try_number=2, **attempt).read() == Waiting()

    @pytest.mark.parametrize("attempt", [{}, {"max_tries": 4}, {"retries": 2, "clear_number": 1}])
    def test_the_wait_begins_anew(self, record, store, attempt):
        first = opened(record())
        first.began(first.read())
        said(store, "a", Answer("success", 1))
        now = record(try_number=2, **attempt)
        now.begin_anew("a")
        assert now.read() == Waiting("a")
        assert now.answer("a") == Answer("success", 1)

    def test_an_answer_of_the_tasks_own_is_kept_with_the_token(self, record, store):
        opened(record()).store_answer("a", Answer("success", 1))
        now = record(try_number=2, max_tries=4)
        now.begin_anew("a")
        assert now.answer("a") == Answer("success", 1)
        assert keys(store) == set()

    def test_of_another_run_nothing_is_kept(self, record, store):
        opened(record()).store_answer("a", Answer("success", 1))
        now = record(try_number=2)
        now.begin_anew(None)
        assert now.read() == Waiting()
        assert now.answer(None) is None
        assert keys(store) == set()

    def test_that_keeps_the_state_moves_the_token(self, record, store):
        """On Airflow 3.4."""
        first = opened(record(region_id=None))
        first.began(first.read())
        now = record(try_number=2, max_tries=4, region_id=None)
        assert now.read() == Waiting("a")
        assert token_key("a", 4) in store.entries
        assert store.entries[WAIT]["max_tries"] == 4

    def test_that_keeps_the_state_of_a_run_without_a_token(self, record, store):
        first = record(region_id=None)
        first.began(first.read())
        now = record(try_number=2, max_tries=4, region_id=None)
        assert now.read() == Waiting()
        assert set(store.entries) == {WAIT}
