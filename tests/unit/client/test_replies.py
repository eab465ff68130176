"""What each reply means, as values: which error, with which advice, and what is quoted of the service's words."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from workflow_automation_provider.client import replies
from workflow_automation_provider.client.errors import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    ReplyUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.client.protocol import Operation, Reply
from workflow_automation_provider.client.redaction import WITHHELD, Redactor

KEY = "wak-Zq7xK9Tbw2"
TITLE = "POST https://service.example/api"
BY_PATH, BY_KEY, UPLOAD = Operation


def read(operation, reply):
    redact = Redactor([], key=KEY)
    if operation is UPLOAD:
        return replies.read_upload_reply(reply, TITLE, redact)
    return replies.read_trigger_reply(reply, operation, TITLE, redact)


def error_of(operation, status, body=b"", *, headers=None, **options):
    with pytest.raises(WorkflowAutomationError) as caught:
        read(operation, Reply(status, headers or {}, body, **options))
    error = caught.value
    assert str(error).startswith(f"{TITLE} ")
    assert error.status == status
    assert str(status) in str(error)
    assert KEY not in str(error)
    return error


# Which error --------------------------------------------------------------------------------------------


def kind_of(operation, status, *, early):
    if status in (408, 425, 429) or (status == 503 and operation is UPLOAD):
        return BusyError
    if 300 <= status < 500 and status not in (302, 303):
        return RefusedError
    return NotSentError if early else OutcomeUnknownError


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("operation", Operation)
def test_every_status_has_its_error(operation, early):
    for status in (*range(100, 200), *range(300, 600)):
        error = error_of(operation, status, early=early)
        assert type(error) is kind_of(operation, status, early=early), status
        told = operation.maybe_done if type(error) is OutcomeUnknownError else operation.nothing_done
        assert told in str(error), status


@pytest.mark.parametrize("status", [200, 201, 226, 299])
@pytest.mark.parametrize("operation", Operation)
def test_every_2xx_is_success(operation, status):
    answer = read(operation, Reply(status, {}, b'{"run_id": "7"}'))
    assert answer == '{"run_id": "7"}' if operation is UPLOAD else answer.run_id == "7"


@pytest.mark.parametrize(
    ("status", "named"),
    [(400, "400 Bad Request."), (499, "499."), (507, "507 Insufficient Storage."), (599, "599.")],
)
def test_status_is_named(status, named):
    assert f"with {named}" in str(error_of(BY_KEY, status))


# Advice -------------------------------------------------------------------------------------------------

INPUTS = " Compare the inputs with those that the workflow defines."
RUN_AND_FLOW = " Check that the run_id and the flow_id belong together, and that the API key is this flow's"
API_KEY = " Check the API key: it must be this workflow's"
ADDRESS = " Check the connection's base URL and the flow_id."
PROXY = " Check the connection's proxy."
SMALLER = " Send fewer or smaller files in one request."
REDIRECT = " It points to 'another address'. Redirects are never followed"
MAYBE_DONE = " It points to 'another address': the result, a login page, or the service's new address."
ADVICE = (INPUTS, RUN_AND_FLOW, API_KEY, ADDRESS, PROXY, SMALLER, REDIRECT, MAYBE_DONE)

OF_ALL = {
    404: ADDRESS,
    405: ADDRESS,
    407: PROXY,
    **dict.fromkeys(range(300, 400), REDIRECT),
    302: MAYBE_DONE,
    303: MAYBE_DONE,
}
OF_PATH = {**OF_ALL, 400: INPUTS, 422: INPUTS}
OF_KEY = {**OF_PATH, **dict.fromkeys([401, 402, 403], API_KEY)}
OF_UPLOAD = {**OF_ALL, **dict.fromkeys([401, 402, 403, 404], RUN_AND_FLOW), 413: SMALLER}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("operation", "advice"), [(BY_PATH, OF_PATH), (BY_KEY, OF_KEY), (UPLOAD, OF_UPLOAD)])
def test_advice_by_status(operation, advice, early):
    for status in range(300, 600):
        text = str(error_of(operation, status, early=early))
        given = [words for words in ADVICE if words in text]
        assert given == ([advice[status]] if status in advice else []), status
        if not given:
            assert text.endswith((operation.nothing_done, operation.maybe_done)), status


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
    text = str(error_of(BY_KEY, status, headers={"location": location}))
    assert f" It points to {shown}" in text
    assert "into the connection's base URL" in text


# Busy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 425, 429, 503])
@pytest.mark.parametrize("operation", Operation)
def test_busy_says_how_long(operation, status):
    error = error_of(operation, status, b"later", headers={"retry-after": "17"})
    assert error.retry_after == 17
    assert (
        f': the service is busy. The service said: "later". It asks to wait 17 s. {operation.nothing_done}'
        in str(error)
    )


def test_busy_without_a_time():
    error = error_of(UPLOAD, 503, headers={"retry-after": "soon"})
    assert error.retry_after is None
    assert str(error).endswith("the service is busy. No file was taken.")


@pytest.mark.parametrize("status", [400, 500])
def test_retry_after_makes_nothing_else_busy(status):
    assert not isinstance(error_of(UPLOAD, status, headers={"retry-after": "17"}), BusyError)


@pytest.mark.parametrize("zone", [" GMT", " -0000", ""])
def test_a_date_of_any_zone_is_compared_with_the_clock(zone):
    when = format_datetime(datetime.now(UTC) + timedelta(minutes=2), usegmt=True).removesuffix(" GMT")
    assert 100 < replies.retry_after(f" {when}{zone} ") <= 120


def test_a_date_of_another_zone_is_compared_as_such():
    now = datetime(1994, 11, 6, 8, 49, 30, tzinfo=UTC)
    assert replies.retry_after("Sun, 06 Nov 1994 10:49:37 +0200", now=now) == 7


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
    assert replies.retry_after(value) == seconds


# The service's words ------------------------------------------------------------------------------------


def quoted(body, **options):
    """Return what an error says between the status and what was done."""
    text = str(error_of(BY_KEY, 409, body, **options))
    return text.partition("409 Conflict.")[2].partition(" No run was started.")[0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ""),
        (b" \r\n\0", ""),
        (b"No such flow", ' The service said: "No such flow".'),
        (b" a\t\r\nb\0c\x1b[31m ", ' The service said: "a b c [31m".'),
        ("ä\u202eb".encode(), ' The service said: "ä b".'),
        (b"a\xffb", ' The service said: "a\ufffdb".'),
        (b"x" * 500, f' The service said: "{"x" * 500}".'),
        (b"x" * 501, f' The service said: "{"x" * 500}…".'),
        (KEY.encode(), " What the service said is withheld: it contains the API key or another secret."),
    ],
)
def test_words_are_quoted_in_one_line(body, words):
    assert quoted(body) == words


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"a", " What the service said is not shown, for it is incomplete."), (b"", ""), (b" \n", "")],
)
def test_words_that_are_incomplete(body, words):
    assert quoted(body, incomplete="it was cut off") == words


# Success ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [BY_PATH, BY_KEY])
@pytest.mark.parametrize(
    ("body", "options", "why"),
    [
        (b"<html>", {}, 'it is not JSON. The service said: "<html>".'),
        (b"", {}, "it is empty."),
        (b" \n", {}, "it is empty."),
        (b'{"run_', {"incomplete": "it was cut off"}, "it was cut off. What the service said is not shown"),
        (b"{}", {"headers": {"content-encoding": " GZip "}}, "it is compressed ('gzip')"),
        (b"{}", {"headers": {"content-encoding": KEY}}, WITHHELD),
        (b"[" * 100_000 + b"]" * 100_000, {}, "it is nested too deeply."),
    ],
)
def test_a_run_whose_reply_cannot_be_used(operation, body, options, why):
    error = error_of(operation, 201, body, **options)
    assert type(error) is ReplyUnusableError
    assert f"started a run (201 Created), but the reply cannot be used: {why}" in str(error)


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
    assert read(BY_KEY, Reply(201, {}, body)).run_id is None


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
    reply = Reply(201, {"content-encoding": coding}, b'{"run_id": "7"}')
    if why is None:
        assert read(BY_PATH, reply).run_id == "7"
    else:
        assert why in str(error_of(BY_PATH, 201, reply.body, headers=reply.headers))


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
    run = read(BY_KEY, Reply(200, {}, f'{{"a": [{{"n": {number}}}]}}'.encode()))
    assert run.reply == {"a": [{"n": kept}]}
    assert type(run.reply["a"][0]["n"]) is type(kept)


def test_what_a_database_refuses_is_replaced_wherever_it_stands():
    body = rb'{"run_id": "7", "a\u0000": ["b\ud800", {"c": "\u0000"}, true, null]}'
    assert read(BY_PATH, Reply(200, {}, body)).reply == {
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
def test_a_reply_that_holds_the_key_is_not_kept(more):
    run = read(BY_PATH, Reply(200, {}, json.dumps({"run_id": "7", **more}).encode()))
    assert (run.run_id, run.reply) == ("7", WITHHELD)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'"2 files received"', "2 files received"),
        (b'" a "', " a "),
        (b'"\\u0000\\ud800"', "\ufffd?"),
        (b" thanks\n", "thanks"),
        (b"", ""),
        (b'{"ok": true}', '{"ok": true}'),
        (b"7", "7"),
        (b"a\xff", "a\ufffd"),
        (b"[" * 100_000, "[" * 100_000),
        (f'"{KEY}"'.encode(), WITHHELD),
        (KEY.encode(), WITHHELD),
    ],
)
def test_answer_to_an_upload(body, answer):
    assert read(UPLOAD, Reply(200, {}, body)) == answer


def test_answer_to_an_upload_that_is_incomplete():
    reply = Reply(200, {}, b'"2 fi', incomplete="it was cut off")
    assert read(UPLOAD, reply) == "(not shown: it was cut off)"
