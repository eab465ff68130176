"""How errors and logs name a value and its place, in one line."""

from __future__ import annotations

import re


def kind_of(value: object) -> str:
    """Return the type of a value as errors name it: ``an int``, ``a numpy.int64``, ``None``."""
    if value is None:
        return "None"
    kind = type(value)
    is_builtin = kind.__module__ == "builtins"
    name = kind.__name__ if is_builtin else f"{kind.__module__}.{kind.__name__}"
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name}"


def member(path: str, key: object) -> str:
    """Return the path of a member as errors name it: ``inputs.rows``, ``inputs['first row']``."""
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!a}]"


def run_text(run_id: str | None) -> str:
    """Return a run as the subject of a sentence."""
    return f"Run {one_line(run_id)}" if run_id else "A run"


# Control characters, line and paragraph separators, and lone surrogates, which no log or database
# can store.
_NOT_ON_ONE_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """Return a text with its line breaks and other control characters escaped, as Python does."""
    return _NOT_ON_ONE_LINE.sub(lambda char: repr(char[0])[1:-1], text)
