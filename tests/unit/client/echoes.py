"""The forms in which a service may echo a key."""

from __future__ import annotations

import base64
import html
import json
import quopri
import re
from urllib.parse import quote, quote_plus


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


def nowhere(key, text):
    """Check that no form of the key is in a text, however escaped."""
    for name, echo in ECHOES.items():
        assert echo(key) not in text, name
    assert key[:8] not in text
