"""
What is said of a task and what may be done with it: the rows of the table of ``advice``.

What is said, and what each action asks, is in golden/advice.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import golden
from workflow_automation_provider.execution.record.entries import (
    Claim,
    End,
    Outcome,
    RunReports,
    Start,
)
from workflow_automation_provider.execution.record.start_decision import KnownStart, why_not
from workflow_automation_provider.plugins.actions import given_keys
from workflow_automation_provider.plugins.advice import Advice, advise, advise_batch
from workflow_automation_provider.plugins.task_starts import (
    KnownBatch,
    RunStatus,
    TaskNow,
    TaskStart,
    state_of,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
LATER = AT + timedelta(minutes=5)
TOKEN = "a" * 64
MAILBOX = "s3://reports/a.json"
FOLDER = "s3://reports/batch"

NOTHING, UNIDENTIFIED = Outcome("not started", AT), Outcome("unidentified", AT)
NAMED = Outcome("started", AT, {"run_id": "7"})
NAMELESS = Outcome("started", AT, {"response": {"ok": True}})
CLAIMED, CLAIMED_7 = RunReports(claim=Claim(AT)), RunReports(claim=Claim(AT, "7"))
LINKED = Outcome("started", AT, {"run_id": "7", "run_link": "https://app.test/runs/7"})
SUCCEEDED = RunReports(end=End(AT, "success"))
SUCCEEDED_7 = RunReports(end=End(AT, "success", "7", {"rows": 7}))
FAILED = RunReports(claim=Claim(AT, "7"), end=End(AT, "failed", "7"))
STOPPED = RunReports(stopped=AT)

CONTINUE, START, SUCCEED, FAIL, TAKE_BACK = "continue", "start", "succeed", "fail", "take-back"


def task(state: str | None = "failed", **fields: Any) -> TaskNow:
    return TaskNow(**{"state": state, "try_number": 1, "max_tries": 0, "ended_at": LATER, **fields})


def known(
    outcome: Outcome | None = None,
    reports: RunReports | None = None,
    *,
    name: str = "",
    given: object = None,
    others: tuple[KnownStart | None, ...] = (),
    **fields: Any,
) -> TaskStart:
    start = Start(
        **{"try_number": 1, "number": 0, "at": AT, "max_tries": 0, "token_hash": TOKEN, **fields}
    )
    facts = KnownStart(start=start, outcome=outcome, reports=reports or RunReports())
    return TaskStart(try_number=1, known=facts, name=name, others=others, given=given)


def waits(*args: Any, **fields: Any) -> TaskStart:
    return known(*args, completion_timeout=3600.0, **fields)


def kinds(now: TaskNow, *starts: TaskStart) -> list[str]:
    return [action.kind.value for action in advise(now, starts).actions]


ROWS = {
    "cleared": (task("queued", max_tries=2), known(), []),
    "made again": (task("failed", try_number=0), known(), []),
    "unreadable": (task(), TaskStart(try_number=1, known=None), []),
    "given, refused": (task(), known(NAMED, given="8"), [CONTINUE, START, SUCCEED, TAKE_BACK]),
    "given, no run": (
        task(), known(given={"run_id": "7", "note": "x"}), [CONTINUE, START, SUCCEED, TAKE_BACK],
    ),
    "given, next try": (task("queued", max_tries=2), known(given="7"), []),
    "given, a Clear": (
        task(max_tries=2), known(given="7"), [CONTINUE, START, SUCCEED, TAKE_BACK],
    ),
    "given, marked": (task("success"), known(given="7"), [TAKE_BACK]),
    "run failed": (task(), known(NAMED, FAILED), [START]),
    "stopped": (task(), known(None, STOPPED), [START, SUCCEED]),
    "nothing": (task(), known(NOTHING), [START]),
    "succeeded": (task(), known(None, SUCCEEDED_7), [CONTINUE, START]),
    "succeeded, of an unknown id": (task(), known(None, SUCCEEDED), [CONTINUE, START]),
    "succeeded, not to be had": (
        task(), known(None, SUCCEEDED_7, others=(None,)), [START, SUCCEED],
    ),
    "known": (task(), known(NAMED), [CONTINUE, START, SUCCEED]),
    "claimed": (task(), known(None, CLAIMED), [CONTINUE, START, SUCCEED]),
    "no run_id": (task(), known(NAMELESS), [CONTINUE, START, SUCCEED]),
    "unidentified": (task(), known(UNIDENTIFIED), [CONTINUE, START, SUCCEED]),
    "doubt": (task(), known(), [CONTINUE, START, SUCCEED]),
    "doubt, not to be had": (task(), known(others=(known().known,)), [START, SUCCEED]),
    "failed since a Clear": (task(max_tries=2), known(), [CONTINUE, START, SUCCEED]),
    "ended": (task("success"), known(NAMED), []),
    "skipped": (task("skipped"), known(NAMED), []),
    "skipped in doubt": (task("skipped"), known(), []),
    "removed": (task("removed"), known(NAMED), []),
    "waits, has ended": (task("awaiting_input"), waits(NAMED, SUCCEEDED_7), []),
    "waits for a mailbox": (task("deferred"), waits(NAMED, mailbox=MAILBOX), [SUCCEED, FAIL]),
    "waits": (task("awaiting_input"), waits(NAMED), [SUCCEED, FAIL]),
    "waits for something else": (task("awaiting_input"), known(NAMED, name="a"), []),
    "doubt, retried": (task("up_for_retry"), known(), []),
    "at work": (task("running"), known(NAMED), []),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_the_table(row: str) -> None:
    now, start, expected = ROWS[row]
    assert kinds(now, start) == expected


BATCHES = {
    "cleared": (False, RunStatus.DOUBT, task(), KnownBatch(), []),
    "being sent": (True, RunStatus.STARTING, task("running"), KnownBatch(), []),
    "doubt": (True, RunStatus.DOUBT, task(), KnownBatch(), []),
    "ended": (True, RunStatus.ENDED, task(), KnownBatch(), []),
    "at work": (True, RunStatus.WAITING, task("running"), KnownBatch(), []),
    "waits": (
        True, RunStatus.WAITING, task("deferred"), KnownBatch(f"{FOLDER}?secret"), [SUCCEED, FAIL]
    ),
    "runs failed": (True, RunStatus.ENDED, task(), KnownBatch(FOLDER, has_ends=True), [SUCCEED]),
    "marked": (True, RunStatus.DOUBT, task("success"), KnownBatch(FOLDER, has_ends=True), []),
}  # fmt: skip


@pytest.mark.parametrize("row", BATCHES)
def test_a_batch(row: str) -> None:
    current, state, now, batch, expected = BATCHES[row]
    advice = advise_batch(now, batch, state, current)
    assert [action.kind.value for action in advice.actions] == expected


# What is said of several starts, or is left behind by one.
OTHERS: dict[str, tuple[TaskNow, list[TaskStart]]] = {
    "cleared, started": (task("queued", max_tries=2), [known(NAMED)]),
    "cleared, claimed": (task("queued", max_tries=2), [known(None, CLAIMED)]),
    "cleared, stopped": (task("queued", max_tries=2), [known(None, STOPPED)]),
    "made again, unreadable": (
        task("failed", try_number=0), [TaskStart(try_number=1, known=None)],
    ),
    "known, with a link": (task(), [known(LINKED)]),
    "succeeded, another was named": (task(), [known(None, SUCCEEDED_7, others=(known(NAMED).known,))]),
    "two that were not started": (task(), [known(NOTHING, name="a"), known(NOTHING, name="b")]),
    "two, one of which has a run": (task(), [known(NAMED, name="a"), known(NOTHING, name="b")]),
    "two, one of which has ended": (
        task(), [known(None, SUCCEEDED_7, name="a"), known(None, CLAIMED, name="b")],
    ),
    "two that were given": (
        task(), [known(NAMED, name="a", given="7"), known(name="b", given="8")],
    ),
    "two that were given what the task will refuse": (
        task(), [known(NAMED, name="a", given="8"), known(NAMED, name="b", given={"note": "x"})],
    ),
    "two that wait": (
        task("deferred"),
        [waits(NAMED, SUCCEEDED_7, name="a"), waits(NAMED, name="b", mailbox=MAILBOX)],
    ),
}  # fmt: skip


def test_what_is_said() -> None:
    golden.check("advice.txt", all_advice())


def all_advice() -> Iterator[str]:
    """Yield what is said of each task, with its actions."""
    for row, (now, start, _) in ROWS.items():
        yield in_words(row, advise(now, [start]))
    for row, (now, starts) in OTHERS.items():
        yield in_words(row, advise(now, starts))
    for row, (current, state, now, batch, _) in BATCHES.items():
        yield in_words(f"a batch: {row}", advise_batch(now, batch, state, current))


def in_words(row: str, advice: Advice) -> str:
    """Return what the tab has of a task."""
    lines = [f"## {row}"]
    lines += advice.sentences.values()
    for action in advice.actions:
        takes_result = " (takes a result)" if action.takes_result else ""
        of_names = f" ({action.names} names)" if action.names > 1 else ""
        lines += [f"[{action.label}]{takes_result}{of_names} {action.question}"]
        lines += [" ".join(map(repr, field)) for field in action.fields]
    return "\n".join(lines)


# What is known of a run ---------------------------------------------------------------------------

IN_TIME, LATE = (
    RunReports(end=End(LATER + timedelta(seconds=seconds), "success")) for seconds in (0, 1)
)
CLAIMED_LATE = RunReports(claim=Claim(AT), end=LATE.end)

STATES = [
    (task(), TaskStart(try_number=1, known=None), RunStatus.UNREADABLE),
    (task(), known(None, STOPPED), RunStatus.STOPPED),
    (task(), known(NOTHING), RunStatus.IDLE),
    (task(), known(), RunStatus.DOUBT),
    (task("running"), known(), RunStatus.STARTING),
    (task("running"), known(UNIDENTIFIED), RunStatus.DOUBT),
    # In its next try, the task does not send for this start.
    (task("running", try_number=2), known(), RunStatus.DOUBT),
    (task("running", max_tries=2), known(), RunStatus.DOUBT),
    (task("running"), known(NAMED), RunStatus.STARTED),
    (task("running"), known(None, CLAIMED), RunStatus.CLAIMED),
    (task("awaiting_input"), waits(NAMED), RunStatus.WAITING),
    (task("deferred"), waits(None, CLAIMED), RunStatus.WAITING),
    (task("awaiting_input"), known(NAMED), RunStatus.STARTED),
    (task("awaiting_input", max_tries=2), waits(NAMED), RunStatus.STARTED),
    (task("awaiting_input"), waits(NAMED, SUCCEEDED), RunStatus.ENDED),
    (task(), known(None, IN_TIME), RunStatus.ENDED),
    # The task had failed in doubt before, and does not have this end.
    (task(), known(None, LATE), RunStatus.DOUBT),
    (task(), known(None, CLAIMED_LATE), RunStatus.ENDED),
    (task("running"), known(None, LATE), RunStatus.ENDED),
    (task("success", max_tries=2), known(None, LATE), RunStatus.ENDED),
]


@pytest.mark.parametrize(("now", "start", "expected"), STATES)
def test_what_is_known_of_a_run(now: TaskNow, start: TaskStart, expected: RunStatus) -> None:
    assert state_of(now, start) is expected


# What an action does ------------------------------------------------------------------------------


def question(now: TaskNow, kind: str, *starts: TaskStart) -> str:
    (found,) = [action for action in advise(now, starts).actions if action.kind.value == kind]
    return found.question


@pytest.mark.parametrize(
    ("start", "is_second"),
    [
        (known(), True), (known(UNIDENTIFIED), True), (known(NAMED), True), (known(None, CLAIMED), True),
        (known(NAMELESS), True), (known(None, SUCCEEDED_7), True), (known(NOTHING), False),
        (known(None, STOPPED), False), (known(NAMED, FAILED), False),
    ],
)  # fmt: skip
def test_no_second_run_unasked(start: TaskStart, is_second: bool) -> None:
    assert ("second run" in question(task(), START, start)) is is_second
    both = question(task(), START, start, known(NOTHING, name="b"))
    assert ("second run" in both) is (start.known != known(NOTHING).known)


def test_no_run_was_started_is_said_only_in_doubt() -> None:
    revoked = known(NAMED)
    assert revoked.known
    revoked = TaskStart(try_number=1, known=revoked.known._replace(is_revoked=True))
    assert state_of(task(), revoked) is RunStatus.DOUBT
    labels = [action.label for action in advise(task(), [revoked]).actions]
    assert labels[1] == "Start another run"
    assert advise(task(), [known()]).actions[1].label == "No run was started: start one"


@pytest.mark.parametrize(
    ("kind", "state"), [(START, "failed"), (SUCCEED, "failed"), (SUCCEED, "deferred"), (FAIL, "deferred")]
)  # fmt: skip
def test_a_mailbox_that_the_page_cannot_read_is_named(kind: str, state: str) -> None:
    start = waits(NAMED, mailbox=f"{MAILBOX}?secret")
    assert f"{MAILBOX}, which" in question(task(state), kind, start)
    assert "secret" not in question(task(state), kind, start)


def test_what_was_given_can_be_taken_back() -> None:
    start = known(given="7")
    assert given_keys([start, known(name="b"), known(name="c", given=7)]) == [
        "workflow_automation_run",
        "workflow_automation_run/c",
    ]
    assert advise(task(), [start]).actions[-1].label == "Take back run 7"


@pytest.mark.parametrize("drops_state", [False, True])
def test_a_clear_of_airflow_3_4_keeps_the_state_only_if_it_is_told(drops_state: bool) -> None:
    now = task(drops_state=drops_state)
    text = advise(now, [known(given="7")]).sentences[""]
    assert ("Keep task state and resume" in text) is drops_state


def test_a_run_that_is_known_is_filled_in() -> None:
    for start, expected in (
        (known(NAMED), "7"),
        (known(), ""),
        (known(Outcome("started", AT, {"run_id": "7 "})), "7"),
        (known(given="8"), "8"),
        (known(NAMED, given="8"), "7"),
        (known(Outcome("started", AT, {"run_id": "7" * 1000})), "7" * 1000),
        (known(Outcome("started", AT, {"run_id": "7" * 1001})), ""),
        (known(given="8" * 1000), "8" * 1000),
        (known(given="8" * 1001), ""),
    ):
        (field,) = advise(task(), [start]).actions[0].fields
        assert field.run_id == expected


def test_two_hundred_fields() -> None:
    starts = [known(name=str(number)) for number in range(300)]
    action = advise(task(), starts).actions[0]
    assert (len(action.fields), action.names) == (200, 300)


# The runs that the task may have: those of the ledger, and no other decides it --------------------

ids = st.sampled_from(["1", "2", "3"])
maybe_ids = st.none() | ids


def known_starts() -> st.SearchStrategy[KnownStart]:
    reports = st.builds(
        RunReports,
        claim=st.none() | maybe_ids.map(lambda run_id: Claim(AT, run_id)),
        end=st.none() | maybe_ids.map(lambda run_id: End(AT, "success", run_id)),
        stopped=st.sampled_from([None, None, AT]),
        refused=st.lists(ids, max_size=2),
    )
    outcomes = st.sampled_from([None, NOTHING, UNIDENTIFIED, NAMELESS]) | ids.map(
        lambda run_id: Outcome("started", AT, {"run_id": run_id})
    )
    token = st.sampled_from([None, TOKEN])
    start = token.map(lambda one: Start(1, 0, AT, 0, token_hash=one))
    return st.builds(KnownStart, start=start, outcome=outcomes, reports=reports)


@given(st.lists(known_starts(), min_size=1, max_size=3))
def test_continue_is_offered_only_if_there_is_a_run_for_it(starts: list[KnownStart]) -> None:
    *others, last = starts
    found = TaskStart(try_number=1, known=last, others=tuple(others)).can_continue
    tried = ("1", "2", "3", "new")
    assert found is any(why_not(run_id, last, others) is None for run_id in tried)


@given(known_starts(), st.sampled_from([None, "failed", "success", "running", "awaiting_input"]))
def test_a_doubt_has_an_action(last: KnownStart, state: str | None) -> None:
    start = TaskStart(try_number=1, known=last)
    now = task(state, max_tries=2)
    if state == "failed":
        assert START in kinds(now, start)
    elif state != "awaiting_input":
        assert kinds(now, start) == []


@pytest.mark.parametrize("place", [0, 1])
def test_none_where_an_entry_cannot_be_read(place: int) -> None:
    starts: list[KnownStart | None] = [known().known, known(NOTHING).known]
    starts[place] = None
    assert not TaskStart(try_number=1, known=starts[1], others=(starts[0],)).can_continue
