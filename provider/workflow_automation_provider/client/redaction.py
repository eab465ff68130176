"""
Redact secrets from errors, logs and results, also where the service encodes what it sends back.

A text and a secret are compared in one normal form: the escape sequences of URLs, JSON and HTML are
decoded, and then only letters and digits count. So neither separators nor line breaks nor the zero
bytes of UTF-16 hide a secret. It is searched for as it is, and in base64.
"""

from __future__ import annotations

import base64
import json
import math
import re
import string
import struct
from collections.abc import Iterable, Iterator
from typing import Any

WITHHELD = "(withheld: it contains the API key or another secret)"
"""What replaces a text that reveals a secret."""

# A secret of fewer letters and digits would be found in prose: it is not searched for.
_MIN_LETTERS = 6

# A header's value of fewer characters is no secret.
_MIN_SECRET = 8

# A part of the key of this many letters and digits is withheld in free text as well: services
# shorten what they echo.
_PART = 12

# Where a text has such a part, one of its own blocks of this many letters and digits, of which one
# begins at each fourth, lies within the part. Many at once are taken from it.
_BLOCK, _STEP = 8, 4
_BLOCKS = struct.Struct(f"{_BLOCK}s" * 500)

_NOT_ALNUM = bytes(range(256)).translate(None, (string.ascii_letters + string.digits).encode())

# What escapes a character in a URL, in JSON or in HTML, also where its own first character is
# escaped again: "%2541" is "A". Each branch takes a whole run of such characters, whatever follows,
# so that no run is scanned again from its middle. Each begins with one literal: so the expression
# passes over all else quickly.
_ESCAPE = re.compile(
    rb"%(?:25)*([0-9a-f]{2})"
    rb"|\\\\*(?:u([0-9a-f]{4})|[bfnrt])?"
    rb"|&(?:amp;)*(?:\#x([0-9a-f]{1,6})|\#([0-9]{1,7})|[a-z]{2,8});",
    re.IGNORECASE,
)

# Credentials in URLs: a password, and a query, which may be signed. In a location that is no web
# address, a question mark without a name and ``=`` after it belongs to a glob.
_USER = re.compile(r"://([^\s/:]*+):")
_PORT = re.compile(r"\d++/")
_WEB_ADDRESS = re.compile(r"\bhttps?://", re.IGNORECASE)
_NAMED_QUERY = re.compile(r"\?(?=[\w.~-]+=)")
_AROUND_URL = "\"'`)>],.;:"

# What is around the values in a header: a scheme at its beginning, separators, and names. Of
# ``Bearer hush-1234`` it is ``Bearer ``, and of ``first=1; second=2`` it is ``first=`` and
# ``; second=``.
_AROUND_VALUE = re.compile(r"(?:^(?:[\w-]+ )?|[\s;,:]+)(?:[\w.-]+=(?=[^\s;,=]))?")


CALLBACK_PATH = "/workflow-automation/callback"
"""The path of the callback endpoint: beside it, in a URL, there is a run's token."""

SECRET_PARAMETERS = ("X-Amz-Signature", "X-Amz-Security-Token", "X-Goog-Signature", "sig")
"""The parameters of a presigned URL that must not be shown."""

SIGNATURE_MARKS = (
    "X-Amz-Signature=",
    "X-Amz-Security-Token=",
    "X-Goog-Signature=",
    "sp=c&sv=20",
)
"""Where a text has one of these, a signature follows; of Azure, one that creates a blob."""


class Redactor:
    """
    Find secrets in texts: the API key, and other secrets of the connection and its requests.

    A service makes the id and the link of a run of its own ids, and an id may be a part of the key:
    there, only a whole secret counts. In any other text, parts of the key count too.

    :param secrets: header values and passwords; one that is too short to be a secret is ignored
    :param key: the API key, empty if there is none
    """

    def __init__(self, secrets: Iterable[str], *, key: str = "") -> None:
        self._keys: frozenset[bytes] = frozenset()
        self._secrets: frozenset[bytes] = frozenset()
        self._key_parts: frozenset[bytes] = frozenset()
        self._key_blocks: frozenset[bytes] = frozenset()

        for secret in _secret_values(secrets):
            self._secrets |= _forms(secret)
        self.add(key)

    def add(self, secret: str) -> None:
        """Search for another secret as strictly as for the API key."""
        self.add_marker(secret)
        self._key_parts |= _runs_of(secret, _PART)
        self._key_blocks |= _runs_of(secret, _BLOCK)

    def add_marker(self, marker: str) -> None:
        """
        Search for a text beside which there is a secret, such as the beginning of a URL.

        It is searched for as the API key is, but its parts do not count.
        """
        forms = _forms(marker)
        self._keys |= forms
        self._secrets |= forms

    def joined(self, other: Redactor) -> Redactor:
        """Return a redactor that finds the secrets of both."""
        both = Redactor(())
        both._keys = self._keys | other._keys
        both._secrets = self._secrets | other._secrets
        both._key_parts = self._key_parts | other._key_parts
        both._key_blocks = self._key_blocks | other._key_blocks
        return both

    def has_key(self, text: str) -> bool:
        """Return whether a text contains the whole API key, in whatever form."""
        return _is_any_in(self._keys, _joined_normal(text))

    def has_secret(self, text: str) -> bool:
        """Return whether a text contains a whole secret, in whatever form."""
        return _is_any_in(self._secrets, _joined_normal(text))

    def reveals(self, text: str) -> bool:
        """Return whether a text contains a secret, or twelve consecutive letters of the API key."""
        normal = _joined_normal(text)
        return _is_any_in(self._secrets, normal) or self._has_part_of_key(normal)

    def _has_part_of_key(self, normal: bytes) -> bool:
        """Return whether a text has a part of the key, of which a long key has thousands."""
        for start in (0, _STEP):
            rest = normal[start:]
            padding = bytes(-len(rest) % _BLOCKS.size)
            for blocks in _BLOCKS.iter_unpack(rest + padding):
                if not self._key_blocks.isdisjoint(blocks):
                    return _is_any_in(self._key_parts, normal)

        return False

    def text(self, text: str) -> str:
        """Return ``text`` unchanged, or a note instead if it reveals a secret."""
        return WITHHELD if self.reveals(text) else text

    def value(self, value: Any) -> Any:
        """Return a JSON value unchanged, or a note instead if it reveals a secret."""
        text = value if isinstance(value, str) else json.dumps(value)
        return WITHHELD if self.reveals(text) else value


def _secret_values(headers: Iterable[str]) -> set[str]:
    """
    Return the values of headers, and what they consist of, that are long enough to be secrets.

    ``Bearer hush-1234`` is a secret as a whole, and so is ``hush-1234`` alone: a service may echo
    it without its scheme. Of ``first=hush-1234; second=hush-5678``, it is each of the two values.
    """
    values = set[str]()
    for header in headers:
        values.add(header)
        values.update(_AROUND_VALUE.split(header))

    return {value for value in values if len("".join(value.split())) >= _MIN_SECRET}


def _is_any_in(forms: Iterable[bytes], normal: bytes) -> bool:
    return any(form in normal for form in forms)


def without_credentials(text: str) -> str:
    """Return a text without the passwords and the queries of its URLs."""
    return re.sub(r"\S+", lambda match: _without(match[0]), text)


def shown(source: object) -> str:
    """Return a path or URL that an author gave, in quotes and without its credentials."""
    text = str(source)
    # As a whole: a password may have blanks.
    return repr(without_credentials(_without(text)))


def without_credentials_of(source: str, text: str) -> str:
    """
    Return a message about a path or URL without its credentials, however they are written.

    :param source: the path or URL that an author gave
    :param text: the message, such as that of an exception, which may quote a part of it
    """
    for secret in (_password(source), _query(source)):
        if secret:
            text = Redactor((), key=secret).text(text.replace(secret, "***"))

    return without_credentials(text)


def _without(word: str) -> str:
    """Return a URL without its password and its query."""
    password = _password(word)
    if password:
        word = word.replace(f":{password}@", ":***@")

    query = _query(word)
    return word.replace(f"?{query}", "?***") if query else word


def _password(word: str) -> str:
    """Return the password in a URL, empty if there is none."""
    user = _USER.search(word)
    if user is None:
        return ""
    # A store's URL begins with the name of a connection; what has a port is a host.
    is_host = "." in user[1] or _WEB_ADDRESS.search(word) is not None
    if is_host and "@" not in user[1] and _PORT.match(word, user.end()):
        return ""
    return word[user.end() : max(word.rfind("@"), user.end())]


def _query(word: str) -> str:
    """Return the query of a URL, empty if there is none."""
    web = _WEB_ADDRESS.search(word)
    if web is not None:
        _, _, query = word[web.end() :].partition("?")
        return query.rstrip(_AROUND_URL)

    scheme = word.find("://")
    named = _NAMED_QUERY.search(word, scheme) if scheme > 0 else None
    return word[named.end() :].rstrip(_AROUND_URL) if named else ""


def _forms(secret: str) -> frozenset[bytes]:
    """Return a whole secret in the forms that are searched for among letters and digits."""
    forms = {*_normal(secret), *_in_base64(_ascii(secret))}
    return frozenset(form for form in forms if len(form) >= _MIN_LETTERS)


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """
    Yield what a secret is in base64, wherever it begins in the text that is encoded.

    Base64 writes three bytes as four characters, so there are three ways. ``key`` at the beginning
    is ``a2V5``. In ``.key``, which is ``LmtleQ==``, only ``tle`` comes from it alone: ``m`` and
    ``Q`` also hold bits of what is beside it.
    """
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        first_whole = math.ceil(before * 8 / 6)
        end_of_whole = (before + len(raw)) * 8 // 6
        yield _letters(encoded[first_whole:end_of_whole])


def _runs_of(secret: str, size: int) -> frozenset[bytes]:
    """Return all runs of so many letters and digits in a secret."""
    letters = _letters(_ascii(secret))
    starts = range(len(letters) - size + 1)
    return frozenset(letters[start : start + size] for start in starts)


def has_enough_letters(key: str) -> bool:
    """Return whether a key has enough letters and digits to be told from other words."""
    return len(_letters(_ascii(key))) >= _MIN_LETTERS


def _joined_normal(text: str) -> bytes:
    return b"\n".join(_normal(text))


def _normal(text: str) -> tuple[bytes, bytes]:
    """
    Return the letters and digits of a text, as it is and unescaped.

    Both, because text before a secret may look like an escape sequence with it.
    """
    raw = _ascii(text)
    return _letters(raw), _letters(_ESCAPE.sub(_decode, raw))


def _decode(escape: re.Match[bytes]) -> bytes:
    """Return the ASCII character that an escape sequence stands for, empty if it is another."""
    url, in_json, in_html, decimal = escape.groups()
    hexadecimal = url or in_json or in_html
    if decimal:
        code = int(decimal)
    elif hexadecimal:
        code = int(hexadecimal, 16)
    else:
        return b""  # such as \n or &quot;, of which no letter remains

    return bytes([code]) if code < 128 else b""


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "ignore")


def _letters(raw: bytes) -> bytes:
    """Return only the letters, in lower case, and the digits."""
    return raw.translate(None, _NOT_ALNUM).lower()
