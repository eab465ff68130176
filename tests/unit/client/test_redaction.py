"""What the redactor finds, and what it leaves alone."""

from __future__ import annotations

import base64
import html
import json
import random
import re
import string
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client.redaction import (
    WITHHELD,
    Redactor,
    shown,
    without_credentials,
    without_credentials_of,
)

from .conftest import KEY
from .forms import FORMS

KEYS = st.text(
    string.ascii_letters + string.digits + string.punctuation, min_size=8, max_size=40
).filter(
    # Not a key that is little more than signs, or escape sequences itself.
    lambda key: len(re.sub(r"[%\\&]\w*|\W|_", "", key)) >= 6
)
ESCAPES = (
    *("{}", "%{:02x}", "%{:02X}", "%25{:02x}", "\\u{:04x}", "\\\\u{:04X}"),
    *("&#{};", "&#x{:X};", "&amp;#{:d};"),
)
AROUND = st.lists(
    st.sampled_from(
        [" ", ".", ": ", '"', "'", "(", ")", "\n", "日", "?key:", "&key:", "the key is ", "{}"]
    ),
    max_size=6,
).map("".join)

# Words of errors, and what stands between them.
PROSE = st.lists(
    st.sampled_from(
        ["the", "run", "was", "not", "started", "this", "API", "key", "Error", "404", "Zq7", "wak"]
    )
    | st.integers().map(str)
    | st.uuids().map(str)
    | st.datetimes().map(str)
    | st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())
    | st.binary(max_size=60).map(bytes.hex),
    max_size=40,
).map(" ".join)
ENCODERS = (
    str,
    str.upper,
    html.escape,
    quote,
    json.dumps,
    lambda text: base64.b64encode(text.encode()).decode(),
)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@settings(max_examples=10)
@given(key=KEYS, before=AROUND, after=AROUND)
@example(key='wak-Zq7+xK/9=Tb&w%2"', before="", after="")
def test_text_with_the_key_is_withheld(form, key, before, after):
    redactor = Redactor([], key=key)
    text = f"{before}{form(key)}{after}"
    assert redactor.has_key(text)
    assert redactor.text(text) == WITHHELD


@given(
    key=KEYS,
    escapes=st.lists(st.sampled_from(ESCAPES), min_size=40, max_size=40),
    before=AROUND,
    after=AROUND,
)
def test_each_character_may_be_escaped_in_another_way(key, escapes, before, after):
    hidden = "".join(
        sign if escape == "{}" else escape.format(ord(sign))
        for sign, escape in zip(key, escapes, strict=False)
    )
    redactor = Redactor([], key=key)
    assert redactor.has_key(f"{before}{hidden}{after}")


@given(PROSE.flatmap(lambda text: st.sampled_from([encode(text) for encode in ENCODERS])))
def test_ordinary_text_stays_as_it_is(text):
    assert Redactor(["Bearer 0dd-Zq7+xK/9=Tb"], key=KEY).text(text) == text


def test_parts_of_the_key_count_in_free_text_alone():
    """A service makes the ids and links of runs of its own ids, and one may begin its keys."""
    redactor = Redactor([], key="abcdef-ghijkl-mnopqrst")
    letters = "abcdefghijklmnopqrst"
    for size in range(1, len(letters)):
        for start in range(len(letters) - size + 1):
            part = letters[start : start + size]
            # Wherever it begins.
            assert redactor.reveals(f"{'0' * start}... {part} ...") is (size >= 12)
            assert not redactor.has_key(part)
            assert not redactor.has_secret(part)
    assert redactor.has_key(letters)
    assert redactor.has_secret(letters)


@pytest.mark.parametrize("key", ["a-b-c-d-e-f", "secret", "demo-key"])
def test_key_of_six_letters_is_searched_for_among_letters(key):
    redactor = Redactor([], key=key)
    for text in (
        f"a{key}b",
        " ".join(key),
        quote_plus(f"({key})"),
        base64.b64encode(key.encode()).decode(),
    ):
        assert redactor.text(f"... {text} ...") == WITHHELD
    assert redactor.text(key[:-1]) == key[:-1]


def test_key_that_looks_escaped_with_what_is_before_it():
    assert Redactor([], key="41abcdef0123").text("%41abcdef0123") == WITHHELD


@pytest.mark.parametrize("text", ["&#26085;", "&#x65e5;", "&#255;", "\\u65e5", "%e6%97%a5"])
def test_what_is_escaped_and_no_letter_is_left_out(text):
    assert Redactor([], key=KEY).text(text) == text
    assert Redactor([], key=KEY).text(f"{KEY[:9]}{text}{KEY[9:]}") == WITHHELD


def test_another_secret_is_withheld_as_strictly_as_the_key():
    redactor = Redactor([], key=KEY)
    redactor.add("Abc-_123" * 5)
    for text in (KEY, "Abc-_123" * 5):
        assert redactor.has_key(text)
    redactor = Redactor([], key="abcdef-ghijkl-mnopqrst")
    redactor.add("0123-4567-89AB-CDEF")
    for part in ("ghijkl-mnopqr", "4567-89AB-CDEF"):
        assert redactor.text(part) == WITHHELD


def test_what_differs_at_its_end_is_another_secret():
    redactor = Redactor([], key="abcdefghijkl")
    for text in ("abcdefghijk!", base64.b64encode(b"abcdefghijk!").decode()):
        assert redactor.text(text) == text


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_text_with_a_marker_is_withheld(form):
    redactor = Redactor([], key=KEY)
    redactor.add_marker("/callback?token=")
    for one in (redactor, redactor.joined(Redactor([]))):
        assert one.text(form("https://host/callback?token=hush")) == WITHHELD
        assert one.has_key(form("https://host/callback?token=hush"))
        assert one.text("no callback?tok") == "no callback?tok"
    assert not Redactor([], key=KEY).reveals("https://host/callback?token=hush")


def test_redactors_that_are_joined_find_the_secrets_and_parts_of_both():
    keys = ["abcdef-ghijkl-mnopqrst", "ABCDEF-012345-67890123"]
    first, second = (Redactor([], key=key) for key in keys)
    for one in (first.joined(second), second.joined(first)):
        assert one.text("ghijkl-mnopqr") == one.text("012345-678901") == WITHHELD


@pytest.mark.parametrize("value", [KEY, {"by": [KEY]}, [1, KEY]])
def test_a_value_with_the_key_is_withheld(value):
    assert Redactor([], key=KEY).value(value) == WITHHELD
    assert Redactor([], key="another-key").value(value) == value


# What a secret is ---------------------------------------------------------------------------------

OF_USER = base64.b64encode(b"user:h\xfcsh:12345").decode()


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("Bearer hush-1234", "hush-1234"),
        (f"Basic {OF_USER}", OF_USER),
        ("first=hush-1234; second=hush-5678", "second=hush-5678"),
        ("first=hush-1234; second=hush-5678", "no such id: hush-1234"),
        ("first=hush-1234; second=hush-5678", "no such id: hush-5678"),
        ('Token id=1, token="hush-1234"', "no such id: hush-1234"),
        ("Key user:hush-1234", "no such id: hush-1234"),
        ("hush-1234==", "no such id: hush-1234"),
        ("hush-123", "no such id: hush-123"),
        ("one two three", "no such id: one two three"),
    ],
)
def test_secret_of_a_header(secret, text):
    assert Redactor([secret]).text(text) == WITHHELD
    assert Redactor([secret]).has_secret(text)
    assert not Redactor([secret]).has_key(text)
    assert not Redactor([]).reveals(text)


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("1", "run 1"),
        ("v1.2024", "v1.2024"),
        ("Negotiate hush-1234", "Negotiate"),
        ("session_id=hush-1234", "session_id"),
        ("!§$%&/()=?*+", "!§$%&/()=?*+"),
    ],
)
def test_what_is_too_short_for_a_secret_is_not_searched_for(secret, text):
    assert Redactor([secret]).text(text) == text


# Hostile texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "piece",
    [
        *("\\", "%25", "&amp;", "&#0", "&a", "\\u00", "<", "wak-Zq7+xK/9=Tb&w"),
        *("://a:", "://a:1/", "://:@", "http://", "?.", "?a", "://?"),
    ],
)
def test_time_is_linear_in_the_length_of_hostile_texts(piece):
    """
    A step that is quadratic takes a hundred times as long for a text that is ten times as long.
    """
    redactor = Redactor([f"Bearer {KEY}"], key=KEY)

    def seconds(size):
        texts = [(before + piece * size)[:size] + "x" for before in ("", "http://u:p", "http://h?")]
        began = time.process_time()
        for text in texts:
            redactor.reveals(text)
            without_credentials(text)
        return time.process_time() - began

    assert seconds(100_000) < 40 * max(seconds(10_000), 0.001)


@pytest.mark.parametrize("length", [40, 8_000])
def test_time_does_not_grow_with_the_key(length):
    letters = random.Random(1).choices(string.ascii_letters, k=length + 1_000_000)
    redactor = Redactor((), key="".join(letters[:length]))
    began = time.process_time()
    assert not redactor.reveals("".join(letters[length:]))
    assert time.process_time() - began < 1.0


@given(st.text("abcdef", min_size=12, max_size=30), st.integers(0, 18), st.text("xyz"))
def test_each_part_of_the_key_is_found_wherever_it_begins(key, start, before):
    redactor = Redactor((), key=key)
    part = key[start : start + 12]
    assert redactor.reveals(f"{before}{part}x") == (len(part) == 12)


# Credentials in URLs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://AKIA:a@b@bucket/key", "s3://AKIA:***@bucket/key"),
        ("?url:http://host/a?b", "?url:http://host/a?***"),
        ("s3://conn_id@bucket/a?.csv", "s3://conn_id@bucket/a?.csv"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        (
            "(url='HTTPS://u:pw@host:1/f?sig=a%20b'), next",
            "(url='HTTPS://u:***@host:1/f?***'), next",
        ),
        ("no URL: a@b?c", "no URL: a@b?c"),
        ("sftp://u:pw@host/a?sig=a%20b, next", "sftp://u:***@host/a?***, next"),
        ("abfss://c@host/a?sv=1&sig=a", "abfss://c@host/a?***"),
        ("s3://bucket/20?5/month=1/a.csv", "s3://bucket/20?5/month=1/a.csv"),
        ("no URL: a?b=c", "no URL: a?b=c"),
        ("http://u:@host/", "http://u:@host/"),
        ("http://h/a? https://h/b?c.", "http://h/a? https://h/b?***."),
        ("sftp://host.example:22/a@b", "sftp://host.example:22/a@b"),
        ("s3://AKIA:1/2@bucket/key", "s3://AKIA:***@bucket/key"),
        ("http://u@host:80/a@b", "http://u@host:***@b"),
        ("s3://bucket/a?sig=b&to=ftp://host", "s3://bucket/a?***"),
        ("?a=s3://bucket/b", "?a=s3://bucket/b"),
        ("://a?b=c", "://a?b=c"),
        ("a://b?c=d", "a://b?***"),
    ],
)
def test_credentials_of_urls_are_left_out(text, expected):
    assert without_credentials(text) == expected


def test_a_source_is_shown_without_its_credentials():
    assert shown("s3://AKIA:pass word@bucket/key") == "'s3://AKIA:***@bucket/key'"
    assert shown("http://host/a?sig=hush http://u:pw@host/b") == "'http://host/a?***'"


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("sftp://u:h%2Fush-1234@host/a", "no login with h%2Fush-1234", "no login with ***"),
        ("sftp://u:h%2Fush-1234@host/a", "no login with h/ush-1234", WITHHELD),
        ("http://host/a?sig=hush-1234", "GET /a?sig=hush-1234", "GET /a?***"),
        ("http://host/a?sig=hush-1234", "sig=HUSH%2D1234 is wrong", WITHHELD),
        ("s3://bucket/a", "see http://u:pw@host/b", "see http://u:***@host/b"),
    ],
)
def test_a_message_about_a_source_is_without_its_credentials(source, text, expected):
    assert without_credentials_of(source, text) == expected


SECRETS = st.text(string.ascii_letters + string.digits + ":/@?&=+%", min_size=4).map(
    "hush{}".format
)


@given(AROUND, SECRETS, SECRETS, AROUND)
def test_any_credentials_of_urls_are_left_out(before, password, query, after):
    found = without_credentials(f"{before} https://user:{password}@host/a?{query} {after}")
    assert "hush" not in found
    assert found.startswith(f"{before} https://user:***@")
    assert found.endswith(f" {after}")
