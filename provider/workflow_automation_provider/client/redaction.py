"""Keeps secrets out of everything a person or a log may see, even where the service echoes them back."""

from __future__ import annotations

import base64
import logging
import re
import threading
import weakref
from collections.abc import Iterable
from typing import Any

# Below this a fragment says nothing of the secret, and hiding it would only garble the text around it.
_SHORTEST_FRAGMENT = 4

# As many characters as one may be escaped to (&amp;#x0041;).
_LONGEST_ESCAPE = 14

# The end of a text, perhaps within an escape.
_ENDS_HERE = re.compile(r"(?:[%&\\].{0,12})?\Z", re.DOTALL)

_HTML_NAMES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}

# Loggers that write request or reply headers, or the errors made of them, at DEBUG. A filter on a parent
# logger does not see what its children log, hence each by name.
_WIRE_LOGGERS = (
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "httpcore.socks",
)


class Redactor:
    """
    Replaces secrets in text, in each form they are commonly echoed in, by ``***``.

    :param secrets: the texts to hide; empty ones are passed over
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        given = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        # Each form as the ways to write each of its characters, to find one that is cut off as well.
        self._forms = [
            [_ways(character) for character in form] for secret in given for form in _forms(secret)
        ]
        patterns = sorted(("".join(map(_any, form)) for form in self._forms), key=len, reverse=True)
        self._pattern = re.compile("|".join(patterns), re.IGNORECASE) if given else None
        self._count = len(given)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._count} secrets)"

    def text(self, text: str, *, cut: bool = False) -> str:
        """
        Return ``text`` without the secrets.

        :param text: anything that may hold one
        :param cut: the text breaks off somewhere, so that its end may be the beginning of a secret
        """
        if self._pattern is not None:
            text = self._pattern.sub("***", text)
        return self._without_cut_secret(text) if cut else text

    def value(self, value: Any) -> Any:
        """Return a JSON value without the secrets, and without text that a database refuses (NUL, lone surrogates)."""
        match value:
            case str():
                return self.text(value.replace("\0", "\ufffd").encode(errors="replace").decode())
            case dict():
                return {self.value(key): self.value(item) for key, item in value.items()}
            case list():
                return [self.value(item) for item in value]
        return value

    def _without_cut_secret(self, text: str) -> str:
        longest = max((len(form) for form in self._forms), default=0) * _LONGEST_ESCAPE
        for start in range(max(len(text) - longest, 0), len(text) - _SHORTEST_FRAGMENT + 1):
            if any(_breaks_off_in(form, text, start) for form in self._forms):
                return text[:start] + "***"
        return text


def _forms(secret: str) -> set[str]:
    """Return what a secret is echoed as: itself, in hexadecimal, and in base64."""
    raw = secret.encode()
    whole = base64.b64encode(raw).decode().rstrip("=")
    # A secret inside a longer base64 text stands at one of three offsets; the characters at its edges
    # also hold bits of its neighbours, so the middle is what can be found.
    shifted = [base64.b64encode(b"\0" * n + raw).decode().rstrip("=")[(0, 2, 3)[n] :] for n in range(3)]
    coded = {raw.hex(), whole, *(text[:-1] for text in shifted)}
    return {secret, *(text for text in coded if len(text) >= _SHORTEST_FRAGMENT)}


def _ways(character: str) -> list[str]:
    """Return patterns of a character as JSON, URLs, HTML and Python may write it, and as it stands."""
    if character.isalnum():
        return [character]
    code = ord(character)
    return [
        rf"%(?:25){{0,3}}{code:02x}",
        rf"\\{{1,4}}u00{code:02x}",
        rf"\\{{1,4}}x{code:02x}",
        rf"&(?:amp;){{0,3}}(?:\#0{{0,4}}{code}|\#x0{{0,4}}{code:x}|{_HTML_NAMES.get(character, 'none')});",
        # Each number of backslashes a way of its own: where the next character is one too, any may be its.
        *(rf"\\{{{number}}}{re.escape(character)}" for number in range(4, -1, -1)),
        *({"+": "-", "/": "_"}.get(character, ())),  # base64 for URLs
    ]


def _any(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _breaks_off_in(form: list[list[str]], text: str, start: int) -> bool:
    """Tell whether ``text`` has the beginning of a form from ``start`` to its end."""
    reached = {start}
    for number, ways in enumerate(form):
        if number >= _SHORTEST_FRAGMENT and any(_ENDS_HERE.match(text, position) for position in reached):
            return True
        matches = (
            re.compile(way, re.IGNORECASE).match(text, position) for position in reached for way in ways
        )
        reached = {match.end() for match in matches if match}
    return False


class _WireLogFilter(logging.Filter):
    """Redacts what httpx and httpcore log, for every redactor alive."""

    def __init__(self) -> None:
        super().__init__()
        self._redactors: weakref.WeakSet[Redactor] = weakref.WeakSet()
        # A set that grows while it is gone through raises: within a request, whose outcome would seem unknown.
        self._lock = threading.Lock()

    def guard(self, redactor: Redactor) -> None:
        with self._lock:
            self._redactors.add(redactor)

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        with self._lock:
            redactors = tuple(self._redactors)
        redacted = message
        for redactor in redactors:
            redacted = redactor.text(redacted)
        if redacted != message:
            record.msg, record.args = redacted, ()
        return True


_wire_log_filter = _WireLogFilter()


def guard_wire_logs(redactor: Redactor) -> None:
    """
    Redact httpx's and httpcore's logs for as long as ``redactor`` lives.

    Airflow's own masking is not enough: some executors print task logs unmasked.
    """
    _wire_log_filter.guard(redactor)
    for name in _WIRE_LOGGERS:
        logging.getLogger(name).addFilter(_wire_log_filter)  # adding the same filter again changes nothing
