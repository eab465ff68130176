"""Redact secrets from errors, logs and results, even if the service echoes them back."""

from __future__ import annotations

import binascii
import hashlib
import html
import logging
import re
import string
import threading
import unicodedata
import weakref
from collections.abc import Iterable, Iterator

__all__ = ["WITHHELD", "Redactor", "guard_wire_logs", "without_credentials"]

WITHHELD = "(withheld: it contains the API key or another secret)"
"""What replaces a text that reveals a secret."""

# Fewer letters and digits would match by chance: those of the key in noise, those of a header's value in
# prose.
_FEWEST_LETTERS, _SHORTEST_SECRET = 6, 8

# A part of the key this long, in letters and digits, is withheld as well: services shorten what they echo.
_PIECE = 12

# A text that takes more work than this to decode is withheld; ordinary text takes far less. Work is the
# number of bytes searched, plus a fixed cost per search.
_ROUNDS, _WORK_PER_BYTE, _WORK_AT_LEAST, _WORK_PER_SEARCH = 24, 96, 65536, 64

_ALL, _ALNUM = bytes(range(256)), (string.ascii_letters + string.digits).encode()
_NOT_ALNUM, _NOT_VISIBLE = _ALL.translate(None, _ALNUM), _ALL.translate(None, bytes(range(33, 127)))
_NOT_BASE64, _NOT_HEX = _ALL.translate(None, _ALNUM + b"+/"), _ALL.translate(None, b"0123456789abcdefABCDEF")
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r"})
_NUMBER = re.compile(rb"(?<!\d)\d{1,3}(?!\d)")
# Text within the result of a guess: noise seldom has that many readable characters in a row.
_READABLE = re.compile(rb"(?:[\t\n\r -~]|[\xc2-\xf4][\x80-\xbf]{1,3}){8,}")
# Escapes of URLs, JSON, programming languages and HTML.
_ESCAPE = re.compile(
    rb"(?:%|\\x)(?P<x1>[0-9a-f]{2})|[%\\]u(?P<x2>[0-9a-f]{4})|\\[ux]\{(?P<x3>[0-9a-f]{1,8})\}"
    rb"|\\(?P<octal>[0-7]{3}|0)|\\(?-i:[abefnrtv])|\\(?P<same>[^%&<ux])"
    rb"|(?P<html>&(?:\#x?[0-9a-f]{1,99}+(?:;|(?![\\%<=]))|[a-z][a-z0-9]{1,31};))",
    re.IGNORECASE,
)
_SOFT_BREAK = re.compile(rb"=[ \t]*+\r?\n(?!\s*+[0-9A-F]\s*+[0-9A-F])")
_QUOTED_PRINTABLE = re.compile(rb"=(?P<x1>[0-9A-Fa-f]{2})")
_TAG = re.compile(rb"</?[A-Za-z][^<>]{0,200}>")

# Loggers that write request or response headers, or errors that quote them, at DEBUG level. A filter on a
# parent logger does not apply to its children, so each is listed.
_WIRE_LOGGERS = ("httpx", *map("httpcore.{}".format, ("connection", "http11", "http2", "proxy", "socks")))

# Credentials in URLs: a password, up to the last @, and the query of a web address, which may be signed. What may end a
# sentence is no part of a query.
_WORD = re.compile(r"\S+")
_PASSWORD = re.compile(r"://[^/:@]*:(?!\d+/)")
_WEB_ADDRESS = re.compile(r"\bhttps?://", re.IGNORECASE)
_ENDS = "\"'`)>],.;:"


class Redactor:
    """
    Withhold every text that reveals a secret, in any encoding.

    :param secrets: header values and passwords; one that is too short to be a secret is ignored
    :param key: the API key, of any length; empty if there is none
    """

    def __init__(self, secrets: Iterable[str], *, key: str = "") -> None:
        parts = {part for secret in secrets for part in _parts(secret)}
        self._key = _needles(key.encode("ascii", "ignore"))
        form = _form(key.encode("ascii", "ignore"))
        self._pieces = {form[start : start + _PIECE] for start in range(len(form) - _PIECE + 1)}
        self._all = self._key.union(
            *(_needles(part) for part in parts if len(_form(part)) >= _SHORTEST_SECRET)
        )
        self._hashed: dict[str, re.Pattern[bytes]] = {}

    def add(self, secret: str) -> None:
        """Withhold another secret, as strictly as the API key."""
        needles = _needles(secret.encode("ascii", "ignore"))
        self._key, self._all = self._key | needles, self._all | needles

    def add_hashed(self, digest: str, length: int) -> None:
        """
        Withhold another secret, of which only the hash is known.

        :param digest: SHA-256 of the secret, in hex
        :param length: of the secret: a word of letters, digits, ``-`` and ``_``
        """
        # What follows it is no boundary: a text that is decoded loses its whitespace.
        self._hashed[digest] = re.compile(rb"(?<![\w-])[\w-]{%d}" % length)

    def reveals(self, text: str, *, key_only: bool = False) -> bool:
        """Return whether a text contains a secret (``key_only``: the API key), or is encoded too deeply to know."""
        needles = self._key if key_only else self._all
        # NFKC, because a full-width letter is still readable as that letter.
        raw = unicodedata.normalize("NFKC", text).encode("ascii", "ignore")
        searchable = _searchable(raw)
        if not key_only and any(piece in searchable for piece in self._pieces):
            return True
        return bool(needles or self._hashed) and any(
            view is None or any(needle in _searchable(view) for needle in needles) or self._has_hashed(view)
            for view in _views(raw)
        )

    def _has_hashed(self, view: bytes) -> bool:
        return any(
            hashlib.sha256(word).hexdigest() == digest
            for digest, words in self._hashed.items()
            for word in words.findall(view)
        )

    def text(self, text: str) -> str:
        """Return ``text`` unchanged, or a note instead if it reveals a secret."""
        return WITHHELD if self.reveals(text) else text


def without_credentials(text: str) -> str:
    """Return a text without the passwords of its URLs, and without the queries of its web addresses."""
    return _WORD.sub(lambda found: _without_query(_without_password(found[0])), text)


def _without_password(word: str) -> str:
    at = word.rfind("@")
    for found in _PASSWORD.finditer(word, 0, max(at, 0)):
        if found.end() < at:
            return f"{word[: found.end()]}***{word[at:]}"
    return word


def _without_query(word: str) -> str:
    if (found := _WEB_ADDRESS.search(word)) is None:
        return word
    start = word.find("?", found.end()) + 1
    if start in (0, len(word)):
        return word
    end = max(start + 1, len(word.rstrip(_ENDS)))
    return f"{word[:start]}***{word[end:]}"


def _parts(value: str) -> set[bytes]:
    """Return a header's value and the secrets within it: a token, a cookie, a user's password."""
    scheme, _, rest = value.partition(" ")
    user = _streams(rest.encode("ascii", "ignore"))[0] if scheme.lower() == "basic" else b""
    parts = re.split(r"^[\w-]+ |[\s;,]+", value)
    return {user, user.partition(b":")[2], *(part.encode("ascii", "ignore") for part in (value, *parts))}


def _form(secret: bytes) -> bytes:
    """Return a secret's letters and digits, or all its visible characters if those are too few."""
    alnum, _, visible = _searchable(secret).partition(b"\n")
    return alnum if len(alnum) >= _FEWEST_LETTERS else visible


def _searchable(view: bytes) -> bytes:
    return (view.translate(None, _NOT_ALNUM) + b"\n" + view.translate(None, _NOT_VISIBLE)).lower()


def _needles(secret: bytes) -> frozenset[bytes]:
    """Return what to search for: the secret, and what it decodes to if it contains escape sequences itself."""
    views = seen = {secret}
    for _ in range(_ROUNDS):
        views = {further for view in views for further in _unescaped(view)}
        seen = seen | views
    needles = {_form(secret), *(form for form in map(_form, seen) if len(form) >= _FEWEST_LETTERS)}
    # The ends of a secret may form an escape sequence together with the text next to them.
    return frozenset(form[len(form) // 7 : len(form) - len(form) // 7] for form in needles - {b""})


def _views(text: bytes) -> Iterator[bytes | None]:
    """Yield a text and everything that it decodes to, recursively; None if that exceeds the limits."""
    work = _WORK_PER_BYTE * len(text) + _WORK_AT_LEAST
    views, seen = [text.translate(None, _CONTROLS)], {b""}
    for _ in range(_ROUNDS):
        following = []
        for view in views:
            visible = view.translate(None, _NOT_VISIBLE)
            if visible in seen:
                continue
            seen.add(visible)
            streams = _streams(view)
            yield from (view, *streams)
            work -= sum(_WORK_PER_SEARCH + len(stream) for stream in (view, *streams))
            if work < 0:
                yield None
            following += [b"\n".join(_READABLE.findall(stream)) for stream in streams]
            following += _unescaped(view)
        views = following
    if views:
        yield None


def _streams(view: bytes) -> list[bytes]:
    """Return a text decoded as base64, hexadecimal and character codes, all other characters ignored."""
    visible = view.translate(None, _NOT_VISIBLE)
    sextets = visible.replace(b"-", b"+").replace(b"_", b"/").translate(None, _NOT_BASE64) + b"AAAAAAA"
    digits = visible.replace(b"0x", b"").translate(None, _NOT_HEX) + b"000"
    fours, twos = len(sextets) // 4 * 4 - 4, len(digits) // 2 * 2 - 2
    # The text before it may have shifted its alignment.
    streams = [binascii.a2b_base64(sextets[start : start + fours]) for start in range(4)]
    streams += [binascii.unhexlify(digits[start : start + twos]) for start in range(2)]
    # With whitespace, which may be the only separator of the codes, and without, because it may split their
    # digits.
    codes = ([int(code) for code in _NUMBER.findall(text)] for text in (view, visible))
    streams += [bytes(code for code in found if code < 128) for found in codes]
    return [stream.translate(None, _CONTROLS) for stream in streams]


def _unescaped(view: bytes) -> set[bytes]:
    # Both ways, because "=" also occurs in URLs, and "<" may occur in a key.
    unbroken = _TAG.sub(b"", _SOFT_BREAK.sub(b"", view).translate(None, _NOT_VISIBLE))
    texts = {text.translate(None, _NOT_VISIBLE) for text in (view, _QUOTED_PRINTABLE.sub(_decoded, unbroken))}
    return {_ESCAPE.sub(_decoded, text).translate(None, _CONTROLS) for text in texts}


def _decoded(escape: re.Match[bytes]) -> bytes:
    match escape.lastgroup:
        case None:
            return b"\n"
        case "same":
            return escape["same"]
        case "html":
            return html.unescape(escape["html"].decode()).encode("ascii", "ignore")
        case kind:
            code = int(escape[kind], 8 if kind == "octal" else 16)
            return bytes([code]) if code < 128 else b""


_redactors: weakref.WeakSet[Redactor] = weakref.WeakSet()
# A set that changes during iteration raises: within a request, whose outcome would then seem unknown.
_lock = threading.Lock()


def _withhold(record: logging.LogRecord) -> bool:
    try:
        message = record.getMessage()
        with _lock:
            redactors = tuple(_redactors)
        shown = not any(redactor.reveals(message) for redactor in redactors)
    except Exception:  # would be raised within the request, whose outcome would then seem unknown
        shown = False
    if not shown:
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
