"""What each response means, as values: which outcome, and what is quoted of the service's words."""

from __future__ import annotations

import base64
import contextlib
import gzip
import importlib
import json
import tracemalloc
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import httpcore
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_automation_provider.client.files import upload_bodies
from workflow_automation_provider.client.protocol import (
    Operation,
    Response,
    Run,
    trigger_request,
    upload_request,
)
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.client.responses.body import RESPONSE_LIMIT
from workflow_automation_provider.client.responses.results import read_run, read_upload
from workflow_automation_provider.client.responses.retry_after import retry_after_of
from workflow_automation_provider.exceptions import (
    BusyError,
    Code,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

from . import conftest
from .conftest import check
from .forms import FORMS, nowhere


def _serde() -> Any:
    """Return Airflow's serializer of XComs, which has moved in 3.2."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("airflow.sdk.serde")
    return importlib.import_module("airflow.serialization.serde")


SERDE = _serde()
KEY = "wak-Zq7xK9Tbw2"
NOT_TEXT = "(not shown: it is neither JSON nor plain text)"
A_PAGE = "(a web page, perhaps of a gateway or login in front of the service)"
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
    read = read_upload if operation is UPLOAD else read_run
    return conftest.outcome_of(lambda: read(response, REQUESTS[operation], redactor))


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


# Which outcome ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("status", [300, 302])
@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({}, "'another URL'"),
        ({"location": "https://x.example/é"}, r"'https://x.example/\xe9'"),
        ({"location": "x" * 501}, f"'{'x' * 500}'"),
        ({"location": f"https://x.example/{KEY}"}, WITHHELD),
        ({"location": "https://[x"}, "'https://[x'"),
    ],
)
def test_where_a_redirect_points_to(status, headers, shown):
    assert shown in failure_of(BY_KEY, status, headers=headers).next_step
    assert shown not in failure_of(BY_KEY, 400, headers=headers).next_step


@pytest.mark.parametrize("status", [201, 202, 204])
def test_the_location_of_a_run_that_is_not_named(status):
    headers = {"location": "/runs/5"}
    failure = check(failure_of(BY_KEY, status, headers=headers), UnidentifiedError)
    assert "'/runs/5'" in failure.next_step
    headers = {"location": f"/runs/{KEY}"}
    assert WITHHELD in failure_of(BY_KEY, status, headers=headers).next_step


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        (" 3.0 ", 3),
        ("2.5", 2.5),
        ("9" * 10_000, 604800),
        ("604801", 604800),
        ("Fri, 06 Nov 1970 08:49:00 GMT", 0),
        ("Fri, 06 Nov 9026 08:49:00 GMT", 604800),
        ("", None),
        ("-5", None),
        ("5, 7", None),
        ("3 4", None),
        ("1e3", None),
        ("٣", None),
        ("soon", None),
        ("Fri, 99 Nov 2026 08:49:37 GMT", None),
        (f"Fri, 06 Nov {'9' * 20} 08:49:37 GMT", None),
    ],
)
def test_retry_after(value, seconds):
    assert retry_after_of(Response(503, {"retry-after": value}, b"")) == seconds


@pytest.mark.parametrize(("operation", "status"), [(BY_PATH, 429), (BY_KEY, 429), (UPLOAD, 503)])
@pytest.mark.parametrize(
    "form",
    [
        "%a, %d %b %Y %H:%M:%S GMT",
        "%a, %d %b %Y %H:%M:%S -0000",
        "%A, %d-%b-%y %H:%M:%S GMT",
        "%a %b %d %H:%M:%S %Y",
    ],
)
def test_any_http_date_is_waited_for(operation, status, form):
    when = datetime.now(UTC) + timedelta(seconds=60)
    failure = failure_of(operation, status, headers={"retry-after": when.strftime(form)})
    check(failure, BusyError)
    assert 50 < failure.retry_after <= 60


@given(
    st.text()
    | st.integers().map(str)
    | st.datetimes(timezones=st.timezones()).map(datetime.isoformat)
    | st.from_regex(
        r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{1,5} \d\d:\d\d:\d\d( [A-Z]{1,4}| [+-]\d{4})?",
        fullmatch=True,
    ),
)
def test_retry_after_never_fails(value):
    seconds = retry_after_of(Response(503, {"retry-after": value}, b""))
    assert seconds is None or 0 <= seconds <= timedelta(days=7).total_seconds()


# The service's words ------------------------------------------------------------------------------


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
    "kind", ["application/octet-stream", "message/http", "application/json; charset=no-such"]
)
def test_what_may_write_a_secret_otherwise_is_not_shown(kind):
    body = b'"\xff"' if "json" in kind else KEY.encode().hex().encode()
    assert failure_of(BY_KEY, 409, body, headers={"content-type": kind}).quote == NOT_TEXT


def test_a_web_page_does_not_say_that_files_were_accepted():
    """What a web page is, test_promise.py shows."""
    headers = {"content-type": "Text/HTML; charset=utf-8"}
    failure = failure_of(UPLOAD, 200, b"<p>Sign in</p>", headers=headers)
    check(failure, OutcomeUnknownError, quote=A_PAGE)
    check(failure_of(UPLOAD, 200, headers=headers, error=CUT_OFF), OutcomeUnknownError)
    assert outcome_of(UPLOAD, Response(200, headers, b" ")) == ""


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("status", [200, 302, 307, 400, 401, 403, 404, 413, 422, 429, 500, 502])
def test_a_web_page_is_called_one_and_not_quoted(operation, status):
    page = b"<!DOCTYPE html><html><head><title>Access denied</title><p>x"
    failure = failure_of(operation, status, page)
    assert failure.quote == A_PAGE
    assert "Compare the inputs" not in failure.next_step
    assert failure.code != Code.KEY_REJECTED
    if status == 200:
        check(failure, OutcomeUnknownError if operation is UPLOAD else UnidentifiedError)
        assert failure.consequence.startswith(("The files may", "A run may"))
        assert "base URL" in failure.next_step


def test_json_that_is_declared_as_a_web_page_is_json():
    """As PHP does, unless it is told otherwise."""
    headers = {"content-type": "text/html"}
    for text in ('{"ok": true}', "[1]"):
        assert outcome_of(UPLOAD, Response(200, headers, f" {text}".encode())) == text
    run = outcome_of(BY_PATH, Response(201, headers, b'{"run_id": 7}'))
    assert run.run_id == "7"
    check(failure_of(BY_PATH, 201, b'{"run_', headers=headers, error=CUT_OFF), UnidentifiedError)


def test_a_declared_charset_hides_nothing():
    headers = {"content-type": "text/plain; charset=utf-16"}
    for part in (KEY, KEY[1:]):
        assert failure_of(BY_KEY, 409, part.encode(), headers=headers).quote == WITHHELD
    for codec in ("utf-16", "cp037"):
        quote = failure_of(BY_KEY, 409, KEY.encode(codec), headers=headers).quote
        assert quote in (WITHHELD, NOT_TEXT)


# The run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
@pytest.mark.parametrize(
    ("body", "options", "why"),
    [
        (b" \n", {}, "empty"),
        (b'{"run_id": "7"} x', {}, "not JSON"),
        (b'{"run_id": "\xff"}', {}, "not JSON"),
        (b"\x1b\x01\x00", {"headers": {"content-encoding": "br"}}, "Content-Encoding 'br'"),
        (gzip.compress(b"no JSON", mtime=0), {}, "not JSON"),
        (gzip.compress(b" " * 2**20 + b"{}", mtime=0), {}, "the limit is 1024 KiB"),
        (b"x", {"headers": {"content-encoding": KEY}}, WITHHELD),
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


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize(
    ("encode", "codings"),
    [
        (bytes, ["UTF-8", "none", "aws-chunked", "identity, identity", "gzip", "br"]),
        (gzip.compress, ["gzip", "x-gzip", "identity", "", "deflate"]),
        (zlib.compress, ["deflate", "identity", "", "gzip"]),
    ],
)
def test_the_body_decides_how_it_is_read(operation, encode, codings):
    body = encode(b'{"run_id": "7", "words": "thanks"}')
    for coding in codings:
        headers = {"content-encoding": coding}
        outcome = outcome_of(operation, Response(201, headers, body))
        if operation is UPLOAD:
            assert outcome == '{"run_id": "7", "words": "thanks"}'
        else:
            assert (type(outcome), outcome.run_id) == (Run, "7")
        failure = failure_of(operation, 409, encode(b"No such flow"), headers=headers)
        assert failure.quote == "No such flow"


@pytest.mark.parametrize("text", ["x^", "x^ is a power", "K.thanks"])
@pytest.mark.parametrize("coding", ["", "deflate", "gzip"])
def test_text_that_looks_compressed_is_kept(text, coding):
    response = Response(201, {"content-encoding": coding}, text.encode())
    assert outcome_of(UPLOAD, response) == text


@pytest.mark.parametrize("size", [RESPONSE_LIMIT, RESPONSE_LIMIT + 1, 64 * RESPONSE_LIMIT])
def test_a_response_is_decompressed_up_to_the_limit(size):
    body = gzip.compress(b" " * (size - 2) + b"{}")
    tracemalloc.start()
    try:
        outcome = outcome_of(BY_KEY, Response(201, {}, body))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if size == RESPONSE_LIMIT:
        assert type(outcome) is Run
    else:
        check(outcome, UnidentifiedError, "the limit is 1024 KiB")
    assert peak < 8 * RESPONSE_LIMIT


def test_compressed_page_and_secret_are_found():
    page = gzip.compress(b"<html><p>Sign in</p></html>")
    check(failure_of(UPLOAD, 200, page), OutcomeUnknownError, quote=A_PAGE)
    assert failure_of(BY_KEY, 409, gzip.compress(KEY.encode())).quote == WITHHELD


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
@pytest.mark.parametrize(
    ("body", "options", "kind"),
    [
        (b'{"run_id": 7}', {}, Run),
        (b'{"run_id": 7.5}', {}, UnidentifiedError),
        (b'{"run_id": " "}', {}, UnidentifiedError),
        (b'{"run_id": "%b"}' % KEY.encode(), {}, UnidentifiedError),
        (b'{"run_id": "7"', {}, UnidentifiedError),
        (b'{"run_', {"error": CUT_OFF}, UnidentifiedError),
        (b"", {"error": CUT_OFF}, UnidentifiedError),
        (b'{"run_id": null}', {}, NotSentError),
        (b'{"ok": true}', {}, NotSentError),
        (b"[]", {}, NotSentError),
        (b"OK", {}, NotSentError),
        (b"", {}, NotSentError),
        (b"<html><p>run_id", {"error": CUT_OFF}, NotSentError),
    ],
)
def test_a_response_that_may_name_a_run_counts_whenever_it_came(operation, body, options, kind):
    """Of a request that was not sent whole, nothing but a run_id shows that it started a run."""
    outcome = outcome_of(operation, Response(201, {}, body, early=True, **options))
    assert type(outcome) is kind


@pytest.mark.parametrize(
    ("body", "response"),
    [
        (
            b'{"run_id": "7", "a\\u0000": ["b\\ud800", true, null]}',
            '{"run_id": "7", "a\\u0000": ["b\\ud800", true, null]}',
        ),
        (b'\xef\xbb\xbf{"run_id": "7"}', {"run_id": "7"}),
        ('{"run_id": "7"}'.encode("utf-16"), {"run_id": "7"}),
        (b'{"run_id": "7", "n": ' + b"1" * 5000 + b"}", {"run_id": "7", "n": "1" * 5000}),
        (b' {"run_id": "7", "n": [NaN]}', '{"run_id": "7", "n": [NaN]}'),
        (b'{"run_id": "7", "n": 1e999}', '{"run_id": "7", "n": 1e999}'),
    ],
)
def test_unusual_responses_that_name_the_run(body, response):
    run = run_of(body)
    assert (run.run_id, run.response) == ("7", response)


RESERVED = ["__classname__", "__id__", "__version__", "__data__", "__type", "__var", "__cache__"]
NAMES = st.sampled_from(RESERVED) | st.text(max_size=3)
KEPT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False)
    | st.sampled_from(["dict", "tuple", "builtins.tuple", 1])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


@given(KEPT, st.sampled_from([0, 40, 49, 50, 51, 200, 400]))
@example({"__classname__": 1}, 0)
@example({"a": [{"__id__": 1}]}, 0)
@example({"__type": "dict", "__var": {"a": 1}}, 0)
def test_any_response_is_kept_as_airflow_stores_it(document, depth):
    """It passes through the serializer of XComs, and to Airflow as JSON and as MessagePack."""
    for _ in range(depth):
        document = [document]
    kept = run_of(document, operation=BY_KEY).response
    assert SERDE.deserialize(json.loads(json.dumps(SERDE.serialize(kept)))) == kept
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept)) == kept
    json.dumps(kept, allow_nan=False, ensure_ascii=False).encode()
    if isinstance(kept, str) and not isinstance(document, str):
        assert json.loads(kept) == document


# Secrets ------------------------------------------------------------------------------------------

NUMBER = "73019482650173846"


@pytest.mark.parametrize(
    "document",
    [
        {"run_id": "7", "n": int(NUMBER)},
        {"run_id": "7", "a": {NUMBER: None}},
        {"run_id": "7", NUMBER[:6]: NUMBER[6:]},
        {"run_id": NUMBER[0], NUMBER[1:]: None},
        {"run_id": "7", "a": base64.b64encode(NUMBER.encode()).decode()},
    ],
)
def test_kept_response_is_withheld_where_the_key_is_anywhere_in_it(document):
    key = NUMBER[:12] if "n" in document else NUMBER
    for redacted in ({"key": key}, {"key": "another-key", "secrets": [key]}):
        run = run_of(document, **redacted)
        assert (run.run_id, run.response) == ("7", WITHHELD)


@pytest.mark.parametrize(
    "body",
    [
        b'{"run_id": "7", "-1234-abcd": 1, "run_id": "hush"}',
        '{"run_id": "\\u0068ush-1234-abcd"}'.encode("utf-16"),
    ],
    ids=["a field that is there twice", "escapes in UTF-16"],
)
def test_kept_response_is_withheld_where_a_secret_is_in_it_once_it_is_parsed(body):
    assert run_of(body, secrets=["hush-1234-abcd"]).response == WITHHELD


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
def test_parts_of_the_key_count_in_free_text_alone(operation):
    """Many services begin their keys and their runs' ids with the id of the account."""
    key, run_id = "ws-51HqLyjWDarjtT1zdp7dc.Xk2", "ws-51HqLyjWDarjtT1zdp7dc-1001"
    link = f"https://x.example/{run_id}"
    document = {"run_id": run_id, "run_link": link}
    run = run_of(document, operation=operation, key=key)
    assert (run.run_id, run.run_link, run.response) == (run_id, link, document)
    for echo in ({"a": run_id}, {"a": {"run_id": run_id}}):
        run = run_of(document | echo, operation=operation, key=key)
        assert (run.run_id, run.run_link, run.response) == (run_id, link, WITHHELD)
    whole = {"run_id": "7", "run_link": f"https://x.example/{key.replace('.', '%2E')}"}
    run = run_of(whole, operation=operation, key=key)
    assert (run.run_id, run.run_link, run.response) == ("7", None, WITHHELD)
    twice = f'{{"a": "{run_id}", "a": 1, "__id__": 1, "run_id": "7"}}'.encode()
    assert run_of(twice, operation=operation, key=key).response == WITHHELD


def test_a_part_of_the_key_counts_in_a_response_that_is_no_object():
    key = "ws-51HqLyjWDarjtT1zdp7dc.Xk2"
    run = run_of(["ws-51HqLyjWDarjtT1zdp7dc-1001"], operation=BY_KEY, key=key)
    assert run.response == WITHHELD


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
def test_another_secret_withholds_no_run_id(operation):
    document = {"run_id": "hush-1234", "run_link": "https://x.example/hush-1234"}
    run = run_of(document, operation=operation, secrets=["Bearer hush-1234"])
    assert (run.run_id, run.run_link, run.response) == ("hush-1234", None, WITHHELD)
