"""The key is seen by nobody, in whatever form the service echoes it."""

from __future__ import annotations

import base64
import hashlib
import html
import inspect
import json
import logging
import random
import re
import string
import threading
import time
import traceback
import uuid
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.redaction import (
    WITHHELD,
    Redactor,
    guard_wire_logs,
    without_credentials,
)

from .echoes import ECHOES

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
def test_ordinary_responses_stay_as_they_are(document, readable, encode):
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


@pytest.mark.no_cover
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("secret", ["letters", "backslashes"])
def test_time_is_linear_in_the_text(name, secret):
    """Of CPU time, which other processes do not change; a quadratic step would make it 64 times as long."""
    key = "".join(
        random.Random(7).choices(string.ascii_letters if secret == "letters" else "\\\\\\u%&", k=512)
    )
    redactor = Redactor([f"Bearer {key[::-1]}" * 2], key=key)
    almost = key[:-100]
    piece = SLOW[name].format(key=almost, base64=base64.b64encode(almost.encode()).decode())

    def seconds(size):
        text = (piece * (size // len(piece) + 1))[:size]
        begun = time.thread_time()
        redactor.reveals(text)
        return time.thread_time() - begun

    short = min(seconds(2**17) for _ in range(3))
    long = min(seconds(2**20) for _ in range(3))
    assert long < 24 * short + 0.2
    assert long < 20


@pytest.mark.no_cover
def test_time_is_linear_in_the_key():
    def seconds(size):
        begun = time.thread_time()
        Redactor([], key="\\%25&amp;" * (size // 9))
        return time.thread_time() - begun

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


# Wire logs ----------------------------------------------------------------------------------------------


@pytest.mark.no_cover
def test_clients_that_come_and_go_do_not_disturb_a_log_line(key):
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


@given(st.text(string.ascii_letters + string.digits + "-_", min_size=43, max_size=43), around, around)
def test_secret_of_which_only_the_hash_is_known(token, before, after):
    redactor = Redactor([])
    redactor.add_hashed(hashlib.sha256(token.encode()).hexdigest(), 43)
    before, after = "".join(before), "".join(after)
    url = f"https://airflow.example/callback?token={token}"
    for text in (
        token,
        url,
        json.dumps({"of": url}),
        quote(url, safe=""),
        base64.b64encode(url.encode()).decode(),
    ):
        assert redactor.reveals(f"{before} {text} {after}")
    for text in (before, f"{before} {token[:-1]} {after}"):
        assert not redactor.reveals(text)


def test_log_filter_that_fails_withholds_the_line(key):
    class Unprintable:
        def __str__(self):
            raise RuntimeError

    redactor = Redactor([], key=key)
    guard_wire_logs(redactor)
    record = logging.LogRecord("httpx", logging.INFO, "", 0, "%s", (Unprintable(),), None)
    assert logging.getLogger("httpx").filter(record)
    assert "withheld" in record.getMessage()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA:a/b+c@bucket/key", "s3://AKIA:***@bucket/key"),
        ("s3://conn_id@bucket/a?.csv", "s3://conn_id@bucket/a?.csv"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("(url='HTTPS://u:pw@host:1/f?sig=a%20b'), next", "(url='HTTPS://u:***@host:1/f?***'), next"),
        ("no URL: a@b?c", "no URL: a@b?c"),
    ],
)
def test_credentials_of_urls_are_left_out(text, shown):
    assert without_credentials(text) == shown


# What they are, by expressions that take quadratic time.
PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):(?!\d+/)\S+@")
QUERY = re.compile(r"\b(https?://[^\s?]*\?)\S+?(?=[\"'`)>\],.;:]*(?:\s|$))", re.IGNORECASE)
pieces = st.sampled_from(
    ["http://", "HTTPS://", "s3://", "://", "/", ":", "@", "?", "80", ")", ".", " ", "\n", "\u2003", "a"]
)


@given(st.lists(pieces).map("".join))
def test_credentials_of_urls_are_found_wherever_they_are(text):
    assert without_credentials(text) == QUERY.sub(r"\1***", PASSWORD.sub(r"\1:***@", text))


@pytest.mark.parametrize("piece", ["http://", "://a:", "http://x?", "://", ".", "a@", "://a:1"])
def test_a_long_text_without_credentials_is_read_once(piece):
    """In quadratic time, this would take days."""
    text = f"http://{piece * 1_000_000}"
    assert without_credentials(text) == ("http://http://x?***" if "?" in piece else text)
