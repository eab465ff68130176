"""Checks that run when a DAG file is parsed, hence in a module that imports next to nothing."""

from __future__ import annotations

import re

__all__ = ["MAX_TIMEOUT", "is_limit", "is_seconds", "kind_of", "one_line"]

MAX_TIMEOUT = 7 * 24 * 3600
"""In seconds: longer than any sensible timeout, and short enough for the clock functions to accept."""


def is_seconds(value: object) -> bool:
    """Return whether a value is a number of seconds from 0 to :data:`MAX_TIMEOUT`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIMEOUT


def is_limit(value: object) -> bool:
    """Return whether a value is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def kind_of(value: object) -> str:
    """Return the type of a value as errors name it: ``an int``, ``a set``, ``None``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


# Control characters, line and paragraph separators, and lone surrogates, which no log or database can store.
_NOT_ON_ONE_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """Return a text with its line breaks and other control characters escaped, as in a Python string."""
    return _NOT_ON_ONE_LINE.sub(lambda sign: repr(sign[0])[1:-1], text)
