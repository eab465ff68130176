"""What each response means, as values: which outcome, and what is quoted of the service's words."""

from __future__ import annotations

import base64
import gzip
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.client import responses
from workflow_automation_provider.client.files import upload_bodies
from workflow_automation_provider.client.protocol import (
    Operation,
    Response,
    Run,
    trigger_request,
    upload_request,
)
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

from . import conftest
from .conftest import check
from .forms import FORMS, nowhere

KEY = "wak-Zq7xK9Tbw2"
NOT_TEXT = "(not shown: it is neither JSON nor plain text)"
CUT_OFF = httpcore.ReadError("The cable broke.")
BASE_URL = "https://service.example/api"
BY_PATH, BY_KEY, UPLOAD = Operation
REQUESTS = {
    BY_PATH: trigger_request(BASE_URL, {}, "demo-flow"),
    BY_KEY: trigger_request(BASE_URL, {}),
    UPLOAD: upload_request(BASE_URL, "demo-flow", *upload_bodies("demo-flow", "7", [{}])),
}


def outcome_of(operation, response, *, key=KEY, secrets=()):
    redactor = Redactor(secrets, key=key)
    return conftest.outcome_of(lambda: responses.read(response, REQUESTS[operation], redactor))


def run_of(body, *, operation=BY_PATH, **redacted):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    run = outcome_of(operation, Response(201, {"content-encoding": "identity"}, body), **redacted)
    assert type(run) is Run, run
    return run


def failure_of(operation, status, body=b"", *, headers=None, **options):
    failure = outcome_of(operation, Response(status, headers or {}, body, **options))
    assert isinstance(failure, WorkflowAutomationError), failure
    assert failure.status == status
    assert KEY not in f"{failure!r}{failure}{vars(failure)}"
    return failure


# Which outcome --------------------------------------------------------------------------------------------


def kind_of(operation, status, *, early, seconds):
    if status in (425, 429) or (status == 408 and (early or operation is UPLOAD)):
        return BusyError
    if status == 503 and seconds and (early or operation is UPLOAD):
        return BusyError
    if 300 <= status < 500 and status not in (302, 303, 408):
        return RejectedError
    return NotSentError if early else OutcomeUnknownError


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("operation", Operation)
def test_every_status_has_its_outcome(operation, early):
    """Retry-After makes nothing else busy."""
    for status in (*range(100, 200), *range(300, 600)):
        for headers, seconds in (({}, None), ({"retry-after": "17"}, 17)):
            failure = failure_of(operation, status, b"later", headers=headers, early=early)
            kind = kind_of(operation, status, early=early, seconds=seconds)
            check(failure, kind, str(status), retry_after=seconds, quote="later")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
RUNS = st.fixed_dictionaries({"run_id": JSON, "run_link": JSON}).map(json.dumps)


@given(
    st.sampled_from(Operation),
    st.sampled_from([200, 201, 302, 400, 429, 503]),
    st.dictionaries(st.sampled_from(["content-type", "content-encoding", "location"]), st.text()),
    st.binary() | (RUNS | JSON.map(json.dumps)).map(str.encode),
)
def test_any_response_has_an_outcome(operation, status, headers, body):
    outcome = outcome_of(operation, Response(status, headers, body))
    expected = str if operation is UPLOAD else Run
    assert isinstance(outcome, expected | WorkflowAutomationError)
    json.dumps(outcome.response if isinstance(outcome, Run) else str(outcome), allow_nan=False)


PAGE = Path(__file__).parents[3] / "docs" / "promises.md"


@pytest.mark.parametrize(
    ("kind", "operation", "headers"),
    [("BusyError", UPLOAD, {"retry-after": "1"}), ("OutcomeUnknownError", BY_KEY, {})],
)
def test_the_page_names_the_statuses(kind, operation, headers):
    (row,) = re.findall(
        rf"^\| `{kind}` \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    found = {
        status
        for status in range(300, 600)
        if type(failure_of(operation, status, headers=headers)).__name__ == kind
    }
    named = {int(number) for number in re.findall(r"\b\d{3}\b", row)}
    assert named <= found
    assert found <= named | (set(range(500, 600)) if "any other 5xx" in row else set())


@pytest.mark.parametrize("status", [300, 302])
@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({}, "'another URL'"),
        ({"location": "https://x.example/é"}, r"'https://x.example/\xe9'"),
        ({"location": "x" * 501}, f"'{'x' * 500}'"),
        ({"location": f"https://x.example/{KEY}"}, WITHHELD),
    ],
)
def test_where_a_redirect_points_to(status, headers, shown):
    assert shown in failure_of(BY_KEY, status, headers=headers).next_step
    assert shown not in failure_of(BY_KEY, 400, headers=headers).next_step


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0),
        ("9" * 10_000, 604800),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7),
        ("Sun, 06 Nov 1994 08:49:37 -0000", 7),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0),
        ("Sun, 06 Nov 1994 09:49:37 +0100", 7),
        ("", None),
        ("-5", None),
        ("٣", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
        (f"Sun, 06 Nov {'9' * 20} 08:49:37 GMT", None),
    ],
)
def test_retry_after(monkeypatch, value, seconds):
    now = datetime(1994, 11, 6, 8, 49, 30, tzinfo=UTC)
    monkeypatch.setattr(responses, "datetime", Mock(now=lambda zone: now if zone is UTC else None))
    assert responses.retry_after(value) == seconds


@given(
    st.text()
    | st.integers().map(str)
    | st.from_regex(
        r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{1,5} \d\d:\d\d:\d\d( [A-Z]{1,4}| [+-]\d{4})?",
        fullmatch=True,
    )
)
def test_retry_after_never_fails(value):
    seconds = responses.retry_after(value)
    assert seconds is None or 0 <= seconds <= timedelta(days=7).total_seconds()


# The service's words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "quote"),
    [
        (b"1 < 2, and 3 > 2", "1 < 2, and 3 > 2"),
        (b'{"a": "<b>"}', '{"a": "<b>"}'),
        (b'"<b>"', "<b>"),
        (b" a\t\r\nb\0c\x1b[31m ", "a b c [31m"),
        ("ä\u202eb\u2028c\x85d".encode(), "ä b c d"),
        (b"x" * 500, "x" * 500),
        (b"x" * 501, f"{'x' * 500}…"),
        (KEY.encode(), WITHHELD),
        (b" \r\n\0", ""),
        (b"No such <B>flow", NOT_TEXT),
        (b"No such flow</p>", NOT_TEXT),
        (b"<!-- -->", NOT_TEXT),
        (b"a\xffb", NOT_TEXT),
    ],
)
def test_words_are_quoted_in_one_line(body, quote):
    assert failure_of(BY_KEY, 409, body).quote == quote


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'"2 files received"', "2 files received"),
        (b'" a "', " a "),
        (b'"\\u0000\\ud800"', "\ufffd?"),
        (b" thanks\n", "thanks"),
        (b"", ""),
        (b'{"n": ' + b"1" * 5000 + b"}", '{"n": ' + "1" * 5000 + "}"),
        (b"[" * 100_000, "[" * 100_000),
        (f'"{KEY}"'.encode(), WITHHELD),
        (b"2 fi\xff", NOT_TEXT),
    ],
)
def test_response_to_an_upload(body, text):
    assert outcome_of(UPLOAD, Response(200, {}, body)) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [(b'"2 fi', "(not shown: it was cut off after 5 bytes: The cable broke)"), (b" \n", "")],
)
def test_what_was_cut_off_is_not_shown(body, text):
    assert outcome_of(UPLOAD, Response(200, {}, body, CUT_OFF)) == text
    assert failure_of(BY_KEY, 409, body, error=CUT_OFF).quote == text


@pytest.mark.parametrize(
    "kind", ["application/octet-stream", "message/http", "application/json; charset=latin-1"]
)
def test_what_may_write_a_secret_otherwise_is_not_shown(kind):
    body = b'"\xff"' if "json" in kind else KEY.encode().hex().encode()
    assert failure_of(BY_KEY, 409, body, headers={"content-type": kind}).quote == NOT_TEXT


def test_a_web_page_does_not_say_that_files_were_accepted():
    """What a web page is, test_promise.py shows."""
    headers = {"content-type": "Text/HTML; charset=utf-8"}
    failure = failure_of(UPLOAD, 200, b"<p>Sign in</p>", headers=headers)
    check(failure, OutcomeUnknownError, quote=NOT_TEXT)
    check(failure_of(UPLOAD, 200, headers=headers, error=CUT_OFF), OutcomeUnknownError)
    assert outcome_of(UPLOAD, Response(200, headers, b" ")) == ""


# The run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
@pytest.mark.parametrize(
    ("body", "options", "why"),
    [
        (b" \n", {}, "empty"),
        (b'{"run_id": "7"} x', {}, "not JSON"),
        (b'{"run_id": "\xff"}', {}, "not JSON"),
        (gzip.compress(b"{}", mtime=0), {"headers": {"content-encoding": " GZip "}}, "'gzip'"),
        (b"{}", {"headers": {"content-encoding": KEY}}, WITHHELD),
        (b'{"run_', {"error": CUT_OFF}, "The cable broke"),
        (b"[" * 100_000 + b"]" * 100_000, {}, "recursion"),
    ],
)
def test_a_run_whose_response_cannot_be_used(operation, body, options, why):
    check(failure_of(operation, 201, body, **options), UnidentifiedError, why)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[]", "no run_id"),
        (b'{"run_id": " "}', "neither text"),
        (b'{"run_id": true}', "neither text"),
        (b'{"run_id": 1.50}', "neither text"),
        (b'{"run_id": NaN}', "neither text"),
        (b'{"run_id": "a\\u0000"}', "neither text"),
        (b'{"run_id": "%b"}' % KEY.encode(), "API key"),
    ],
)
def test_a_run_id_is_needed_by_path_only(body, why):
    check(failure_of(BY_PATH, 201, body), UnidentifiedError, why)
    assert run_of(body, operation=BY_KEY).run_id is None


@pytest.mark.parametrize("run_id", [" a ", -7, 9007199254740993, 2**70])
def test_run_id_is_kept_digit_for_digit(run_id):
    run = run_of({"run_id": run_id, "run_link": "https://x.example/7"})
    assert (run.run_id, run.run_link, run.flow_id) == (
        str(run_id),
        "https://x.example/7",
        "demo-flow",
    )


@given(st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_in_the_response_are_numbers(number):
    run = run_of({"run_id": "7", "n": number})
    assert run.response == {"run_id": "7", "n": number}
    json.dumps(run.response, allow_nan=False)


@pytest.mark.parametrize(
    ("body", "response"),
    [
        (
            b'{"run_id": "7", "a\\u0000": ["b\\ud800", true, null]}',
            {"run_id": "7", "a\ufffd": ["b?", True, None]},
        ),
        (b'\xef\xbb\xbf{"run_id": "7"}', {"run_id": "7"}),
        ('{"run_id": "7"}'.encode("utf-16"), {"run_id": "7"}),
        (b' {"run_id": "7", "n": [NaN]}', '{"run_id": "7", "n": [NaN]}'),
        (b'{"run_id": "7", "n": 1e999}', '{"run_id": "7", "n": 1e999}'),
    ],
)
def test_unusual_responses_that_name_the_run(body, response):
    run = run_of(body)
    assert (run.run_id, run.response) == ("7", response)


# Secrets ------------------------------------------------------------------------------------------------

NUMBER = "73019482650173846"


@pytest.mark.parametrize(
    "document",
    [
        {"run_id": "7", "n": int(NUMBER)},
        {"run_id": "7", "a": {NUMBER: None}},
        {"run_id": "7", NUMBER[:6]: NUMBER[6:]},
        {"run_id": "7", "a": base64.b64encode(NUMBER.encode()).decode()},
    ],
)
def test_kept_response_is_withheld_where_the_key_is_anywhere_in_it(document):
    key = NUMBER[:12] if "n" in document else NUMBER
    for redacted in ({"key": key}, {"key": "another-key", "secrets": [key]}):
        run = run_of(document, **redacted)
        assert (run.run_id, run.response) == ("7", WITHHELD)


@pytest.mark.parametrize("echo", ["raw", "url, every character", "base64", "zero width"])
def test_run_id_and_link_that_contain_the_key_are_withheld(echo):
    echoed = FORMS[echo](KEY)
    document = {"run_id": f"run-{echoed}", "run_link": f"https://x.example/{echoed}"}
    run = run_of(document, operation=BY_KEY)
    assert (run.run_id, run.run_link, run.response) == (None, None, WITHHELD)
    failure = failure_of(BY_PATH, 201, json.dumps(document).encode())
    check(failure, UnidentifiedError, "API key")
    nowhere(KEY, f"{failure!r}{failure}{vars(failure)}")


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
def test_another_secret_withholds_no_run_id(operation):
    document = {"run_id": "hush-1234", "run_link": "https://x.example/hush-1234"}
    run = run_of(document, operation=operation, secrets=["Bearer hush-1234"])
    assert (run.run_id, run.run_link, run.response) == ("hush-1234", None, WITHHELD)
