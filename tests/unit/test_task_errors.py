"""
What a task ends with, in words.

Each code and each situation once, in golden/task_errors.txt. No other test asserts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import entry_keys
import golden
from workflow_automation_provider import exceptions
from workflow_automation_provider.exceptions import (
    Accepted,
    BatchInterruptedError,
    Code,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch.batch_record import BatchRecord
from workflow_automation_provider.execution.batch.options import BatchOptions
from workflow_automation_provider.execution.batch.output import OutputUnavailableError
from workflow_automation_provider.execution.batch.source import Item
from workflow_automation_provider.execution.batch.summary import with_results, worst_result
from workflow_automation_provider.execution.errors import error_after_start, task_error
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.testing.context import StateStore, make_context

FAILS = BatchOptions(
    batch=[],
    flow_id=None,
    key=None,
    output_path=None,
    max_concurrency=16,
    max_starts_per_second=None,
    fails_if_rejected=True,
    fails_if_run_failed=True,
    wait_for_completion=False,
    callback_input="callback_url",
    completion_timeout=timedelta(days=1),
)
PAGE = Path(__file__).parents[2] / "docs" / "if-it-fails.md"

WITH_STORE: Any = {"task_state_store": object()}
WITHOUT_STORE: Any = {}
IN_TRY_1_OF_2: Any = {**WITH_STORE, "ti": SimpleNamespace(try_number=1, max_tries=1)}

BATCH: Any = TriggerFlowBatchOperator(task_id="batch", batch=[])

KINDS = [getattr(exceptions, name) for name in exceptions.__all__ if name.endswith("Error")]
# Those of a class that has another code by itself.
OTHERS = {
    Code.KEY_REJECTED: RejectedError,
    Code.NOT_FOUND: RejectedError,
    Code.TOO_LARGE: RejectedError,
    Code.REDIRECTED: RejectedError,
    Code.START_REVOKED: OutcomeUnknownError,
    Code.UPLOAD_UNKNOWN: OutcomeUnknownError,
    Code.RUN_SILENT: exceptions.RunTimeoutError,
}
CLASSES: dict[Code, type[WorkflowAutomationError]] = {
    kind("").code: kind for kind in KINDS if kind("").code
} | OTHERS


def situations() -> Iterator[tuple[str, WorkflowAutomationError]]:
    """
    Yield what a task ends with.

    Each code once, and each situation with those that it changes.
    """
    error: WorkflowAutomationError
    for code in Code:
        run_id = "7" if code in (Code.RUN_FAILED, Code.RUN_OVERDUE, Code.RUN_SILENT) else None
        error = CLASSES[code]("It happened.", code=code, next_step="A hint.", run_id=run_id)
        yield "", task_error(error, WITH_STORE)
    unknown = OutcomeUnknownError("It happened.")
    for error in (unknown, UnidentifiedError("It happened.")):
        yield "without a store", task_error(error, WITHOUT_STORE)
    retried = (OutcomeUnknownError,)
    yield "start_again", task_error(unknown, WITH_STORE, retried=retried, starts_again=True)
    missing = FileUnavailableError("a.csv does not exist.")
    for error in (
        missing,
        InvalidRequestError("No."),
        OutcomeUnknownError("No.", code=Code.UPLOAD_UNKNOWN),
    ):
        yield "with its run", error_after_start(error, WITH_STORE, {"run_id": "7"})
    yield "with a run without an id", error_after_start(missing, WITH_STORE, {})
    without_store = error_after_start(missing, WITHOUT_STORE, {"run_id": "7"})
    yield "with its run, without a store", without_store
    situation = "start_again, with retries left"
    yield situation, task_error(unknown, IN_TRY_1_OF_2, retried=retried, starts_again=True)
    uploaded = OutcomeUnknownError("It happened.", code=Code.UPLOAD_UNKNOWN)
    situation = "with its run, with retries left"
    yield situation, error_after_start(uploaded, IN_TRY_1_OF_2, {"run_id": "7"}, retried=retried)
    for error in batch_errors():
        yield "of a batch", BATCH._failure(cast("Any", WITH_STORE), error)


def batch_errors() -> Iterator[WorkflowAutomationError]:
    """Yield one error of each kind that a batch ends with."""
    rejected = RejectedError("No.", code=Code.KEY_REJECTED, status=401)
    yield with_results(rejected, batch(5, "started", "started"))
    yield with_results(NotSentError("The task was ended."), batch(5))
    yield with_results(OutcomeUnknownError("POST was sent."), batch(5, "unknown"))
    unwritable = "output_path is '/data/out.jsonl', which cannot be written: Permission denied."
    yield with_results(OutputUnavailableError(unwritable), batch(5))
    yield with_results(BatchInterruptedError("The batch was interrupted."), batch(5, "started"))
    for status in ("unknown", "unidentified", "rejected", "failed", "overdue"):
        for number in (1, 2):
            record = batch(5, *["started"] * (5 - number), *[status] * number)
            record.results.are_settled = status in ("failed", "overdue")
            error = worst_result(record.results, FAILS)
            assert error
            yield with_results(error, record, "/data/out.jsonl" if number == 2 else "")
    assert worst_result(batch(1, "started").results, FAILS) is None
    skips = replace(FAILS, fails_if_rejected=False, fails_if_run_failed=False)
    for status in ("rejected", "failed"):
        assert worst_result(batch(1, status).results, skips) is None
    record = batch(2, "started", "started")
    first = Item(0, b"{}", b"digest", "batch[0]")
    for items in ([first, Item(1, b"{}", b"other.", "batch[1]")], [first]):
        with pytest.raises(InvalidRequestError) as caught:
            record.check(items)
        yield with_results(caught.value, record)
    changed: Any = [Item(1, b"{}", b"other.", "batch[1]")]
    with pytest.raises(InvalidRequestError) as caught:
        list(record.to_send(changed))
    yield with_results(caught.value, record)
    interrupted = BatchInterruptedError("The batch was interrupted by RuntimeError.")
    for number in (1, 2):
        unread = BatchRecord(cast("Any", make_context(BATCH, try_number=number)))
        yield with_results(interrupted, unread)


def batch(total: int, *statuses: str) -> BatchRecord:
    """Return what a second try knows of a batch of which the first items ended so."""
    store = StateStore()
    contexts: list[Any] = [make_context(BATCH, try_number=number, store=store) for number in (1, 2)]
    first, second = map(BatchRecord, contexts)
    first.results.total = total
    first.write([Item(index, b"{}", b"digest", "") for index in range(len(statuses))], [])
    results: list[Any] = [
        {"index": n, "status": status, "why": "No."} for n, status in enumerate(statuses)
    ]
    first.write([], results)
    second.read()
    return second


def rendered() -> Iterator[str]:
    """Yield what is said of each task that failed."""
    for situation, error in situations():
        names = [kind.__name__ for kind in type(error).__mro__]
        kind = next(name for name in names if name.endswith("Error"))
        retry = "no retry" if "AirflowFailException" in names else "retry"
        about = ", ".join(
            filter(None, (kind, f"accepted: {error.accepted.value}", retry, situation))
        )
        yield f"{about}\n{error}"


def test_messages():
    golden.check("task_errors.txt", rendered())


def test_lines_are_not_cut():
    """Airflow's log cuts those that are longer, and with them what starts another run."""
    lines = [line for text in rendered() for line in text.split("\n")[2:]]
    # Those that name entries of a batch have two long keys, and nothing that starts a run.
    others = [line for line in lines if entry_keys.BATCH not in line]
    assert [line for line in others if len(line) > 92] == []


def test_what_starts_another_run_comes_first():
    """A person who does what the first lines say starts no second run."""
    for text in rendered():
        warned = text.find("A Clear alone starts another one")
        if warned >= 0:
            assert "lear the task" not in text[:warned]


def test_each_code_has_a_meaning_and_is_explained_once():
    assert {*Code} == {*CLASSES}
    assert {*CLASSES.values()} == {*KINDS} - {WorkflowAutomationError}
    codes = re.findall(r"^\| \[?`([a-z]+-?[a-z]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {code: codes.count(code) for code in Code} == dict.fromkeys(Code, 1)


def test_the_page_lists_for_each_code_whether_a_run_exists():
    rows = re.findall(
        r"^\| \[?`([a-z-]+)`[^|]*\| ([a-z]+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    words = {Accepted.NO: "no", Accepted.MAYBE: "maybe", Accepted.YES: "yes"}
    listed = {code: word for code, word in rows if code in {*Code} - {Code.BATCH_INTERRUPTED}}
    assert listed == {
        code: words[kind.accepted]
        for code, kind in CLASSES.items()
        if code != Code.BATCH_INTERRUPTED
    } | {Code.START_REVOKED: "none", Code.UPLOAD_UNKNOWN: "yes"}
