"""The key is seen by nobody, in whatever form the service echoes it."""

from __future__ import annotations

import base64
import gc
import html
import inspect
import json
import logging
import quopri
import random
import re
import string
import threading
import time
import traceback
import uuid
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client import protocol, replies
from workflow_automation_provider.client.errors import (
    RefusedError,
    ReplyUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.client.redaction import WITHHELD, Redactor, guard_wire_logs
from workflow_automation_provider.client.sending import FlowClient

# Not a key that is little more than escapes itself: where it is encoded in part, nothing is left of it.
keys = st.text(string.ascii_letters + string.digits + string.punctuation, min_size=8, max_size=40).filter(
    lambda key: len(re.sub(r"(?i)[\\%&=]+[#ux]?[0-9a-z]{0,4};?", "", key)) >= 6
)
# What a service puts around a key that it echoes: words, quotes, separators, the names of fields.
around = st.lists(
    st.sampled_from(
        [
            " ",
            ".",
            ",",
            ": ",
            "; ",
            '"',
            "'",
            "<b>",
            "(",
            ")",
            "\n",
            "日",
            "?key:",
            "&key:",
            "the key is ",
            "{}",
            " 1 ",
        ]
    ),
    max_size=6,
).map("".join)


def escaped(template, every=False):
    """Escape characters where the template has room for any of them, and else bytes of UTF-8."""

    def escape(text):
        codes = map(ord, text) if template[1:2] in ("u", "#") or "{{" in template else text.encode()
        return "".join(
            chr(code) if code < 128 and chr(code).isalnum() and not every else template.format(code)
            for code in codes
        )

    return escape


def between(separator, every=1):
    return lambda key: separator.join(key[start : start + every] for start in range(0, len(key), every))


def in_base64(encode=base64.b64encode, before=b"", after=b"", encoding="utf-8"):
    return lambda key: encode(before + key.encode(encoding) + after).decode()


ECHOES = {
    "raw": str,
    "upper": str.upper,
    "lower": str.lower,
    "swapped": str.swapcase,
    "url": lambda key: quote(key, safe=""),
    "url, lower case": lambda key: re.sub("%..", lambda escape: escape[0].lower(), quote(key, safe="")),
    "url, form": quote_plus,
    "url, every sign": escaped("%{:02X}"),
    "url, every character": escaped("%{:02x}", every=True),
    "url, twice": lambda key: quote(quote(key, safe=""), safe=""),
    "url, some": lambda key: quote(key, safe="/+=&%"),
    "JavaScript's escape()": escaped("%u{:04X}"),
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON in JSON": lambda key: json.dumps(json.dumps(key)),
    "JSON in JSON in JSON": lambda key: json.dumps(json.dumps(json.dumps(key))),
    "JSON of PHP": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "JSON of .NET": escaped("\\u{:04X}"),
    "JSON, every character": escaped("\\u{:04x}", every=True),
    "braces": escaped("\\u{{{:x}}}"),
    "braces, every character": escaped("\\x{{{:04x}}}", every=True),
    "hex escapes": escaped("\\x{:02x}"),
    "hex escapes, every character": escaped("\\x{:02X}", every=True),
    "octal": escaped("\\{:03o}"),
    "octal, every character": escaped("\\{:03o}", every=True),
    "html": html.escape,
    "html twice": lambda key: html.escape(html.escape(key)),
    "html, numbers": escaped("&#{};"),
    "html, hex": escaped("&#x{:04X};"),
    "html, every character": escaped("&#{};", every=True),
    "html, every character, zeros": escaped("&#{:010d};", every=True),
    "html, every character, hex": escaped("&#x{:x};", every=True),
    "hex": lambda key: key.encode().hex(),
    "HEX": lambda key: key.encode().hex().upper(),
    "hex, with colons": lambda key: key.encode().hex(":"),
    "hex, in lines": lambda key: between("\n", 5)(key.encode().hex()),
    "hex, as in C": lambda key: ", ".join(f"0x{code:02x}" for code in key.encode()),
    "hex of UTF-16": lambda key: key.encode("utf-16-le").hex(),
    "codes": lambda key: str([*key.encode()]),
    "codes, with blanks": lambda key: " ".join(str(ord(c)) for c in key),
    "repr": lambda key: repr(key)[1:-1],
    "repr of bytes": lambda key: repr(bytearray(key.encode()))[12:-2],
    "repr of UTF-16": lambda key: repr(key.encode("utf-16-le"))[2:-1],
    "quoted-printable": lambda key: quopri.encodestring(key.encode()).decode(),
    "quoted-printable, every sign": escaped("={:02X}"),
    "quoted-printable, every character": escaped("={:02X}", every=True),
    "base64": in_base64(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
    "base64, at 1": in_base64(before=b"-", after=b": "),
    "base64, at 2": in_base64(before=b": ", after=b"-"),
    "base64, in lines": lambda key: between("\r\n", 7)(in_base64()(key)),
    "base64, in lines, as JSON": lambda key: json.dumps(in_base64(base64.encodebytes)(key * 3)),
    "base64 in JSON of PHP": lambda key: in_base64()(key).replace("/", "\\/"),
    "base64 in a URL": lambda key: quote(in_base64()(key), safe=""),
    "base64 twice": lambda key: in_base64()(in_base64()(key)),
    "base64 three times": lambda key: in_base64()(in_base64()(in_base64()(key))),
    "base64 of UTF-16": in_base64(encoding="utf-16"),
    "base64 of UTF-32": in_base64(encoding="utf-32-be"),
    "base64 of zero width": lambda key: in_base64()("\u200b".join(key)),
    "UTF-16": lambda key: key.encode("utf-16").decode(errors="replace"),
    "UTF-16, big end first": lambda key: key.encode("utf-16-be").decode(errors="replace"),
    "UTF-32": lambda key: key.encode("utf-32-le").decode(errors="replace"),
    "wrapped": between("\n", 3),
    "wrapped and indented": between("\r\n\t    ", 3),
    "tags": lambda key: "<br/>".join(map(html.escape, re.findall("(?s).{1,3}", key))),
    "tags, two": lambda key: "<b></b>".join(map(html.escape, key)),
    "control characters": between("\x01"),
    "control characters in JSON": lambda key: json.dumps("\x07".join(key)),
    "line ends in JSON": lambda key: json.dumps("\n".join(key)),
    "zero width": between("\u200b"),
    "zero width in JSON": lambda key: json.dumps("\u200b".join(key)),
    "zero width in HTML": lambda key: "&#8203;".join(map(html.escape, key)),
    "zero width in HTML, named": lambda key: "&shy;".join(map(html.escape, key)),
    "zero width in a URL": lambda key: quote("\u200b".join(key)),
    "blanks": between(" "),
}
# These blur another encoding: letters in another case, blanks as "+", line breaks and tags within an escape.
FIRST = {
    "upper",
    "lower",
    "swapped",
    "base64, in lines, as JSON",
    "url, form",
    "quoted-printable",
    "tags",
    "tags, two",
}
# Blanks between numbers do not outlast any encoding that is mixed with them.
ALONE = {"codes, with blanks"}
LATER = sorted({*ECHOES} - FIRST - ALONE)


def nowhere(key, text):
    """Check that no form of the key is in a text, however escaped."""
    for name, echo in ECHOES.items():
        assert echo(key) not in text, name
    assert key[:8] not in text


echoes = pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES.keys())


@echoes
@settings(max_examples=40, derandomize=True)
@given(key=keys, before=around, after=around)
@example(key=r"00\\0000", before="", after="")
@example(key="%41%42%43a&lt;=3D", before="key=", after=".")
def test_text_with_the_key_is_withheld(echo, key, before, after):
    redactor = Redactor([], key=key)
    text = f"{before}{echo(key)}{after}"
    assert redactor.reveals(text)
    assert redactor.reveals(text, key_only=True)
    assert redactor.text(text) == WITHHELD


@settings(max_examples=1500, derandomize=True)
@given(
    keys,
    st.sampled_from(sorted({*ECHOES} - ALONE)),
    st.lists(st.sampled_from(LATER), min_size=1, max_size=2),
    around,
    around,
)
def test_text_with_the_key_encoded_more_than_once_is_withheld(key, first, later, before, after):
    text = ECHOES[first](key)
    for name in later:
        text = ECHOES[name](text)
    assert Redactor([], key=key).reveals(f"{before}{text}{after}")


@pytest.mark.parametrize("depth", [1, 5, 20])
def test_key_that_is_percent_encoded_again_and_again(depth, key):
    text = key
    for _ in range(depth):
        text = quote(text, safe="")
    assert Redactor([], key=key).reveals(text)


@pytest.mark.parametrize("text", ["%" + "25" * 20_000 + "41", "&" + "amp;" * 20_000 + "lt;"])
def test_text_that_is_encoded_without_end_is_withheld(text, key):
    assert Redactor([], key=key).text(text) == WITHHELD
    assert Redactor([]).text(text) == text


@pytest.mark.parametrize("depth", [5, 60])
def test_short_text_that_is_encoded_too_deeply_is_withheld(depth, key):
    """Its work is small: only the number of rounds ends it."""
    assert Redactor([], key=key).reveals("%" + "25" * depth + "41") == (depth > 24)


@pytest.mark.parametrize("key", ["ab-cde", "ab-cdef"])
def test_few_letters_are_compared_with_the_signs_between_them(key):
    assert Redactor([], key=key).reveals(f"-- {key.replace('-', '')} --") == (key == "ab-cdef")


@pytest.mark.parametrize("edge", [0, 2, 3])
def test_edges_of_a_key_of_fourteen(edge):
    key = "abcdefghijklmn"
    assert Redactor([], key=key).reveals(key[edge:]) == (edge < 3)
    assert Redactor([], key=key).reveals(key[: 14 - edge]) == (edge < 3)


@given(keys, st.text(" .,日\n"))
def test_text_without_the_key_stays_as_it_is(key, text):
    assume(not set(key) & set(text))
    assert Redactor([key], key=key).text(text) == text
    assert Redactor([]).text(text) == text


WORDS = st.sampled_from(
    ["the", "run", "was", "not", "started", "for", "this", "key", "Error", "HTTP", "NOT", "FOUND"]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.uuids().map(str)
    | st.datetimes().map(str)
    | st.binary().map(lambda data: base64.b64encode(data).decode())
    | st.binary().map(bytes.hex)
    | st.lists(WORDS, max_size=200).map(" ".join)
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text() | WORDS, inner), max_leaves=60
)
ENCODERS = (str, html.escape, quote, lambda text: base64.b64encode(text.encode()).decode())


@settings(max_examples=300)
@given(DOCUMENTS, st.booleans(), st.sampled_from(ENCODERS))
def test_ordinary_answers_stay_as_they_are(document, readable, encode):
    text = encode(json.dumps(document, ensure_ascii=not readable).encode(errors="replace").decode())
    assert Redactor(["Bearer 0dd-Zq7+xK/9=Tb"], key="wak-Zq7+xK/9=Tb&w%2").text(text) == text


PAGE = (
    '<div class="a b" style=\'color:#fff\'>&nbsp;Error &amp; more &#8211; <a href="/x?id=10&amp;b=%2Fx%20y">here</a>'
    '<script>var a = "\\u003cb\\u003e\\n";</script><br/>&copy; The Service, 4 All Street</div>\n'
)


def large_texts(size):
    """Return ordinary texts of ``size`` characters."""
    rnd = random.Random(7)
    words = [inspect.getsource(module) for module in (html, json, logging, random, re, threading, traceback)]
    records = [
        {
            "id": rnd.randrange(10**9),
            "url": f"https://x.example/a%20b?q={n}&lt=4",
            "at": "2026-01-02T03:04",
            "é": '\n"x',
        }
        for n in range(size // 100)
    ]
    data = rnd.randbytes(size)
    texts = {
        "HTML": PAGE * (size // len(PAGE) + 1),
        "words": " ".join(words) * (size // 50_000 + 1),
        "capitals": " ".join(re.findall(r"\w+", " ".join(words))).upper() * (size // 50_000 + 1),
        "JSON": json.dumps(records),
        "numbers": json.dumps([rnd.randrange(10**12) for _ in range(size // 12)]),
        "small numbers": json.dumps([*data]),
        "digits": "".join(rnd.choices(string.digits, k=size)),
        "hex": data.hex(),
        "uuids": " ".join(str(uuid.UUID(bytes=data[n : n + 16])) for n in range(0, size - 16, 16)),
        "base64": base64.b64encode(data).decode(),
        "words in base64": base64.b64encode(" ".join(words).encode() * (size // 50_000 + 1)).decode(),
        "lines": ("=" * 70 + "\n" + "-" * 70 + "\n") * (size // 140 + 1),
    }
    return {name: text[:size] for name, text in texts.items()}


@pytest.mark.parametrize("size", [2**12, 2**15, 2**18])
def test_large_ordinary_texts_stay_as_they_are(size, key):
    redactor = Redactor([], key=key)
    withheld = [name for name, text in large_texts(size).items() if redactor.reveals(text)]
    assert withheld == []


SLOW = {
    "backslashes": "\\",
    "percent signs": "%25",
    "ampersands": "&amp;",
    "entities": "&#0",
    "tags": "<a",
    "equals signs": "=3D",
    "almost the key": "{key}",
    "almost the key, in base64": "{base64}",
    "letters": "U",
    "digits": "41",
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("secret", ["letters", "backslashes"])
def test_time_is_linear_in_the_text(name, secret):
    """Of wall time, which sees a sleep as well; a quadratic step would make it 64 times as long."""
    key = "".join(
        random.Random(7).choices(string.ascii_letters if secret == "letters" else "\\\\\\u%&", k=512)
    )
    redactor = Redactor([f"Bearer {key[::-1]}" * 2], key=key)
    almost = key[:-100]
    piece = SLOW[name].format(key=almost, base64=base64.b64encode(almost.encode()).decode())

    def seconds(size):
        text = (piece * (size // len(piece) + 1))[:size]
        begun = time.perf_counter()
        redactor.reveals(text)
        return time.perf_counter() - begun

    short = min(seconds(2**17) for _ in range(3))
    long = min(seconds(2**20) for _ in range(3))
    assert long < 24 * short + 0.2
    assert long < 20


def test_time_is_linear_in_the_key():
    def seconds(size):
        begun = time.perf_counter()
        Redactor([], key="\\%25&amp;" * (size // 9))
        return time.perf_counter() - begun

    assert min(seconds(2**16) for _ in range(3)) < 24 * min(seconds(2**13) for _ in range(3)) + 0.2


# What a secret is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("Bearer hush-1234", "hush-1234"),
        ("Bearer hush-1234", "Bearer: hush-1234"),
        ("Basic dXNlcjpodXNoLTEyMzQ=", "dXNlcjpodXNoLTEyMzQ="),
        ("Basic dXNlcjpodXNoLTEyMzQ=", "user 'user', password 'hush-1234'"),
        ("basic dXNlcjpodXNoLTEyMzQ", "hush%2D1234"),
        ("first=hush-1234; second=hush-5678", "first=hush-1234"),
        ("first=hush-1234; second=hush-5678", "second=hush-5678"),
        ("hush hush hush", "hush hush hush"),
        ("hush1234", "HUSH1234"),
        ("!§$%&/()=?*+", "!$%&amp;/()=?*+"),
    ],
)
def test_secret_of_a_header(secret, text):
    assert Redactor([secret]).text(text) == WITHHELD
    assert not Redactor([secret]).reveals(text, key_only=True)
    assert not Redactor([]).reveals(text)


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("1", "run 1"),
        ("v1.2024", "v1.2024"),
        ("Bearer x", "Bearer x"),
        ("Negotiate hush-1234", "Negotiate"),
        ("Basic dXNlcm5hbWU6eA==", "password x of y"),
        ("Basic x", "Basic"),
        ("Basic !", "Basic"),
        ("", "text"),
        (" ", "text"),
        ("§§§§§§§§", "§§§§§§§§"),
    ],
)
def test_what_is_too_short_for_a_secret_is_not_searched_for(secret, text):
    assert Redactor([secret]).text(text) == text


@pytest.mark.parametrize("key", ["k", "K7", "!", "?!", "a-b-c", "abcdef", "-a-b-c-d-e-"])
def test_key_is_searched_for_whatever_its_length(key):
    redactor = Redactor([], key=key)
    assert redactor.text(f"... {key} ...") == WITHHELD
    assert redactor.text(f"... {key.encode().hex('%')} ... %{key.encode().hex('%')}") == WITHHELD
    assert redactor.text("...") == "..."


def test_edges_of_a_secret_do_not_matter_but_its_middle_does():
    secret = "abcdefghijklmnopqrstuvwxyz123456"
    redactor = Redactor([secret])
    assert redactor.reveals(secret[4:-4])
    assert not redactor.reveals(secret[5:])
    assert not redactor.reveals(secret[:-5])


def test_twelve_letters_of_the_key_in_a_row_are_too_many():
    key = "abcdefghijklmnopqrstuvwxyz123456"
    redactor = Redactor([], key=key)
    for start in range(len(key) - 11):
        assert redactor.reveals(f"... {key[start : start + 12]} ...")
        assert not redactor.reveals(f"... {key[start : start + 11]} ...")
        assert not redactor.reveals(key[start : start + 12], key_only=True)


def test_secrets_are_not_in_the_repr(key):
    assert key not in repr(Redactor([key], key=key)) + repr(
        FlowClient("https://service.example", api_key=key)
    )


# Replies ------------------------------------------------------------------------------------------------

NUMBER = "73019482650173846"


def read(body, key, *, by_key=True, secrets=(), headers=None, incomplete=""):
    operation = protocol.Operation.TRIGGER_BY_KEY if by_key else protocol.Operation.TRIGGER_BY_PATH
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = protocol.Reply(201, headers or {}, body, incomplete)
    return replies.read_trigger_reply(reply, operation, "POST https://x.example", Redactor(secrets, key=key))


@pytest.mark.parametrize(
    "document",
    [
        {"run_id": "7", "n": int(NUMBER)},
        {"run_id": "7", "n": [float(NUMBER[:12])]},
        {"run_id": "7", "a": {NUMBER: None}},
        {"run_id": "7", "a": [NUMBER[:6], {"b": NUMBER[6:12]}, [NUMBER[12:]]]},
        {"run_id": "7", NUMBER[:6]: {NUMBER[6:12]: 1, NUMBER[12:]: [2]}},
        {"run_id": "7", "a": base64.b64encode(NUMBER.encode()).decode()},
    ],
)
def test_kept_reply_is_withheld_where_the_key_is_anywhere_in_it(document):
    key = NUMBER[:12] if "n" in document else NUMBER
    for redacted in ({"key": key}, {"key": "another-key", "secrets": [key]}):
        run = read(document, **redacted)
        assert (run.run_id, run.reply) == ("7", WITHHELD)


def test_number_that_becomes_the_key_when_it_is_read():
    run = read(b'{"run_id": "7", "n": 123456788.99999999999999999}', "123456789.0")
    assert run.reply == WITHHELD


def test_kept_reply_of_utf_16():
    run = read(json.dumps({"run_id": "7", "key": NUMBER}).encode("utf-16"), NUMBER)
    assert (run.run_id, run.reply) == ("7", WITHHELD)


@pytest.mark.parametrize("echo", ["raw", "url, every character", "base64", "hex", "zero width"])
def test_run_id_and_link_that_contain_the_key_are_withheld(echo, key):
    echoed = ECHOES[echo](key)
    document = {"run_id": f"run-{echoed}", "run_link": f"https://x.example/{echoed}"}
    run = read(document, key)
    assert (run.run_id, run.run_link, run.reply) == (None, None, WITHHELD)
    with pytest.raises(ReplyUnusableError, match="its run_id contained the API key") as caught:
        read(document, key, by_key=False)
    nowhere(key, str(caught.value))


def test_run_id_that_is_the_key_as_a_number():
    assert read({"run_id": int(NUMBER)}, NUMBER).run_id is None


@pytest.mark.parametrize("by_key", [True, False])
def test_other_secrets_withhold_no_run_id_and_no_link(key, by_key):
    link = "https://x.example/hush-1234"
    run = read({"run_id": "hush-1234", "run_link": link}, key, by_key=by_key, secrets=["Bearer hush-1234"])
    assert (run.run_id, run.run_link, run.reply) == ("hush-1234", link, WITHHELD)


def test_harmless_header_value_changes_nothing(answering, key):
    server = answering(b'{"run_id": 1002, "run_link": "https://x.example/1"}')
    with FlowClient(server.base_url, api_key=key, headers={"X-Key-Version": "1"}) as client:
        run = client.trigger_flow({})
    assert (run.run_id, run.run_link) == ("1002", "https://x.example/1")
    assert run.reply == {"run_id": 1002, "run_link": "https://x.example/1"}


@pytest.mark.parametrize("run_id", ["a\0", "a\ud800"])
def test_run_id_that_no_database_takes_is_none(run_id, key):
    """It would be another's if it were rewritten."""
    run = read({"run_id": run_id, "run_link": "b\0"}, key)
    assert (run.run_id, run.run_link) == (None, "b\ufffd")
    with pytest.raises(ReplyUnusableError, match="characters that no database keeps"):
        read({"run_id": run_id}, key, by_key=False)


def test_coding_that_holds_the_key(key):
    with pytest.raises(ReplyUnusableError) as caught:
        read(b"x", key, headers={"content-encoding": key})
    assert WITHHELD in str(caught.value)
    nowhere(key, str(caught.value))


def test_kept_reply_is_linear_in_the_length():
    def seconds(size):
        body = json.dumps({"run_id": "7", "a": [[{"b": 1, "c": "d"}]] * (size // 24)}).encode()
        begun = time.perf_counter()
        read(body, "wak-Zq7+xK/9=Tb&w%2")
        return time.perf_counter() - begun

    assert min(seconds(2**19) for _ in range(3)) < 24 * min(seconds(2**16) for _ in range(3)) + 0.2


# On the wire --------------------------------------------------------------------------------------------


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
    assert "What the service said is withheld" in str(caught.value)
    nowhere(key, everything(caught))
    assert WITHHELD in wire_log.text, "the wire was not logged"
    nowhere(key, wire_log.text)


def test_success_that_echoes_the_key(service, client, key, wire_log):
    service.faults.add("echo_key", status=201, times=None)
    run = client.trigger_flow({})
    assert run.run_id == "1001"
    answer = client.upload_files(run.run_id, [], "demo-flow")
    assert answer == run.reply == WITHHELD
    assert WITHHELD in wire_log.text
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


@pytest.mark.parametrize("status", [200, 400, 500])
def test_nothing_of_a_response_that_was_cut_off_is_quoted(raw_server, key, attempt, status):
    body = b'{"run_id": "7", "words": "these words are quoted nowhere ' + key[:-1].encode()
    server = raw_server(b"HTTP/1.1 %d Words\r\nContent-Length: 999\r\n\r\n" % status + body)
    with FlowClient(server.base_url, api_key=key) as client:
        try:
            text = attempt.send(client)
        except WorkflowAutomationError as error:
            text = str(error)
    assert "words are" not in text
    assert key[:4] not in text
    assert ("cut off after" if status == 200 else "What the service said is not shown") in text


def test_response_without_words_that_was_cut_off(raw_server, key):
    server = raw_server(b"HTTP/1.1 400 Words\r\nContent-Length: 999\r\n\r\n \n")
    with FlowClient(server.base_url, api_key=key) as client, pytest.raises(RefusedError) as caught:
        client.trigger_flow({})
    assert "said" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "Bearer hush-1234",
        "your token is hush-1234",
        "aHVzaC0xMjM0",
        "proxy: p%40ss-9876",
        "proxy: p@ss-9876",
        "Cookie: first=crumb-24680",
    ],
)
def test_secret_headers_and_the_password_of_a_proxy_are_withheld(answering, text):
    server = answering(text.encode(), status=400)
    with (
        FlowClient(
            "http://service.example/api",
            allow_http=True,
            headers={
                "Authorization": "Bearer hush-1234",
                "Cookie": "first=crumb-24680; second=2",
                "X-Team": "data-engineering",
            },
            proxy=f"http://user:p%40ss-9876@127.0.0.1:{server.port}",
        ) as client,
        pytest.raises(RefusedError, match="withheld") as caught,
    ):
        client.trigger_flow({}, "demo-flow")
    assert not re.search("hush|aHVz|p%40ss|p@ss|crumb", str(caught.value))
    ((head, _),) = server.requests
    assert b"Bearer hush-1234" in head


def test_header_that_is_no_secret_is_quoted(answering):
    server = answering(b"the team is data-engineering", status=400)
    with (
        FlowClient(server.base_url, headers={"X-Team": "data-engineering"}) as client,
        pytest.raises(RefusedError, match='The service said: "the team is data-engineering"'),
    ):
        client.trigger_flow({}, "demo-flow")


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
    assert [line.getMessage() for line in lines] == [WITHHELD, f"the key is {key}"]


# Parts of a key -------------------------------------------------------------------------------------------


LONG_KEY = "sk_live_oHwLMeaZqo9DZDNjN1GTPdVKsb42xyQ7"


@pytest.mark.parametrize(
    "echo",
    [
        f"The key '{LONG_KEY[:16]}...' is not valid",
        f"The key '...{LONG_KEY[-14:]}' is not valid",
        json.dumps({"prefix": LONG_KEY[:20], "rest": LONG_KEY[20:]}),
        json.dumps([LONG_KEY[:11], LONG_KEY[11:22], LONG_KEY[22:33], LONG_KEY[33:]]),
        "".join(chr(ord(letter) + 0xFEE0) for letter in LONG_KEY),
        '<b class="x">'.join(LONG_KEY),
    ],
)
def test_part_of_a_key_is_withheld(answering, echo):
    server = answering(echo.encode(), status=401)
    with FlowClient(server.base_url, api_key=LONG_KEY) as client, pytest.raises(RefusedError) as caught:
        client.trigger_flow({})
    assert "withheld" in str(caught.value)
    assert LONG_KEY[:8] not in str(caught.value)


def test_short_beginning_of_a_key_is_shown(answering):
    """As services name a key to those who have several."""
    server = answering(b"The key sk_live_oHw... has expired", status=401)
    with FlowClient(server.base_url, api_key=LONG_KEY) as client, pytest.raises(RefusedError) as caught:
        client.trigger_flow({})
    assert "The key sk_live_oHw... has expired" in str(caught.value)


def test_log_filter_that_fails_withholds_the_line(key):
    class Unprintable:
        def __str__(self):
            raise RuntimeError

    redactor = Redactor([], key=key)
    guard_wire_logs(redactor)
    record = logging.LogRecord("httpx", logging.INFO, "", 0, "%s", (Unprintable(),), None)
    assert logging.getLogger("httpx").filter(record)
    assert "withheld" in record.getMessage()
