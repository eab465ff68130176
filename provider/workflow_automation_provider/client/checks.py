"""What is checked when a DAG is parsed, and so in a module that imports nothing."""

from __future__ import annotations

__all__ = ["LONGEST_TIMEOUT", "is_seconds", "kind_of"]

LONGEST_TIMEOUT = 7 * 24 * 3600
"""In seconds: more than anybody means, and fewer than the clock can be asked for."""


def is_seconds(value: object) -> bool:
    """Tell whether a value is a number of seconds, from 0 to :data:`LONGEST_TIMEOUT`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_TIMEOUT


def kind_of(value: object) -> str:
    """Name the type of a value as errors do: ``an int``, ``a set``, ``None``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
