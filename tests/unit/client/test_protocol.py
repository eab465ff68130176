"""Addresses, identifiers, waits and replies: as values, and where it matters on the wire."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client import protocol, replies
from workflow_automation_provider.client.errors import InvalidRequestError, ReplyUnusableError
from workflow_automation_provider.client.redaction import Redactor
from workflow_automation_provider.client.sending import FlowClient

# Base URL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://service.example/api", "https://service.example/api"),
        (" https://service.example/api// ", "https://service.example/api"),
        ("service.example", "https://service.example"),
        ("service.example:8443/api/", "https://service.example:8443/api"),
        ("HTTPS://Service.example/API", "https://Service.example/API"),
        ("https://[2001:db8::1]:8443/api", "https://[2001:db8::1]:8443/api"),
        ("https://münchen.example/api", "https://münchen.example/api"),
        ("http://localhost:8080/api", "http://localhost:8080/api"),
        ("http://127.0.0.1/api", "http://127.0.0.1/api"),
        ("http://127.8.8.8/api", "http://127.8.8.8/api"),
        ("http://[::1]:1/api", "http://[::1]:1/api"),
    ],
)
def test_base_url(text, expected):
    assert protocol.parse_base_url(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("ftp://service.example", "'ftp'"),
        ("https://", "no host"),
        ("https:///api", "no host"),
        ("https://user:hush@service.example", "user name or password"),
        ("hush@service.example", "user name or password"),
        ("https://user:hush@[service", "not a valid address"),
        ("https://u:hush@ho\u2100st", "not a valid address"),
        ("https://service.example/api?x=1", "query"),
        ("https://service.example/api?", "query"),
        ("https://service.example/api#x", "fragment"),
        ("https://service.example:port", "not a valid address"),
        ("https://service.example:99999", "not a valid address"),
        ("https://service example", "white space"),
        ("https://service.example/a\nb", "white space"),
        ("http://service.example/api", "allow_http"),
        ("http://localhost.evil.example/api", "allow_http"),
        ("http://127.0.0.1.evil.example/api", "allow_http"),
    ],
)
def test_base_url_that_is_wrong(text, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        FlowClient(text)
    assert "hush" not in str(caught.value)


def test_plain_http_where_it_was_allowed():
    assert (
        protocol.parse_base_url("http://service.example/api", allow_http=True) == "http://service.example/api"
    )


@given(st.text() | st.from_regex(r"https?://[a-z0-9@:/?#\[\]%.\\-]*", fullmatch=True))
def test_any_text_is_an_address_or_a_clear_error(text):
    try:
        base_url = protocol.parse_base_url(text, allow_http=True)
    except InvalidRequestError:
        return
    assert protocol.parse_base_url(base_url, allow_http=True) == base_url
    assert not base_url.endswith("/")
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        with pytest.raises(InvalidRequestError, match="base URL"):
            FlowClient(base_url, allow_http=True)
    else:
        assert (url.userinfo, url.query, url.fragment) == (b"", b"", "")
        assert url.host


# Identifiers --------------------------------------------------------------------------------------------

ODD_IDENTIFIERS = [
    "a/b",
    "..",
    ".",
    "...",
    "a?b#c",
    "日本",
    "a\nb",
    "%2F",
    " a b ",
    "%",
    "a\\b",
    "../../x",
    "a;b",
    "\0",
    "é+&=",
]


@pytest.mark.parametrize("flow_id", ODD_IDENTIFIERS)
def test_flow_id_reaches_the_service_as_it_is(service, client, flow_id):
    client.trigger_flow({}, flow_id)
    (run,) = service.runs
    assert run.flow_id == flow_id


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_flow_id_is_always_one_segment(flow_id):
    url = protocol.trigger_request("https://service.example/api", {}, flow_id).url
    sent = httpx.URL(url).raw_path.decode()
    before, _, rest = sent.partition("/api/flows/")
    segment, _, after = rest.partition("/")
    assert (before, after) == ("", "trigger")
    assert unquote(segment, errors="strict") == flow_id
    assert segment.strip(".")


@pytest.mark.parametrize("flow_id", ODD_IDENTIFIERS)
def test_run_and_flow_id_of_an_upload_stay_as_they_are(answering, flow_id, key):
    server = answering(b'"ok"')
    with FlowClient(server.base_url, api_key=key) as client:
        client.upload_files(flow_id, [], flow_id)
    ((_, body),) = server.requests
    assert json.loads(body) == {"flow_id": flow_id, "run_id": flow_id, "files": []}


# Retry-After --------------------------------------------------------------------------------------------

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
    assert replies.retry_after(value, now=NOW) == seconds


@given(
    st.text()
    | st.integers().map(str)
    | st.from_regex(
        r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{1,5} \d\d:\d\d:\d\d( [A-Z]{1,4}| [+-]\d{4})?", fullmatch=True
    )
)
@settings(max_examples=300)
def test_retry_after_never_fails(value):
    seconds = replies.retry_after(value)
    assert seconds is None or 0 <= seconds <= timedelta(days=7).total_seconds()


# Replies ------------------------------------------------------------------------------------------------


def read(body, *, status=201, headers=None, by_key=False):
    operation = protocol.Operation.TRIGGER_BY_KEY if by_key else protocol.Operation.TRIGGER_BY_PATH
    reply = protocol.Reply(status, headers or {}, body if isinstance(body, bytes) else body.encode())
    return replies.read_trigger_reply(reply, operation, "POST https://service.example/api", Redactor([]))


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
def test_numbers_in_the_reply_are_numbers(number):
    run = read(json.dumps({"run_id": number, "n": number}))
    assert run.run_id == json.dumps(number)
    assert run.reply == {"run_id": number, "n": number}
    json.dumps(run.reply, allow_nan=False)


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
    assert read(f'{{"run_id": "7", "run_link": {written}}}').run_link == run_link


def test_reply_without_run_link():
    assert read('{"run_id": "7"}').run_link is None


@pytest.mark.parametrize(
    ("body", "reply"),
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
def test_unusual_replies_that_name_the_run(body, reply):
    run = read(body)
    assert (run.run_id, run.reply) == ("7", reply)


@pytest.mark.parametrize("by_key", [False, True])
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
def test_replies_that_cannot_be_used(body, words, by_key):
    with pytest.raises(ReplyUnusableError, match=words):
        read(body, by_key=by_key)


@pytest.mark.parametrize("depth", [100, 300, 500, 700, 900, 1100, 1300, 1500, 2000, 3000])
def test_nesting_of_any_depth_gives_a_run_or_says_so(depth):
    body = b'{"run_id": "7", "x": ' + b"[" * depth + b"]" * depth + b"}"
    try:
        assert read(body).run_id == "7"
    except ReplyUnusableError as error:
        assert "nested too deeply" in str(error)  # noqa: PT017 - either is right
        assert depth > 100


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_run_id_that_is_no_number(constant):
    with pytest.raises(ReplyUnusableError, match="run_id"):
        read(f'{{"run_id": {constant}}}')
    assert read(f'{{"run_id": {constant}}}', by_key=True).run_id is None


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br"])
def test_compressed_reply_that_nobody_asked_for(coding):
    with pytest.raises(ReplyUnusableError, match="compressed"):
        read(gzip.compress(b'{"run_id": "7"}'), headers={"content-encoding": coding})


def test_coding_identity_is_none():
    assert read('{"run_id": "7"}', headers={"content-encoding": "identity"}).run_id == "7"


@given(st.binary())
def test_any_bytes_are_a_run_or_an_unusable_reply(body):
    try:
        run = read(body, by_key=True)
    except ReplyUnusableError:
        return
    json.dumps(run.reply, allow_nan=False)
