"""The key is seen by nobody, in whatever form the service echoes it."""

from __future__ import annotations

import base64
import gc
import html
import json
import logging
import string
import threading
import traceback
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client.errors import RefusedError, WorkflowAutomationError
from workflow_automation_provider.client.redaction import Redactor, guard_wire_logs
from workflow_automation_provider.client.sending import FlowClient

# The text around a key has none of its letters in these tests, so that a leak is no coincidence.
keys = st.text(string.ascii_letters + string.digits + string.punctuation, min_size=8, max_size=40)
around = st.text(" .,:;日\n", max_size=20)


def escaped(template):
    return lambda key: "".join(c if c.isalnum() else template.format(ord(c)) for c in key)


ECHOES = {
    "raw": str,
    "upper": str.upper,
    "lower": str.lower,
    "swapped": str.swapcase,
    "url": lambda key: quote(key, safe=""),
    "url, lower case": lambda key: quote(key, safe="").lower(),
    "url, form": quote_plus,
    "url, every sign": escaped("%{:02X}"),
    "url, twice": lambda key: quote(quote(key, safe=""), safe=""),
    "url, some": lambda key: quote(key, safe="/+=&%"),
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON in JSON": lambda key: json.dumps(json.dumps(key)),
    "JSON of PHP": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "JSON of .NET": escaped("\\u{:04X}"),
    "html": html.escape,
    "html, numbers": escaped("&#{};"),
    "html, hex": escaped("&#x{:04X};"),
    "hex": lambda key: key.encode().hex(),
    "HEX": lambda key: key.encode().hex().upper(),
    "repr": lambda key: repr(key)[1:-1],
    "repr of bytes": lambda key: repr(bytearray(key.encode()))[12:-2],
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
}


echoes = pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES.keys())


@echoes
@settings(max_examples=25)
@given(key=keys, before=around, after=around)
def test_echoed_key_is_replaced(echo, key, before, after):
    assume(not set(key) & set(before + after))
    left = Redactor([key]).text(f"{before}{echo(key)}{after}")
    assert left.startswith(before)
    assert left.endswith(after)
    # Quotes around a key and the padding of base64 tell nothing.
    assert left[len(before) : len(left) - len(after)].strip('"\\=') == "***"


@given(key=keys, before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_key_within_a_longer_base64_text(key, before, after):
    text = base64.b64encode(before + key.encode() + after).decode()
    left = Redactor([key]).text(text)
    assert "***" in left
    # What is left decodes to nothing of the key but an edge of one character.
    edge = left.partition("***")[0]
    decoded = base64.b64decode(edge[: len(edge) // 4 * 4])
    assert len(decoded) <= len(before) + 1


@echoes
@settings(max_examples=25)
@given(key=keys, share=st.floats(0, 1))
@example(key=r"00\\0000", share=0.6)
@example(key=r"00\\0000", share=0.75)
def test_key_that_is_cut_off_anywhere(echo, key, share):
    echoed = echo(key)
    end = round(share * len(echoed))
    left = Redactor([key]).text(f"日 {echoed[:end]}", cut=True)
    rest = left.removeprefix("日 ").removeprefix('"\\"')
    # No more than three characters, each perhaps escaped, and the beginning of a fourth.
    assert rest.startswith("***") or len(rest) < len(echo(key[:4]))


@given(keys, st.text(" .,日\n"))
def test_text_without_the_key_stays_as_it_is(key, text):
    assume(not set(key) & set(text))
    assert Redactor([key]).text(text) == text
    assert Redactor([key]).text(text, cut=True) == text
    assert Redactor([]).text(text, cut=True) == text


@given(keys)
def test_json_values_are_redacted_all_through(key):
    value = {f"a {key}": [key, {"b": (quote(key, safe="")), "c": 1, "d": None}]}
    assert Redactor([key]).value(value) == {"a ***": ["***", {"b": "***", "c": 1, "d": None}]}


def test_longest_secret_first():
    assert Redactor(["abcdefgh", "abcdefghijkl"]).text("abcdefghijkl abcdefgh") == "*** ***"


def test_secrets_are_not_in_the_repr(key):
    assert key not in repr(Redactor([key])) + repr(FlowClient("https://service.example", api_key=key))


def test_large_texts_take_no_time(key):
    redactor = Redactor([key])
    for text in ("\\" * 300_000, "%25" * 100_000, "&amp;" * 60_000, key[:-1] * 20_000):
        redactor.text(text, cut=True)


# On the wire --------------------------------------------------------------------------------------------


def nowhere(key, text):
    """Check that no form of the key is in a text, however escaped."""
    for name, echo in ECHOES.items():
        assert echo(key) not in text, name
    assert key[:8] not in text


@pytest.fixture
def wire_log(caplog):
    with caplog.at_level(logging.DEBUG):
        for name in ("httpx", "httpcore", "httpcore.http11", "httpcore.connection"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        yield caplog
    for name in ("httpx", "httpcore", "httpcore.http11", "httpcore.connection"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def everything(caught):
    error = caught.value
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error)) + repr(error.args)


@pytest.mark.parametrize("operation", ["trigger_by_key", "upload"])
@pytest.mark.parametrize("status", [400, 401, 429, 500, 302])
def test_failure_that_echoes_the_key(service, client, key, wire_log, operation, status):
    run = client.trigger_flow({}, "demo-flow")
    service.faults.add("echo_key", status=status, operation=operation)
    with pytest.raises(WorkflowAutomationError) as caught:
        client.trigger_flow({}) if operation == "trigger_by_key" else client.upload_files(
            run.run_id, [], "demo-flow"
        )
    assert "***" in str(caught.value)
    nowhere(key, everything(caught))
    assert "x-echo" in wire_log.text, "the wire was not logged"
    nowhere(key, wire_log.text)


def test_success_that_echoes_the_key(service, client, key, wire_log):
    service.faults.add("echo_key", status=201, times=None)
    run = client.trigger_flow({})
    assert run.run_id == "1001"
    answer = client.upload_files(run.run_id, [], "demo-flow")
    assert "***" in answer
    assert "x-echo" in wire_log.text
    nowhere(key, wire_log.text + json.dumps(run.reply) + repr(run) + answer)


@pytest.mark.parametrize("line", ["X-Echo : {}", "X-Echo: a\x00{}", "{}", "X Echo: {}"])
def test_illegal_header_that_holds_the_key(raw_server, key, wire_log, attempt, line):
    server = raw_server(f"HTTP/1.1 200 OK\r\n{line.format(key)}\r\n\r\n".encode())
    with FlowClient(server.base_url, api_key=key) as client, pytest.raises(WorkflowAutomationError) as caught:
        attempt.send(client)
    nowhere(key, everything(caught))
    nowhere(key, wire_log.text)


def test_status_line_and_redirect_that_hold_the_key(raw_server, key, wire_log):
    head = (
        f"HTTP/1.1 307 {key}\r\nLocation: https://evil.example/?k={quote(key)}\r\nContent-Length: 0\r\n\r\n"
    )
    server = raw_server(head.encode())
    with FlowClient(server.base_url, api_key=key) as client:
        with pytest.raises(RefusedError) as caught:
            client.trigger_flow({})
        nowhere(key, everything(caught) + client.check())
    nowhere(key, wire_log.text)


@pytest.mark.parametrize("body", ['"files of {}"', "files of {}", "[{}"])
def test_upload_answer_that_breaks_off_in_the_key(raw_server, key, body):
    text = body.format(key)
    for end in range(text.index(key) + 4, text.index(key) + len(key), 4):
        server = raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + text[:end].encode())
        with FlowClient(server.base_url, api_key=key) as client:
            answer = client.upload_files("1", [], "demo-flow")
        assert key[:4] not in answer
        assert answer.endswith("***")


def test_secret_headers_and_the_password_of_a_proxy_are_redacted(answering):
    echo = b"Authorization: Bearer hush-1234, X-Team: data, proxy: p%40ss-9876 or p@ss-9876"
    server = answering(echo, status=400)
    with (
        FlowClient(
            "http://service.example/api",
            allow_http=True,
            headers={"Authorization": "Bearer hush-1234", "X-Team": "data"},
            proxy=f"http://user:p%40ss-9876@127.0.0.1:{server.port}",
        ) as client,
        pytest.raises(RefusedError) as caught,
    ):
        client.trigger_flow({}, "demo-flow")
    assert "Authorization: ***, X-Team: data, proxy: *** or ***" in str(caught.value)
    ((head, _),) = server.requests
    assert b"Bearer hush-1234" in head


def test_clients_that_come_and_go_do_not_disturb_a_log_line(key, wire_log):
    """A filter that fails would make a request that was answered look like one that was not."""
    failures = []

    def come_and_go():
        try:
            for number in range(3000):
                guard_wire_logs(Redactor([f"{key}{number}"[:12]]))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    record = logging.LogRecord("httpx", logging.INFO, "", 0, "x", (), None)
    while any(thread.is_alive() for thread in threads):
        assert logging.getLogger("httpx").filter(record)
    assert failures == []


def test_wire_logs_are_left_alone_once_the_client_is_gone():
    key = "the-key-of-no-other-test"
    client = FlowClient("https://service.example", api_key=key)
    lines = [logging.LogRecord("httpx", logging.INFO, "", 0, "the key is %s", (key,), None) for _ in range(2)]
    logging.getLogger("httpx").filter(lines[0])
    del client
    gc.collect()
    logging.getLogger("httpx").filter(lines[1])
    assert [line.getMessage() for line in lines] == ["the key is ***", f"the key is {key}"]
