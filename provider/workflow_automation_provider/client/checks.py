"""Checks that run when a DAG file is parsed: this module imports next to nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from workflow_automation_provider.exceptions import InvalidRequestError

MAX_TIMEOUT = 7 * 24 * 3600
"""In seconds: longer than any sensible timeout, and short enough for the clock functions to accept."""


FormatWord = Literal["name", "path", "base64", "data_url", "content_type", "size"]
"""What a field of an element may hold."""

DEFAULT_FILE_FORMAT: Mapping[str, FormatWord] = {
    "name": "name",
    "content_type": "content_type",
    "content": "base64",
}
"""The file format if neither the connection nor the operator sets one."""

FileFormat = Mapping[str, str] | FormatWord
"""
How a file becomes an element of ``files``: a mapping of field name to word, or one word, for elements that are plain
strings.

The words of a mapping are typed as ``str``, which is what type checkers infer for a plain dict; whether each
is a :data:`FormatWord` is checked at run time.
"""


def check_file_format(value: Any) -> FileFormat:
    """
    Check a file format.

    :raises InvalidRequestError: if it is neither a word nor a mapping of field names to words
    """
    known = get_args(FormatWord)
    fields = [*value.items()] if isinstance(value, Mapping) else []
    wrong = [name for name, word in fields if not isinstance(name, str) or word not in known]
    if wrong or not (fields or value in known):
        place = f"file_format[{wrong[0]!r}]" if wrong else f"file_format, {kind_of(value)},"
        raise InvalidRequestError(
            f"{place} is not supported; expected one of {', '.join(known)}, or a mapping of field name to one of them."
        )
    return cast("FileFormat", value)


def check_seconds(
    name: str, value: object, kind: type[Exception] = ValueError, *, zero: bool = False
) -> None:
    """Raise an error unless an argument is a number of seconds, from more than 0, or 0 with ``zero``, to :data:`MAX_TIMEOUT`."""
    number = (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIMEOUT
    )
    if not (number and (value or zero)):
        least = "0 or more" if zero else "more than 0"
        raise kind(
            f"{name} is {value!r}: expected seconds, {least} and at most {MAX_TIMEOUT} (a week)."
        )


def check_rendered(name: str, value: object) -> None:
    """Raise an InvalidRequestError if a value is None or empty, or the text "None" that a template makes of None."""
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        raise InvalidRequestError(
            f"{name} is {value!r}: the template or XCom that it comes from has no value.",
            next_step="The upstream task may have been skipped, or its result may have no such key.",
        )


def unusable_path(name: str, path: str) -> InvalidRequestError | None:
    """Return an error if a path is a template that was not rendered, or begins with ``~``."""
    from workflow_automation_provider.client.redaction import shown

    if "{{" in path or "{%" in path:
        return InvalidRequestError(
            f"{name} is {shown(path)}, a template that was not rendered.",
            next_step="Airflow renders templates in text, but not in a Path: give the path as text.",
        )
    if path.startswith("~"):
        return InvalidRequestError(
            f"{name} is {shown(path)}, and ~ is not expanded, "
            "because it means a different folder for each user.",
            next_step="Give an absolute path.",
        )
    return None


def is_limit(value: object) -> bool:
    """Return whether a value is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def identifier(name: str, value: object) -> str:
    """
    Validate a ``flow_id`` or ``run_id``: text, or a whole number, which becomes text.

    :raises InvalidRequestError: if it is empty or of another type; also for a float, which may have lost
        digits
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} is {kind_of(value)}: expected text.")
    if not value.strip():
        raise InvalidRequestError(
            f"{name} is empty: expected the identifier as the service shows it."
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{name} is not valid Unicode text: fix its decoding.") from None
    return value


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


# Without credentials, and without what a browser leaves out or turns.
_WEB = re.compile(
    r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?([/?#][^\s\x00-\x20\x7f\\]{0,2000})?",
    re.I | re.ASCII,
)


def web_link(link: object) -> str:
    """Return a link of the service if it is http or https, otherwise an empty text: a browser runs ``javascript:``."""
    return link if isinstance(link, str) and _WEB.fullmatch(link) else ""
