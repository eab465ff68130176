"""
What is decided by the record.

Every combination of what is known, against the rules as the documentation states them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.client.redaction import Redactor
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.record.entries import (
    Claim,
    End,
    LastMessage,
    Outcome,
    RunReports,
    Start,
    entry_of,
    read_entry,
    read_reports,
    read_start,
    run_result,
)
from workflow_automation_provider.execution.record.start_decision import (
    Decision,
    KnownStart,
    StartOptions,
    check_adopted,
    decide,
    why_not,
)

from ...starts import mentions

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = run_result("1")
NO, YES = (False, True)

SPOKEN = [
    RunReports(),
    RunReports(claim=Claim(AT, "1")),
    RunReports(end=End(AT, "success", "1")),
    RunReports(claim=Claim(AT), end=End(AT, "failed")),
    RunReports(refused=("3",)),
    RunReports(claim=Claim(AT, "1"), stopped=AT),
    RunReports(stopped=AT),
]
OUTCOMES = [
    None,
    Outcome(status="started", at=AT, run=RUN),
    Outcome(status="started", at=AT, run=run_result(None, response={})),
    Outcome(status="not started", at=AT),
    Outcome(status="unidentified", at=AT, reason="No JSON"),
]


def start(**fields):
    return Start(**{"try_number": 1, "number": 0, "at": AT, "max_tries": 3, **fields})


def known_starts():
    """Yield every combination of what can be known."""
    yield None
    for max_tries, request, run, earlier in product(
        (3, 4), ("a", "b"), (None, RUN), ((), ((0, 0),))
    ):
        fields = {"max_tries": max_tries, "request": request, "run": run, "earlier": earlier}
        for outcome in OUTCOMES if run is None else [None]:
            yield KnownStart(start=start(**fields), outcome=outcome)
            for reports, (revoked, closed) in product(SPOKEN, ((NO, NO), (YES, NO), (YES, YES))):
                for mailbox in ("", "s3://bucket/d.json"):
                    yield KnownStart(
                        start=start(**fields, token_hash="d", mailbox=mailbox),
                        outcome=outcome,
                        reports=reports,
                        is_revoked=revoked and not mailbox,
                        is_settled=closed,
                    )


def status(known):
    return known.outcome.status if known.outcome else "in doubt"


# The table of the ledger's documentation: the first row that fits.
ROWS = [
    (
        "a person has entered a run that it does not name, or names with another max_tries",
        lambda f, _, adopted: (
            adopted and not (f and f.start.max_tries == 3 and f.start.run == {"run_id": adopted})
        ),
        Decision.ADOPT,
    ),
    ("there is none", lambda f, *_: f is None, Decision.SEND),
    ("it has another max_tries", lambda f, *_: f.start.max_tries != 3, Decision.SEND),
    (
        "a start by name that asked for something else",
        lambda f, a, _: a.is_named and not f.start.run and f.start.request != a.request,
        Decision.CHANGED,
    ),
    (
        "told to stop, and not entered",
        lambda f, *_: f.reports.stopped and not f.start.run,
        Decision.SEND,
    ),
    (
        "its run failed, and is to be started again",
        lambda f, a, _: a.replaces_failed and f.reports.end and f.reports.end.status == "failed",
        Decision.SEND,
    ),
    ("names a run that a person entered", lambda f, *_: f.start.run, Decision.RETURN),
    ("its run claimed, or ended", lambda f, *_: f.reports.claim or f.reports.end, Decision.RETURN),
    (
        "started, and not revoked",
        lambda f, *_: status(f) == "started" and not f.is_revoked,
        Decision.RETURN,
    ),
    (
        "without a token: not started, now and before",
        lambda f, *_: not f.start.token_hash and status(f) == "not started" and not f.start.earlier,
        Decision.SEND,
    ),
    (
        "without a token: unidentified",
        lambda f, *_: not f.start.token_hash and status(f) == "unidentified",
        Decision.UNIDENTIFIED,
    ),
    (
        "without a token: in doubt, with start_again",
        lambda f, a, _: not f.start.token_hash and a.on_unknown_start == "start_again",
        Decision.SEND,
    ),
    ("without a token: in doubt", lambda f, *_: not f.start.token_hash, Decision.DOUBT),
    ("not settled", lambda f, *_: not f.is_settled, Decision.SETTLE),
    ("closed: not started", lambda f, *_: status(f) == "not started", Decision.SEND),
    ("closed: unidentified", lambda f, *_: status(f) == "unidentified", Decision.UNIDENTIFIED),
    ("closed: in doubt, with fail", lambda _, a, __: a.on_unknown_start == "fail", Decision.DOUBT),
    (
        "in doubt, with a mailbox and claim",
        lambda f, a, _: f.start.mailbox and a.on_unknown_start == "claim",
        Decision.DOUBT,
    ),
    ("closed: in doubt", lambda *_: True, Decision.SEND),
]


def test_decide_takes_the_first_row_that_fits():
    fitted = set()
    policies: Any = ("fail", "claim", "start_again")
    after_failed: Any = ("fail", "start_again")
    asked_for = [
        StartOptions(3, "a", is_named, is_resumed, on_unknown_start, on_run_failed)
        for is_named, is_resumed, on_unknown_start, on_run_failed in product(
            (NO, YES), (NO, YES), policies, after_failed
        )
    ]
    for known, options, adopted in product(known_starts(), asked_for, (None, "1", "2")):
        row, decision = next(
            (row, then) for row, fits, then in ROWS if fits(known, options, adopted)
        )
        assert decide(known, options, adopted) is decision, (row, known, options, adopted)
        fitted.add(row)
    assert fitted == {row for row, *_ in ROWS}


@pytest.mark.parametrize(
    "last", [None, KnownStart(start=start(), outcome=Outcome(status="started", at=AT, run=RUN))]
)
def test_any_run_can_be_adopted_where_no_start_has_a_token(last):
    assert why_not("2", last, []) is None
    for reports in (RunReports(refused=("2",)), RunReports(claim=Claim(AT, "1"))):
        assert why_not("2", KnownStart(start=start(token_hash="d"), reports=reports), [])


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (OUTCOMES[0], "A run may have been started"),
        (OUTCOMES[1], "started run 1."),
        (OUTCOMES[2], "without a run_id"),
        (OUTCOMES[4], "whose run_id is unknown"),
    ],
)
def test_what_a_start_may_have_left_is_known_until_it_is_over(outcome, words):
    left = KnownStart(start=start(earlier=((0, 0),)), outcome=outcome)
    assert left.with_run == ((0, 0), (1, 0))
    assert left.text(None).startswith("try 1 (2026-01-01T00:00:00+00:00) ")
    assert words in left.text(None)
    assert left._replace(reports=RunReports(stopped=AT)).with_run == ((0, 0),)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_start_is_described_with_the_reports_of_its_run(outcome):
    reports = RunReports(claim=Claim(AT, "7", "http://there/7"), end=End(AT, "failed", "7"))
    text = KnownStart(start=start(), outcome=outcome, reports=reports).text(Redactor([]))
    assert mentions(text, "run 7", "http://there/7", "failed")


def test_an_id_that_the_run_has_said_is_withheld_without_the_connection():
    reports = RunReports(claim=Claim(AT, "7"))
    text = KnownStart(start=start(), reports=reports).text(None)
    assert mentions(text, "cannot be shown")
    assert "7" not in text


TIMES = st.datetimes(timezones=st.just(UTC))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
MAYBE_TEXT = st.none() | TEXTS
PLACES = st.tuples(st.integers(1), st.integers(0))
RUNS = st.builds(run_result, MAYBE_TEXT, MAYBE_TEXT, MAYBE_TEXT).filter(bool)
FIELDS = {
    "try_number": st.integers(1),
    "number": st.integers(0),
    "at": TIMES,
    "max_tries": st.integers(0),
    "request": MAYBE_TEXT,
    "completion_timeout": st.none() | st.floats(0.001, 1e8),
    "heartbeat_timeout": st.none() | st.floats(0.001, 1e8),
    "run": st.none() | st.builds(run_result, TEXTS, MAYBE_TEXT, MAYBE_TEXT),
    "issuer": st.none() | PLACES,
    "conn_id": MAYBE_TEXT,
    "flow_id": MAYBE_TEXT,
    "earlier": st.lists(PLACES, max_size=3).map(tuple),
}
WITHOUT_URL = st.builds(Start, **FIELDS)
WITH_URL = st.builds(
    Start,
    token_hash=TEXTS,
    callback_url=st.just("") | TEXTS,
    mailbox=st.just("") | TEXTS,
    **FIELDS,
)
STARTS = WITHOUT_URL | WITH_URL
ENDS = st.builds(
    End,
    TIMES,
    st.sampled_from(["success", "failed"]),
    MAYBE_TEXT,
    st.none() | st.sampled_from([0, False, "", [], {}, {"a": [1.5]}]),
    MAYBE_TEXT,
)
SPEECH = st.builds(
    RunReports,
    claim=st.none() | st.builds(Claim, TIMES, MAYBE_TEXT, MAYBE_TEXT),
    end=st.none() | ENDS,
    stopped=st.none() | TIMES,
    refused=st.lists(TEXTS).map(tuple),
)
STATUSES = st.sampled_from(["started", "not started", "unidentified"])


@given(
    STARTS,
    st.builds(Outcome, status=STATUSES, at=TIMES, run=st.none() | RUNS, reason=st.just("") | TEXTS),
)
def test_a_start_and_its_outcome_are_read_as_written(start, outcome):
    assert read_start(start.place, stored(start)) == start
    assert read_entry(Outcome, "", stored(outcome)) == outcome


@given(SPEECH)
def test_reports_are_read_as_written(reports):
    assert read_reports("d", stored(reports)) == reports


def stored(what):
    """Return an entry, which has only what JSON has, where a newer version has written more."""
    entry = entry_of(what)
    assert json.loads(json.dumps(entry)) == entry
    return {**entry, "newer": 1}


def test_a_run_has_last_reported_by_its_claim_or_its_last_message():
    claimed_at, message_at = AT + timedelta(minutes=1), AT + timedelta(minutes=2)
    known = KnownStart(start=start(), reports=RunReports(claim=Claim(claimed_at, "7")))
    assert known.last_report_at(LastMessage()) == claimed_at
    assert known.last_report_at(LastMessage(message_at)) == message_at


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        (RunReports(stopped=AT), "it was told to stop"),
        (RunReports(refused=("7",)), "it was told to stop"),
        (RunReports(claim=Claim(AT, "8")), "another run has the task"),
    ],
)
def test_a_run_that_was_adopted_has_lost_the_task(reports, why):
    check_adopted("7", RunReports(claim=Claim(AT, "7")))
    with pytest.raises(InvalidRequestError) as caught:
        check_adopted("7", reports)
    assert mentions(caught.value.message, "run 7", why)
