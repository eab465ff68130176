"""The forms in which the service may send a key back."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus


def between(separator, every=1):
    return lambda key: separator.join(
        key[start : start + every] for start in range(0, len(key), every)
    )


def in_base64(before=b"", after=b""):
    return lambda key: base64.b64encode(before + key.encode() + after).decode()


FORMS = {
    "raw": str,
    "swapped": str.swapcase,
    "url": lambda key: quote(key, safe=""),
    "url, form": quote_plus,
    "url, every character": lambda key: "".join(f"%{ord(c):02x}" for c in key),
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON in JSON": lambda key: json.dumps(json.dumps(key)),
    "JSON of PHP": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "repr of bytes": lambda key: repr(bytearray(key.encode()))[12:-2],
    "html": html.escape,
    "base64": in_base64(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(key.encode()).decode().rstrip("="),
    "base64, at 1": in_base64(before=b"-", after=b": "),
    "base64, at 2": in_base64(before=b": ", after=b"-"),
    "base64, in lines": lambda key: between("\r\n", 7)(in_base64()(key)),
    "base64 in a URL": lambda key: quote(in_base64()(key), safe=""),
    "UTF-16": lambda key: key.encode("utf-16").decode(errors="replace"),
    "UTF-16, big end first": lambda key: key.encode("utf-16-be").decode(errors="replace"),
    "wrapped and indented": between("\r\n\t    ", 3),
    "control characters": between("\x01"),
    "zero width": between("\u200b"),
    "blanks": between(" "),
    "hyphens": between("-", 4),
}


def nowhere(key, text):
    """Check that no form of the key is in a text."""
    for name, form in FORMS.items():
        assert form(key) not in text, name
    assert key[:8] not in text
