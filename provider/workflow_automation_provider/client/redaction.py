"""
Redact secrets from errors, logs and results, where the service sends them back in an encoding of its own.

A text and a secret are compared in one normal form: the escape sequences of URLs, JSON and HTML are decoded twice, and then
only letters and digits count. So neither separators nor line breaks nor the zero bytes of UTF-16 hide a secret. It is
searched for as it is, in base64 and in hex.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import html
import json
import logging
import re
import string
import threading
import weakref
from collections.abc import Iterable

WITHHELD = "(withheld: it contains the API key or another secret)"
"""What replaces a text that reveals a secret."""

CALLBACK_PATH = "/workflow-automation/callback"
"""Path of the URL that a flow calls at its end, below the base URL of Airflow's API server."""

# What follows is the token of a waiting task. Only the try that made it knows it, but each may be sent it again.
_CALLBACK = f"{CALLBACK_PATH}?token="

# A key of fewer letters and digits is searched for as a word, with its signs; so is a header value. One that is shorter still
# would match in prose, a shorter encoded form in noise.
_MIN_KEY, _MIN_SECRET = 6, 8

# A part of the key this long, in letters and digits, is withheld as well: services shorten what they echo.
_PART = 12

_NOT_ALNUM = bytes(range(256)).translate(None, (string.ascii_letters + string.digits).encode())

# What escapes a character in a URL, in JSON, JavaScript or HTML, also where its own first sign is escaped again. Each
# alternative matches whatever follows a run of such signs, so that no run is read twice.
_ESCAPE = re.compile(
    rb"%(?:25)*([0-9a-f]{2})"
    rb"|\\+(?:u([0-9a-f]{4})|u\{([0-9a-f]{1,6})\}|x([0-9a-f]{2})|([0-7]{3})|[bfnrtv])?"
    rb"|&(?:amp;)*(?:\#x([0-9a-f]{1,6})|\#([0-9]{1,7})|([a-z]{2,8}));",
    re.IGNORECASE,
)

# Loggers that write request or response headers, or errors that quote them, at DEBUG level. A filter on a
# parent logger does not apply to its children, so each is listed.
_WIRE_LOGGERS = ("httpx", *map("httpcore.{}".format, ("connection", "http11", "http2", "proxy", "socks")))

# Credentials in URLs: a password, and the query of a web address, which may be signed.
_USER = re.compile(r"://[^\s/:@]*+:(?!\d++/)")
_WEB_ADDRESS = re.compile(r"\bhttps?://", re.IGNORECASE)
_AROUND_URL = "\"'`)>],.;:"

_MARKUP = re.compile(r"<[a-z/!?]", re.IGNORECASE)


class Redactor:
    """
    Withhold every text that contains a secret, or the URL of a callback.

    :param secrets: header values and passwords; one that is too short to be a secret is ignored
    :param key: the API key, of any length; empty if there is none
    """

    def __init__(self, secrets: Iterable[str], *, key: str = "") -> None:
        parts = {part for secret in secrets for part in _parts(secret)}
        self._key = _forms(_CALLBACK, _MIN_KEY)
        self._all = self._key.union(
            *(_forms(part, _MIN_SECRET) for part in parts if len("".join(part.split())) >= _MIN_SECRET)
        )
        self.add(key)

    def add(self, secret: str) -> None:
        """Withhold another secret, as strictly as the API key."""
        letters = _letters(_ascii(secret))
        self._key |= _forms(secret, _MIN_KEY) | _shortened(letters, len(letters) * 3 // 4)
        self._all |= self._key | _shortened(letters)

    def reveals(self, text: str, *, key_only: bool = False) -> bool:
        """
        Return whether a text contains a secret, or twelve consecutive letters and digits of the API key.

        :param key_only: whether only the API key counts, or at least three quarters of it in a row
        """
        raw = _ascii(text)
        # As it is, too: what stands before a secret may begin an escape sequence that ends in it.
        once = _ESCAPE.sub(_decode, raw)
        texts = (raw, once, _ESCAPE.sub(_decode, once))
        signs, letters = b"\n".join(texts), b"\n".join(map(_letters, texts))
        forms = self._key if key_only else self._all
        return any(form in letters if isinstance(form, bytes) else form.search(signs) for form in forms)

    def text(self, text: str) -> str:
        """Return ``text`` unchanged, or a note instead if it reveals a secret."""
        return WITHHELD if self.reveals(text) else text


def without_credentials(text: str) -> str:
    """Return a text without the passwords of its URLs, and without the queries of its web addresses."""
    return re.sub(r"\S+", lambda match: _without_query(_without_password(match[0])), text)


def _without_password(word: str) -> str:
    user, end = _USER.search(word), word.rfind("@")
    return f"{word[: user.end()]}***{word[end:]}" if user and user.end() < end else word


def _without_query(word: str) -> str:
    web = _WEB_ADDRESS.search(word)
    start = word.find("?", web.end()) + 1 if web else 0
    query = word[start:].rstrip(_AROUND_URL) if start else ""
    return f"{word[:start]}***{word[start + len(query) :]}" if query else word


def readable_text(body: bytes, content_type: str) -> str | None:
    """
    Return the body of a response as text, None if it is neither JSON nor plain text.

    In other formats, such as HTML, a secret could be in a form that is not searched for.

    :param content_type: of the response; empty if it has none
    """
    kind = content_type.partition(";")[0].strip().lower()
    if body.strip() and kind not in ("", "text/plain") and not kind.endswith("json"):
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text, parse_int=str)
        return text
    return None if _MARKUP.search(text) else text


def _parts(value: str) -> set[str]:
    """Return a header's value and the secrets within it: a token, a cookie, a user's password."""
    parts = {value, *re.split(r"^[\w-]+ |[\s;,]+", value)}
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error):
            user = base64.b64decode(_ascii(rest) + b"==").decode(errors="ignore")
            parts |= {user, user.partition(":")[2]}
    return parts


def _forms(secret: str, least: int) -> frozenset[bytes | re.Pattern[bytes]]:
    """Return what to search for among letters and digits; the secret as a word, if it has fewer of them than ``least``."""
    raw = _ascii(secret)
    encoded = [raw.hex().encode()]
    for shift in range(3):
        # The characters at its edges also hold bits of what is beside it.
        start, end = -(-shift * 8 // 6), (shift + len(raw)) * 8 // 6
        encoded.append(base64.b64encode(bytes(shift) + raw)[start:end])
    forms = {form for form in map(_letters, encoded) if len(form) >= _MIN_SECRET}
    # Decoded, too, where the secret contains an escape sequence itself.
    plain = {form for form in map(_letters, (raw, _ESCAPE.sub(_decode, raw))) if len(form) >= least}
    word = re.compile(rb"(?<![a-z0-9])%b(?![a-z0-9])" % re.escape(raw), re.IGNORECASE)
    return frozenset(forms | plain if plain or not raw else {*forms, word})


def _shortened(letters: bytes, size: int = _PART) -> frozenset[bytes]:
    size = max(size, _PART)
    return frozenset(letters[start : start + size] for start in range(len(letters) - size + 1))


def _decode(escape: re.Match[bytes]) -> bytes:
    *digits, octal, hexadecimal, decimal, name = escape.groups(b"")
    if name:
        return _ascii(html.unescape(f"&{name.decode()};"))
    code = int(decimal or b"0") or int(octal or b"0", 8) or int(b"".join(digits) or hexadecimal or b"0", 16)
    return bytes([code]) if 0 < code < 128 else b""


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "ignore")


def _letters(raw: bytes) -> bytes:
    return raw.translate(None, _NOT_ALNUM).lower()


_redactors: weakref.WeakSet[Redactor] = weakref.WeakSet()
# A set that changes during iteration raises: within a request, whose outcome would then seem unknown.
_lock = threading.Lock()


def _withhold(record: logging.LogRecord) -> bool:
    with contextlib.suppress(
        Exception
    ):  # would be raised within the request, whose outcome would then seem unknown
        message = record.getMessage()
        with _lock:
            redactors = tuple(_redactors)
        if not any(redactor.reveals(message) for redactor in redactors):
            return True
    record.msg, record.args = WITHHELD, ()
    return True


def guard_wire_logs(redactor: Redactor) -> None:
    """
    Withhold log messages of httpx and httpcore that reveal a secret, for the lifetime of ``redactor``.

    Airflow's own masking is not enough: some executors print task logs unmasked.
    """
    with _lock:
        _redactors.add(redactor)
    for name in _WIRE_LOGGERS:
        logging.getLogger(name).addFilter(_withhold)  # adding the same filter again has no effect
