"""
Redact secrets from errors, logs and results, where the service sends them back in an encoding of its own.

A text and a secret are compared in one normal form: the escape sequences of URLs, JSON and HTML are decoded, and then only
letters and digits count. So neither separators nor line breaks nor the zero bytes of UTF-16 hide a secret. It is searched for
as it is, and in base64.
"""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Iterable

WITHHELD = "(withheld: it contains the API key or another secret)"
"""What replaces a text that reveals a secret."""

CALLBACK_PATH = "/workflow-automation/callback"
"""Path of the URL that a flow calls at its end, below the base URL of Airflow's API server."""

# What follows is the token of a waiting task. Only the try that made it knows it, but each may be sent it again.
_CALLBACK = f"{CALLBACK_PATH}?token="

# A secret of fewer letters and digits would be found in prose: the API key is then searched for as a word. A header's value
# of fewer characters is none.
_MIN_LETTERS, _MIN_SECRET = 6, 8

# A part of the key this long, in letters and digits, is withheld as well: services shorten what they echo.
_PART = 12

_NOT_ALNUM = bytes(range(256)).translate(None, (string.ascii_letters + string.digits).encode())

# What escapes a character in a URL, in JSON or in HTML, also where its own first sign is escaped again. Whatever follows a run
# of such signs, it matches, so that no run is read twice.
_ESCAPE = re.compile(
    rb"%(?:25)*([0-9a-f]{2})|\\+(?:u([0-9a-f]{4})|[bfnrt])?|&(?:amp;)*(?:\#x([0-9a-f]{1,6})|\#([0-9]{1,7})|[a-z]{2,8});",
    re.IGNORECASE,
)

# Credentials in URLs: a password, and the query of a web address, which may be signed.
_USER = re.compile(r"://[^\s/:@]*+:(?!\d++/)")
_WEB_ADDRESS = re.compile(r"\bhttps?://", re.IGNORECASE)
_AROUND_URL = "\"'`)>],.;:"


class Redactor:
    """
    Withhold every text that contains a secret, or the URL of a callback.

    :param secrets: header values and passwords; one that is too short to be a secret is ignored
    :param key: the API key, of any length; empty if there is none
    """

    def __init__(self, secrets: Iterable[str], *, key: str = "") -> None:
        # And what is within a header's value, such as a token or a cookie, without the scheme and the names.
        names = r"(?:^(?:[\w-]+ )?|[\s;,:]+)(?:[\w.-]+=(?=[^\s;,=]))?"
        parts = {part for value in secrets for part in (value, *re.split(names, value))}
        self._key = _forms(_CALLBACK)
        self._words: list[re.Pattern[str]] = []
        self._all = self._key.union(
            *(_forms(part) for part in parts if len("".join(part.split())) >= _MIN_SECRET)
        )
        self.add(key)

    def add(self, secret: str) -> None:
        """Withhold another secret, as strictly as the API key."""
        letters = _letters(_ascii(secret))
        if secret and len(letters) < _MIN_LETTERS:
            self._words.append(re.compile(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"))
        self._key |= _forms(secret) | _shortened(letters, len(letters) * 3 // 4)
        self._all |= self._key | _shortened(letters, _PART)

    def reveals(self, text: str, *, key_only: bool = False) -> bool:
        """
        Return whether a text contains a secret, or twelve consecutive letters and digits of the API key.

        :param key_only: whether only the API key counts, or at least three quarters of it in a row
        """
        normal = b"\n".join(_normal(text))
        return any(form in normal for form in (self._key if key_only else self._all)) or any(
            word.search(text) for word in self._words
        )

    def text(self, text: str) -> str:
        """Return ``text`` unchanged, or a note instead if it reveals a secret."""
        return WITHHELD if self.reveals(text) else text


def without_credentials(text: str) -> str:
    """Return a text without the passwords of its URLs, and without the queries of its web addresses."""
    return re.sub(r"\S+", lambda match: _without_query(_without_password(match[0])), text)


def shown(source: object) -> str:
    """Return a path or URL that an author gave, in quotes and without its credentials."""
    text = str(source)
    # As a whole: a password may have blanks.
    return repr(without_credentials(_without_query(_without_password(text))))


def without_credentials_of(source: str, text: str) -> str:
    """
    Return what others say of a path or URL, without its credentials, however they are written.

    :param source: the path or URL that an author gave
    :param text: such as the message of an exception, which may quote a part of it
    """
    for secret in (_password(source), _query(source)):
        if secret:
            text = Redactor((), key=secret).text(text.replace(secret, "***"))
    return without_credentials(text)


def _without_password(word: str) -> str:
    password = _password(word)
    return word.replace(f":{password}@", ":***@") if password else word


def _password(word: str) -> str:
    """Return the password in a URL, empty if there is none."""
    user = _USER.search(word)
    return word[user.end() : max(word.rfind("@"), user.end())] if user else ""


def _without_query(word: str) -> str:
    query = _query(word)
    return word.replace(f"?{query}", "?***") if query else word


def _query(word: str) -> str:
    """Return the query of a web address, empty if there is none."""
    web = _WEB_ADDRESS.search(word)
    if not web:
        return ""
    return word[web.end() :].partition("?")[2].rstrip(_AROUND_URL)


def _forms(secret: str) -> frozenset[bytes]:
    """Return a secret in the forms that are searched for among letters and digits."""
    raw = _ascii(secret)
    encoded = []
    for shift in range(3):
        # The characters at its edges also hold bits of what is beside it.
        start, end = -(-shift * 8 // 6), (shift + len(raw)) * 8 // 6
        encoded.append(_letters(base64.b64encode(bytes(shift) + raw)[start:end]))
    return frozenset(form for form in (*_normal(secret), *encoded) if len(form) >= _MIN_LETTERS)


def _shortened(letters: bytes, size: int) -> frozenset[bytes]:
    size = max(size, _PART)
    return frozenset(letters[start : start + size] for start in range(len(letters) - size + 1))


def _normal(text: str) -> tuple[bytes, bytes]:
    """Return the letters and digits of a text, as it is and unescaped: text before a secret may look like an escape sequence."""
    raw = _ascii(text)
    return _letters(raw), _letters(_ESCAPE.sub(_decode, raw))


def _decode(escape: re.Match[bytes]) -> bytes:
    url, in_json, in_html, decimal = escape.groups(b"")
    code = int(decimal or b"0") or int(url or in_json or in_html or b"0", 16)
    return bytes([code]) if code < 128 else b""


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "ignore")


def _letters(raw: bytes) -> bytes:
    return raw.translate(None, _NOT_ALNUM).lower()
