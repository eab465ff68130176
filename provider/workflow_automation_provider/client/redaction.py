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

# As many characters as one may be escaped to (&#x0041;).
_LONGEST_ESCAPE = 10

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
        # Each form as the patterns of its characters, so that a form that is cut off can be found as well.
        self._forms = [form for secret in given for form in _forms(secret)]
        longest_first = sorted({"".join(form) for form in self._forms}, key=len, reverse=True)
        self._pattern = re.compile("|".join(longest_first), re.IGNORECASE) if given else None
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


def _forms(secret: str) -> list[list[str]]:
    """Return the forms that a secret is echoed in, each as one pattern for each of its characters."""
    raw = secret.encode()
    forms = {raw.hex(), base64.b64encode(raw).decode().rstrip("=")}
    # A secret inside a longer base64 text stands at one of three offsets; the characters at its edges
    # also hold bits of its neighbours, so the middle is what can be found.
    for offset in range(3):
        text = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")[(0, 2, 3)[offset] :]
        forms.add(text[:-1])
    return [
        [_any_escape(character) for character in secret],
        *([_any_escape(c) for c in form] for form in forms if len(form) >= _SHORTEST_FRAGMENT),
    ]


def _any_escape(character: str) -> str:
    """Return a pattern of a character as it stands and as JSON, URLs, HTML and Python may write it."""
    code = ord(character)
    ways = [
        rf"\\*{re.escape(character)}",
        rf"%(?:25){{0,3}}{code:02x}",
        rf"\\+u00{code:02x}",
        rf"\\+x{code:02x}",
        rf"&(?:amp;){{0,3}}\#(?:0{{0,4}}{code}|x0{{0,4}}{code:x});",
    ]
    if name := _HTML_NAMES.get(character):
        ways.append(f"&(?:amp;){{0,3}}{name};")
    if character in "+/":
        ways.append({"+": "-", "/": "_"}[character])  # base64 for URLs
    return f"(?:{'|'.join(ways)})"


def _breaks_off_in(form: list[str], text: str, start: int) -> bool:
    """Tell whether ``text`` has the beginning of a form from ``start`` to its end."""
    for number, pattern in enumerate(form):
        match = re.compile(pattern, re.IGNORECASE).match(text, start)
        if match is None:
            rest = text[start:]
            return number >= _SHORTEST_FRAGMENT and (
                not rest or (len(rest) < _LONGEST_ESCAPE and rest[0] in "%\\&")
            )
        start = match.end()
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
