"""What a task ends with, in words: each kind once, in golden/task_errors.txt. No other test asserts them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from workflow_automation_provider.client.outcome import Busy, NotSent, Reason, Rejected, Unidentified, Unknown
from workflow_automation_provider.client.protocol import trigger_request
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    FileUnavailableError,
    InvalidRequestError,
    OutcomeUnknownError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.failures import (
    BATCH_ADVICE,
    CLAIM_ADVICE,
    UPLOAD_ADVICE,
    Outlook,
    PreviousTry,
    request_error,
    revoked_error,
    run_advice,
    silence_error,
    start_advice,
    task_error,
    unclaimed_error,
    unsettled_error,
)
from workflow_automation_provider.failures.batch import (
    BatchState,
    batch_error,
    changed_meanwhile,
    changed_since,
    interrupted,
    items_error,
    missing_since,
    task_ended,
    too_many_unknown,
)

GOLDEN = Path(__file__).parent / "golden" / "task_errors.txt"
"""Renewed by ``python -m tests.unit.test_task_errors``: read the difference before it is committed."""

REQUEST = trigger_request("https://service.example/api", {}, "demo-flow")
FAIL = Outlook("fail")
OUTLOOKS = (
    Outlook("ended"),
    Outlook("fail by policy"),
    Outlook("no retries left"),
    Outlook("reschedule", delay=timedelta(seconds=17)),
    Outlook("by policy", 2, 4),
    Outlook("retry", 2, 4),
    Outlook("retry", 2, 4, timedelta(seconds=300)),
)
PREVIOUS = (
    PreviousTry(Accepted.YES, "try 1 (2026-01-01T00:00:00+00:00) started run 7, https://there/7."),
    PreviousTry(Accepted.MAYBE, "try 1 (2026-01-01T00:00:00+00:00) triggered the flow."),
)


def errors() -> Iterator[WorkflowAutomationError]:
    """Yield one error of each kind that a task ends with."""
    start = start_advice()
    rejected = request_error(Rejected(request=REQUEST, status=409))
    unknown = request_error(Unknown(request=REQUEST, status=502))
    unidentified = request_error(Unidentified(request=REQUEST, status=201, detail="it is empty"))
    for error, advice in itertools.product(
        (rejected, unknown, unidentified), (start, start_advice("ada"), start_advice(has_store=False))
    ):
        yield task_error(error, type(error), FAIL, advice)
    for outlook, error in itertools.product(
        OUTLOOKS, (request_error(Busy(request=REQUEST, status=429, retry_after=17.0)), unknown)
    ):
        yield task_error(error, type(error), outlook, start)
    for previous, error in itertools.product(
        PREVIOUS,
        (
            InvalidRequestError("inputs is None."),
            request_error(NotSent(request=REQUEST, reason=Reason.STOPPED)),
        ),
    ):
        yield task_error(error, type(error), FAIL, start, previous=previous)
    missing = FileUnavailableError("/data/a.csv does not exist.")
    for error, outlook in itertools.product(
        (missing, OutcomeUnknownError("No response.", code=Code.UPLOAD_UNKNOWN)), (FAIL, OUTLOOKS[2])
    ):
        yield task_error(error, type(error), outlook, UPLOAD_ADVICE)
    for error, has_store, run_id in itertools.product(
        (missing, InvalidRequestError("No.")), (True, False), ("7", "")
    ):
        text = run_advice(run_id, has_store=has_store)
        advice = dict.fromkeys((Accepted.NO, Accepted.MAYBE), text)
        yield task_error(error, type(error), FAIL, advice, later=text, run_id=run_id)
    for kind in (RunFailedError, RunTimeoutError):
        yield task_error(kind("The flow said so."), kind, FAIL, start)
    for is_revoked, outlook in ((True, OUTLOOKS[2]), (False, OUTLOOKS[5])):
        unclaimed = unclaimed_error(unknown, timedelta(seconds=60), is_revoked=is_revoked)
        yield task_error(unclaimed, type(unclaimed), outlook, CLAIM_ADVICE)
    revoked = revoked_error(request_error(Unknown(request=REQUEST, status=502)))
    yield task_error(revoked, type(revoked), FAIL, start)
    unsettled = unsettled_error(rejected)
    yield task_error(unsettled, type(unsettled), FAIL, CLAIM_ADVICE)
    for known in ("7", None):
        silent = silence_error(
            known, timedelta(minutes=10), "Its last word, at 2026-01-01T00:00:00+00:00: exporting (48%)"
        )
        yield task_error(silent, type(silent), FAIL, start)
    for error in batch_errors():
        yield task_error(error, type(error), FAIL, BATCH_ADVICE)


def batch_errors() -> Iterator[WorkflowAutomationError]:
    """Yield one error of each kind that a batch ends with."""
    rejected = request_error(Rejected(request=REQUEST, status=401))
    yield batch_error(rejected, batch(started=2, remaining=3, place="the entries", is_stopped=True))
    yield batch_error(task_ended(), batch(remaining=5, is_stopped=True))
    yield batch_error(too_many_unknown(17, "POST was sent."), batch(unknown=3, remaining=2, is_stopped=True))
    for is_continued in (True, False):
        broken = interrupted(
            OSError(5, "Key demo"), lambda text: text.replace("demo", "…"), is_continued=is_continued
        )
        yield batch_error(broken, batch(started=2, remaining=3, place="an entry", is_logged=True))
    for number in (1, 2):
        for name in ("unknown", "unidentified", "rejected"):
            failed = items_error(
                **{**dict.fromkeys(("unknown", "unidentified", "rejected"), 0), name: number}
            )
            counts = {"rejected" if name == "rejected" else "unknown": number}
            assert failed
            yield batch_error(
                failed,
                batch(
                    **counts, unidentified=number * (name == "unidentified"), output_path="/data/out.jsonl"
                ),
            )
    assert items_error(unknown=0, unidentified=0, rejected=0) is None
    for error in (changed_since("batch[1]", 1), missing_since(4, 3, 2), changed_meanwhile("batch[1]")):
        yield batch_error(error, batch(started=2, remaining=-2, total=0))


def batch(*, total: int = 5, **facts: Any) -> BatchState:
    counts = {name: facts.pop(name, 0) for name in ("started", "rejected", "unknown", "remaining")}
    facts = {
        "unidentified": 0,
        "table": "batch[3]  rejected: No." * bool(counts["rejected"]),
        "place": "",
        **facts,
    }
    return BatchState(counts={"total": total, **counts}, **facts)


def rendered() -> str:
    """Return all that is said of tasks that failed."""
    texts = []
    for error in errors():
        error.locate("my_connection", "demo-flow")
        texts.append(f"{type(error).__name__}, accepted: {error.accepted.value}\n{error}")
    return "\n\n".join(texts) + "\n"


def test_words():
    assert rendered() == GOLDEN.read_text(encoding="utf-8")


def test_each_code_is_explained_once():
    page = Path(__file__).parents[2] / "docs" / "if-it-fails.md"
    codes = re.findall(r"^\| \[?`([a-z]+-?[a-z]+)`", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {code: codes.count(code) for code in Code} == dict.fromkeys(Code, 1)


if __name__ == "__main__":
    GOLDEN.write_text(rendered(), encoding="utf-8")
