"""What each response means, as values: which error, with which advice, and what is quoted of the service's words."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_automation_provider import failures
from workflow_automation_provider.client import responses
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.protocol import Operation, Response, trigger_request, upload_request
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.client.upload_body import upload_body
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    WorkflowAutomationError,
)

KEY = "wak-Zq7xK9Tbw2"
BASE_URL = "https://service.example/api"
BY_PATH, BY_KEY, UPLOAD = Operation
REQUESTS = {
    BY_PATH: trigger_request(BASE_URL, {}, "demo-flow"),
    BY_KEY: trigger_request(BASE_URL, {}),
    UPLOAD: upload_request(BASE_URL, "demo-flow", upload_body("demo-flow", "7", []), []),
}


def read(operation, response):
    request = REQUESTS[operation]
    assert request.operation is operation
    redact = Redactor([], key=KEY)
    outcome = responses.read(response, request, redact)
    return failures.response_of(outcome) if operation is UPLOAD else failures.run_of(outcome)


def error_of(operation, status, body=b"", *, headers=None, **options):
    with pytest.raises(WorkflowAutomationError) as caught:
        read(operation, Response(status, headers or {}, body, **options))
    error = caught.value
    title = REQUESTS[operation].title
    assert str(error).startswith((f"[{error.code}] {title} was ", f"[{error.code}] {title} returned "))
    assert error.status == status
    assert str(status) in str(error).splitlines()[0]
    assert str(error).removeprefix(f"[{error.code}] ").splitlines() == [
        line
        for line in (*error.message.splitlines(), error.consequence, *error.next_step.splitlines())
        if line
    ]
    assert KEY not in str(error)
    return error


# Which error --------------------------------------------------------------------------------------------


OF_A_TRIGGER = ("No run was started.", "A run may have been started.")
OF_AN_UPLOAD = ("No files were accepted.", "The files may have been accepted.")


def error_for(operation, status, *, early):
    if status in (425, 429) or (status == 408 and (early or operation is UPLOAD)):
        return BusyError
    if 300 <= status < 500 and status not in (302, 303, 408):
        return RejectedError
    return NotSentError if early else OutcomeUnknownError


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("operation", Operation)
def test_every_status_has_its_error(operation, early):
    for status in (*range(100, 200), *range(300, 600)):
        error = error_of(operation, status, early=early)
        assert type(error) is error_for(operation, status, early=early), status
        nothing, maybe = OF_AN_UPLOAD if operation is UPLOAD else OF_A_TRIGGER
        assert error.consequence == (maybe if type(error) is OutcomeUnknownError else nothing), status


PAGE = Path(__file__).parents[3] / "docs" / "promises.md"


@pytest.mark.parametrize(
    ("kind", "operation", "headers"),
    [("BusyError", UPLOAD, {"retry-after": "1"}), ("OutcomeUnknownError", BY_KEY, {})],
)
def test_the_page_names_the_statuses(kind, operation, headers):
    (row,) = re.findall(rf"^\| `{kind}` \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {
        status
        for status in range(300, 600)
        if type(error_of(operation, status, headers=headers)).__name__ == kind
    }
    named = {int(number) for number in re.findall(r"\b\d{3}\b", row)}
    assert named <= found
    assert found <= named | (set(range(500, 600)) if "any other 5xx" in row else set())


@pytest.mark.parametrize("status", [200, 201, 226, 299])
@pytest.mark.parametrize("operation", Operation)
def test_every_2xx_is_success(operation, status):
    response = read(operation, Response(status, {}, b'{"run_id": "7"}'))
    assert response == '{"run_id": "7"}' if operation is UPLOAD else response.run_id == "7"


def test_run_has_the_flow_of_its_request():
    response = Response(201, {}, b'{"run_id": "7", "flow_id": "other"}')
    assert read(BY_PATH, response).flow_id == "demo-flow"
    assert read(BY_KEY, response).flow_id is None


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (400, "was rejected: 400 Bad Request."),
        (499, "was rejected: 499."),
        (429, "was rejected as busy: 429 Too Many Requests."),
        (507, "returned 507 Insufficient Storage."),
        (599, "returned 599."),
    ],
)
def test_status_is_named(status, named):
    assert error_of(BY_KEY, status).message == f"POST {BASE_URL}/trigger {named}"


@pytest.mark.parametrize(("status", "named"), [(201, "201 Created"), (500, "500 Internal Server Error")])
@pytest.mark.parametrize("operation", Operation)
def test_early_response_says_that_not_all_was_sent(operation, status, named):
    error = error_of(operation, status, b"sign in", early=True)
    assert type(error) is NotSentError
    line, said = error.message.splitlines()
    assert f"returned {named} before all of it was sent" in line
    assert said == 'The service said: "sign in"'
    if status == 201:
        assert ", and was then aborted: " in line
        assert error.next_step == "Check the connection's base URL, and any proxy in front of the service."


# Advice -------------------------------------------------------------------------------------------------

INPUTS = "Compare the inputs with those that the workflow defines."
RUN_AND_FLOW = (
    "Check that the run belongs to the flow, and that the API key belongs to this flow and has not expired."
)
API_KEY = "Check the API key: it must be this workflow's, not expired, and have runs left."
ADDRESS = "Check the connection's base URL."
FILE_FORMAT = "Check that file_format is what the service expects."
PROXY = "Check the connection's proxy."
NO_KEY = "A trigger with a flow_id does not send the API key: to send it, leave flow_id out."
SHORTER = "Shorten the inputs: for example, pass the URL of a file instead of its content."
SMALLER = "Send fewer or smaller files in one request: see files_per_request and max_request_bytes."
GATEWAY = (
    "A gateway may have returned this after it had forwarded the request. If the service returns {0} only before it "
    "does anything, add {0} to the connection's busy_statuses."
)
REDIRECT = (
    "It redirects to 'another URL'. Redirects are never followed, because the API key would be sent "
    "there too: set the correct URL as the connection's base URL."
)
MAYBE_DONE = (
    "It redirects to 'another URL': the result, a login page, or the service's new URL. If it is "
    "the new URL, set it as the connection's base URL. Redirects are never followed."
)

OF_ALL = {
    404: ADDRESS,
    405: ADDRESS,
    407: PROXY,
    **dict.fromkeys(range(300, 400), REDIRECT),
    302: MAYBE_DONE,
    303: MAYBE_DONE,
}
WITH_INPUTS = {**OF_ALL, 400: INPUTS, 413: SHORTER, 422: INPUTS}
OF_PATH = {
    **WITH_INPUTS,
    **dict.fromkeys([401, 402, 403], NO_KEY),
    **dict.fromkeys([404, 405], "Check the connection's base URL and the flow_id."),
}
OF_KEY = {**WITH_INPUTS, **dict.fromkeys([401, 402, 403], API_KEY)}
OF_UPLOAD = {
    **OF_ALL,
    400: FILE_FORMAT,
    422: FILE_FORMAT,
    **dict.fromkeys([401, 402, 403, 404], RUN_AND_FLOW),
    413: SMALLER,
}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("operation", "advice", "look"),
    [
        (BY_PATH, OF_PATH, "Look in the workflow's list of runs."),
        (BY_KEY, OF_KEY, "Look in the workflow's list of runs."),
        (UPLOAD, OF_UPLOAD, "Look in the run's files."),
    ],
)
def test_next_step_by_status(operation, advice, look, early):
    for status in range(300, 600):
        error = error_of(operation, status, early=early)
        parts = [advice[status]] if status in advice else []
        if status in (408, 503) and type(error) is OutcomeUnknownError:
            parts.append(GATEWAY.format(status))
        if type(error) is OutcomeUnknownError:
            parts.append(look)
        assert error.next_step == "\n".join(parts), status


@pytest.mark.parametrize("status", [302, 308])
@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://x.example/é", "'https://x.example/\\xe9'"),
        ("x" * 500, f"'{'x' * 500}'"),
        ("x" * 501, f"'{'x' * 500}'"),
        (f"https://x.example/{KEY}", repr(WITHHELD)),
    ],
)
def test_where_a_redirect_points_to(status, location, shown):
    next_step = error_of(BY_KEY, status, headers={"location": location}).next_step
    assert next_step.startswith(f"It redirects to {shown}")
    assert "as the connection's base URL" in next_step


# Busy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "status", "early"),
    [
        *((operation, status, False) for operation in Operation for status in (425, 429)),
        *((operation, status, True) for operation in Operation for status in (408, 503)),
        (UPLOAD, 408, False),
        (UPLOAD, 503, False),
    ],
)
def test_busy_says_how_long(operation, status, early):
    error = error_of(operation, status, b"later", headers={"retry-after": "17"}, early=early)
    assert (type(error), error.retry_after, error.next_step) == (BusyError, 17, "")
    line, said = error.message.splitlines()
    assert f" was rejected as busy: {status} " in line
    assert line.endswith(", with a Retry-After of 17 s.")
    assert said == 'The service said: "later"'


def test_busy_without_a_time():
    error = error_of(UPLOAD, 429, headers={"retry-after": "soon"})
    assert error.retry_after is None
    assert str(error) == (
        f"[busy] POST {BASE_URL}/public/upload was rejected as busy: 429 Too Many Requests.\nNo files were accepted."
    )


@pytest.mark.parametrize("status", [400, 500])
def test_retry_after_makes_nothing_else_busy(status):
    error = error_of(UPLOAD, status, headers={"retry-after": "17"})
    assert not isinstance(error, BusyError)
    assert error.retry_after == 17


NOW = datetime(1994, 11, 6, 8, 49, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0),
        (" 120 ", 120),
        ("999999999", 604800),
        ("9" * 10_000, 604800),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7),
        ("Sun Nov  6 08:49:37 1994", 7),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0),
        ("Sun, 06 Nov 2094 08:49:00 GMT", 604800),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 +9999", None),
    ],
)
def test_retry_after(value, seconds):
    assert responses.retry_after(value, now=NOW) == seconds


@given(
    st.text()
    | st.integers().map(str)
    | st.from_regex(
        r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{1,5} \d\d:\d\d:\d\d( [A-Z]{1,4}| [+-]\d{4})?", fullmatch=True
    )
)
@settings(max_examples=3 * settings().max_examples)
def test_retry_after_never_fails(value):
    seconds = responses.retry_after(value)
    assert seconds is None or 0 <= seconds <= timedelta(days=7).total_seconds()


@pytest.mark.parametrize("zone", [" GMT", " -0000", ""])
def test_a_date_of_any_zone_is_compared_with_the_clock(zone):
    when = format_datetime(datetime.now(UTC) + timedelta(minutes=2), usegmt=True).removesuffix(" GMT")
    seconds = responses.retry_after(f" {when}{zone} ")
    assert seconds is not None
    assert 100 < seconds <= 120


def test_a_date_of_another_zone_is_compared_as_such():
    assert responses.retry_after("Sun, 06 Nov 1994 10:49:37 +0200", now=NOW) == 7


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("604799", 604799),
        ("604801", 604800),
        ("1" + "0" * 19, 604800),
        ("0" * 30 + "7", 7),
        ("9" * 100_000, 604800),
        ("Sun, 06 Nov 99999999999999999999 08:49:37 GMT", None),
        ("Sun, 06 Nov , 08:49:37", None),
        (" ", None),
    ],
)
def test_retry_after_at_its_bounds(value, seconds):
    assert responses.retry_after(value) == seconds


# The service's words ------------------------------------------------------------------------------------


def quoted(body, **options):
    """Return the lines of an error between the status and the consequence."""
    first, *lines = str(error_of(BY_KEY, 409, body, **options)).splitlines()
    assert first.endswith("409 Conflict.")
    assert lines.pop() == "No run was started."
    return lines


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"No such flow", 'The service said: "No such flow"'),
        (b" a\t\r\nb\0c\x1b[31m ", 'The service said: "a b c [31m"'),
        ("ä\u202eb".encode(), 'The service said: "ä b"'),
        ("ä\u2028b\x85c".encode(), 'The service said: "ä b c"'),
        (b"a\xffb", "The response is not shown, because it is neither JSON nor plain text."),
        (b"x" * 500, f'The service said: "{"x" * 500}"'),
        (b"x" * 501, f'The service said: "{"x" * 500}…"'),
        (KEY.encode(), "The response is withheld: it contains the API key or another secret."),
    ],
)
def test_words_are_quoted_in_one_line(body, words):
    assert quoted(body) == [words]


@pytest.mark.parametrize(
    ("body", "incomplete"),
    [(b"", ""), (b" \r\n\0", ""), (b"", "it was cut off"), (b" \n", "it was cut off")],
)
def test_no_words_are_not_quoted(body, incomplete):
    assert quoted(body, incomplete=incomplete) == []


def test_words_that_are_incomplete():
    assert quoted(b"a", incomplete="it was cut off") == [
        "The response is not shown, because it is incomplete."
    ]


# Success ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
@pytest.mark.parametrize(
    ("body", "options", "why"),
    [
        (b"<html>", {}, "it is not JSON.\nThe response is not shown, because it is neither"),
        (b"", {}, "it is empty."),
        (b" \n", {}, "it is empty."),
        (b'{"run_', {"incomplete": "it was cut off"}, "it was cut off.\nThe response is not shown, because"),
        (b"{}", {"headers": {"content-encoding": " GZip "}}, "it is compressed ('gzip')"),
        (b"{}", {"headers": {"content-encoding": KEY}}, WITHHELD),
        (b"[" * 100_000 + b"]" * 100_000, {}, "it is nested too deeply."),
    ],
)
def test_a_run_whose_response_cannot_be_used(operation, body, options, why):
    error = error_of(operation, 201, body, **options)
    assert type(error) is ResponseUnusableError
    assert f"returned 201 Created, but the response cannot be used: {why}" in error.message
    assert error.consequence == "A run was started, but its run_id is unknown."
    assert error.next_step == (
        "Sending the request again would start another run.\nLook in the workflow's list of runs."
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"[]", "it has no run_id"),
        (b'{"run_id": null}', "it has no run_id"),
        (b'{"run_id": " "}', "its run_id is neither text nor a number"),
        (b'{"run_id": {}}', "its run_id is neither text nor a number"),
        (b'{"run_id": NaN}', "its run_id is neither text nor a number"),
        (b'{"run_id": "%b"}' % KEY.encode(), "its run_id contained the API key"),
    ],
)
def test_a_run_id_is_needed_by_path_only(body, why):
    assert f"cannot be used: {why}." in str(error_of(BY_PATH, 201, body))
    assert read(BY_KEY, Response(201, {}, body)).run_id is None


@pytest.mark.parametrize(
    ("coding", "why"),
    [
        ("", None),
        ("identity", None),
        (" Identity ", None),
        ("identity, gzip", "compressed ('identity, gzip')"),
        ("gzip, identity", "compressed ('gzip, identity')"),
    ],
)
def test_content_encoding(coding, why):
    response = Response(201, {"content-encoding": coding}, b'{"run_id": "7"}')
    if why is None:
        assert read(BY_PATH, response).run_id == "7"
    else:
        assert why in str(error_of(BY_PATH, 201, response.body, headers=response.headers))


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        ("7", 7),
        ("-0", 0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("9" * 5000, "9" * 5000),
        ("1e999", "1e999"),
        ("-1e999", "-1e999"),
        ("Infinity", "Infinity"),
    ],
)
def test_numbers_that_are_kept(number, kept):
    run = read(BY_KEY, Response(200, {}, f'{{"a": [{{"n": {number}}}]}}'.encode()))
    assert run.response == {"a": [{"n": kept}]}
    assert type(run.response["a"][0]["n"]) is type(kept)


def test_what_a_database_does_not_store_is_replaced_wherever_it_stands():
    body = rb'{"run_id": "7", "a\u0000": ["b\ud800", {"c": "\u0000"}, true, null]}'
    assert read(BY_PATH, Response(200, {}, body)).response == {
        "run_id": "7",
        "a\ufffd": ["b?", {"c": "\ufffd"}, True, None],
    }


@pytest.mark.parametrize(
    "more",
    [
        {KEY: 1},
        {"a": [KEY]},
        {KEY[:6]: KEY[6:]},
        {KEY[:6]: 1, KEY[6:]: 1},
        {"a": [{"b": KEY[:6]}, {"c": KEY[6:]}]},
    ],
    ids=["name", "value", "name and value", "two names", "two values"],
)
def test_a_response_that_holds_the_key_is_not_kept(more):
    run = read(BY_PATH, Response(200, {}, json.dumps({"run_id": "7", **more}).encode()))
    assert (run.run_id, run.response) == ("7", WITHHELD)


# The run ------------------------------------------------------------------------------------------------


def run_of(body, *, operation=BY_PATH, headers=None):
    return read(operation, Response(201, headers or {}, body if isinstance(body, bytes) else body.encode()))


@pytest.mark.parametrize(
    ("written", "run_id"),
    [
        ('"abc"', "abc"),
        ('" a "', " a "),
        ("7", "7"),
        ("0", "0"),
        ("-7", "-7"),
        ("9007199254740993", "9007199254740993"),
        ("1" * 5000, "1" * 5000),
        ("1.50", "1.50"),
        ("1e400", "1e400"),
        ("12345678901234567890.12345678901234567890", "12345678901234567890.12345678901234567890"),
        ('"日本"', "日本"),
    ],
)
def test_run_id_is_kept_digit_for_digit(answering, trigger, written, run_id, key):
    server = answering(f'{{"run_id": {written}}}'.encode())
    with FlowClient(server.base_url, api_key=key) as client:
        run = trigger.send(client)
    assert run.run_id == run_id
    assert type(run.run_id) is str


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_in_the_response_are_numbers(number):
    run = run_of(json.dumps({"run_id": number, "n": number}))
    assert run.run_id == json.dumps(number)
    assert run.response == {"run_id": number, "n": number}
    json.dumps(run.response, allow_nan=False)


@pytest.mark.parametrize(
    ("written", "run_link"),
    [
        ('"https://service.example/runs/7"', "https://service.example/runs/7"),
        ('""', None),
        ("null", None),
        ("7", None),
        ('["x"]', None),
    ],
)
def test_run_link(written, run_link):
    assert run_of(f'{{"run_id": "7", "run_link": {written}}}').run_link == run_link


def test_response_without_run_link():
    assert run_of('{"run_id": "7"}').run_link is None


@pytest.mark.parametrize(
    ("body", "response"),
    [
        (b'\xef\xbb\xbf{"run_id": "7"}', {"run_id": "7"}),
        ('{"run_id": "7"}'.encode("utf-16"), {"run_id": "7"}),
        (b'{"run_id": "6", "run_id": "7"}', {"run_id": "7"}),
        (
            b'{"run_id": "7", "cost": NaN, "n": [-Infinity]}',
            {"run_id": "7", "cost": "NaN", "n": ["-Infinity"]},
        ),
        (b'{"run_id": "7", "n": 1e999}', {"run_id": "7", "n": "1e999"}),
        (b'{"run_id": "7", "t": "a\\u0000\\ud800"}', {"run_id": "7", "t": "a\ufffd?"}),
    ],
)
def test_unusual_responses_that_name_the_run(body, response):
    run = run_of(body)
    assert (run.run_id, run.response) == ("7", response)


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"<html>", "not JSON"),
        (b'{"run_id": "7"', "not JSON"),
        (b'{"run_id": "7"} x', "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
        (b'{"run_id": "\xff"}', "not JSON"),
        *(
            (b'{"run_id": "7", "x": ' + b"[" * n + b"]" * n + b"}", "nested too deeply")
            for n in (10_000, 400_000)
        ),
    ],
    ids=["empty", "blank", "html", "cut", "more", "binary", "not utf-8", "deep", "deeper"],
)
def test_responses_that_cannot_be_used(body, words, operation):
    with pytest.raises(ResponseUnusableError, match=words):
        run_of(body, operation=operation)


@pytest.mark.parametrize("depth", [100, 300, 500, 700, 900, 1100, 1300, 1500, 2000, 3000])
def test_nesting_of_any_depth_gives_a_run_or_says_so(depth):
    body = b'{"run_id": "7", "x": ' + b"[" * depth + b"]" * depth + b"}"
    try:
        assert run_of(body).run_id == "7"
    except ResponseUnusableError as error:
        assert "nested too deeply" in str(error)  # noqa: PT017 - either is right
        assert depth > 100


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_run_id_that_is_no_number(constant):
    with pytest.raises(ResponseUnusableError, match="run_id"):
        run_of(f'{{"run_id": {constant}}}')
    assert run_of(f'{{"run_id": {constant}}}', operation=BY_KEY).run_id is None


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br"])
def test_compressed_response_that_nobody_asked_for(coding):
    with pytest.raises(ResponseUnusableError, match="compressed"):
        run_of(gzip.compress(b'{"run_id": "7"}'), headers={"content-encoding": coding})


@given(st.binary())
def test_any_bytes_are_a_run_or_an_unusable_response(body):
    try:
        run = run_of(body, operation=BY_KEY)
    except ResponseUnusableError:
        return
    json.dumps(run.response, allow_nan=False)


# An upload ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'"2 files received"', "2 files received"),
        (b'" a "', " a "),
        (b'"\\u0000\\ud800"', "\ufffd?"),
        (b" thanks\n", "thanks"),
        (b"", ""),
        (b'{"ok": true}', '{"ok": true}'),
        (b"7", "7"),
        (b"a\xff", "(not shown: it is neither JSON nor plain text)"),
        (b"[" * 100_000, "[" * 100_000),
        (f'"{KEY}"'.encode(), WITHHELD),
        (KEY.encode(), WITHHELD),
    ],
)
def test_response_to_an_upload(body, text):
    assert read(UPLOAD, Response(200, {}, body)) == text


@pytest.mark.parametrize("content_type", ["text/html", "Text/HTML; charset=utf-8"])
@pytest.mark.parametrize("status", [200, 201])
def test_a_web_page_does_not_say_that_files_were_accepted(status, content_type):
    error = error_of(UPLOAD, status, b"<p>Sign in</p>", headers={"content-type": content_type})
    assert type(error) is OutcomeUnknownError
    assert "with a web page.\nThe response is not shown" in error.message
    assert error.consequence == "The files may have been accepted."
    incomplete = error_of(UPLOAD, status, headers={"content-type": content_type}, incomplete="it was cut off")
    assert type(incomplete) is OutcomeUnknownError


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", ""])
def test_another_response_to_an_upload_does(content_type):
    assert read(UPLOAD, Response(200, {"content-type": content_type}, b"thanks")) == "thanks"
    assert (
        read(UPLOAD, Response(200, {"content-type": "text/html"}, b" "))
        == "(not shown: it is neither JSON nor plain text)"
    )


def test_response_to_an_upload_that_is_incomplete():
    response = Response(200, {}, b'"2 fi', incomplete="it was cut off")
    assert read(UPLOAD, response) == "(not shown: it was cut off)"
