"""What a task instance keeps of its wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from workflow_automation_provider.execution.callback import Answer, end_key, token_key
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


def keys(store):
    return {key for key in store.entries if key != WAIT}


def test_open(record, store):
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    record().open("a")
    assert record().read() == Waiting("a")
    assert keys(store) == {token_key("a", 3)}
    assert set(store.retentions.values()) == {NEVER_EXPIRE}


def test_open_makes_the_earlier_token_worthless(record, store):
    record().open("a")
    said(store, "a", Answer("success"))
    record(max_tries=5).open("b")
    assert keys(store) == {token_key("b", 5)}


@pytest.mark.parametrize("answer", [None, Answer("success", 1)])
def test_close(record, store, answer):
    record().open("a")
    if answer:
        said(store, "a", answer)
    assert record().close("a") == answer
    assert token_key("a", 3) not in store.entries
    assert record().answer("a") == answer


def test_close_without_a_token(record, store):
    record().forget_token()
    assert record().close(None) is None
    assert store.deleted == []


@pytest.mark.parametrize("asked", [True, False])
def test_began(record, asked):
    first = record()
    first.open("a")
    found = first.began(first.read(), asked=asked)
    assert datetime.now(UTC) - found.since < timedelta(seconds=5)
    assert first.read() == found == Waiting("a", found.since, asked)
    second = record(try_number=2)
    assert second.read() == Waiting("a", found.since, asked=False)
    assert second.began(second.read(), asked=True).since == found.since


ANSWERS = [Answer("success", [1], "m"), Answer("failed"), Answer("success", 0)]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answer_of_the_flow(record, store, answer):
    record().open("a")
    said(store, "a", answer)
    assert record(try_number=2).answer("a") == answer
    assert record().answer("b") is None


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("digest", ["a", None])
def test_answered(record, store, answer, digest):
    """In an entry of the task's own; the flow's answer is deleted, and no other counts."""
    first = record()
    first.open("a") if digest else first.forget_token()
    began = first.began(first.read(), asked=False)
    said(store, "a", Answer("failed", "secret"))
    first.answered(digest, answer)
    second = record(try_number=2)
    assert second.read() == began
    assert second.answer(digest) == first.answer(digest) == answer
    assert record(max_tries=4).answer(digest) is None
    assert keys(store) == (set() if digest else {end_key("a")})


def test_the_token_is_closed_before_the_answer_is_deleted(record, store):
    """Or the endpoint could write it again."""
    record().open("a")
    record().answered("a", Answer("success"))
    assert store.deleted == [token_key("a", 3), end_key("a")]


@pytest.mark.parametrize("row", [{}, {"status": "done"}, "success", ["success"], 7])
def test_a_row_that_is_no_answer(record, store, row):
    store.entries[end_key("a")] = row
    assert record().answer("a") is None


class TestClear:
    def test_nothing_counts(self, record):
        record().open("a")
        assert record(try_number=2, max_tries=4).read() == Waiting()

    def test_the_token_can_be_kept(self, record, store):
        first = record()
        first.open("a")
        first.began(first.read(), asked=True)
        said(store, "a", Answer("success", 1))
        now = record(try_number=2, max_tries=4)
        now.keep_token_across_clear()
        assert now.read() == Waiting("a")
        assert now.answer("a") == Answer("success", 1)
        assert token_key("a", 4) in store.entries

    def test_an_answer_of_the_tasks_own_is_kept_with_the_token(self, record, store):
        first = record()
        first.open("a")
        first.answered("a", Answer("success", 1))
        now = record(try_number=2, max_tries=4)
        now.keep_token_across_clear()
        assert now.answer("a") == Answer("success", 1)
        assert keys(store) == set()

    def test_the_token_can_be_kept_where_max_tries_stays_as_it_is(self, record, store):
        record(retries=2).open("a")
        now = record(try_number=2, retries=2, clear_number=1, started=2)
        assert now.read() == Waiting()
        now.keep_token_across_clear()
        assert now.read() == Waiting("a")
        assert keys(store) == {token_key("a", 3)}

    def test_there_is_no_token_to_keep(self, record, store):
        record().keep_token_across_clear()
        assert store.entries == {}

    @pytest.mark.parametrize("attempt", [{}, {"retries": 2, "clear_number": 1}])
    def test_the_wait_begins_anew_also_if_there_was_none_or_that_is_unknown(self, record, store, attempt):
        first = record()
        first.open("a")
        first.began(first.read(), asked=False)
        first.close("a")
        record(try_number=2, **attempt).keep_token_across_clear()
        assert record(try_number=2, **attempt).read() == Waiting("a")
        assert keys(store) == {token_key("a", 3)}

    def test_that_keeps_the_state_moves_the_token(self, record, store):
        """On Airflow 3.4."""
        record(region_id=None).open("a")
        now = record(try_number=2, max_tries=4, region_id=None)
        assert now.read() == Waiting("a")
        assert token_key("a", 4) in store.entries
        assert store.entries[WAIT]["max_tries"] == 4

    def test_that_keeps_the_state_of_a_run_without_a_token(self, record, store):
        record(region_id=None).forget_token()
        now = record(try_number=2, max_tries=4, region_id=None)
        assert now.read() == Waiting()
        assert set(store.entries) == {WAIT}


def test_a_forgotten_token_does_not_answer(record, store):
    record().open("a")
    said(store, "a", Answer("failed"))
    record().forget_token()
    waiting = record().read()
    assert waiting == Waiting()
    assert record().answer(waiting.digest) is None
    assert keys(store) == set()
