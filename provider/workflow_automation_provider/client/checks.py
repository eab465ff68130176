"""Checks that run when a DAG file is parsed: this module imports next to nothing."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, cast, get_args
from urllib.parse import quote, urlsplit

from workflow_automation_provider.exceptions import InvalidRequestError

MAX_DAYS = 7
MAX_TIMEOUT = MAX_DAYS * 24 * 3600
"""In seconds: longer than any sensible timeout, and short enough for the clock functions."""


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
How a file becomes an element of ``files``: a mapping of field name to word, or one word, for
elements that are plain strings.

The words of a mapping are typed as ``str``, which is what type checkers infer for a plain dict;
whether each is a :data:`FormatWord` is checked at run time.
"""


def check_file_format(value: Any) -> FileFormat:
    """
    Check a file format.

    :raises InvalidRequestError: if it is neither a word nor a mapping of field names to words
    """
    known = get_args(FormatWord)
    expected = f"expected one of {', '.join(known)}, or a mapping of field name to one of them"

    is_word = not isinstance(value, Mapping) and value in known
    is_mapping = isinstance(value, Mapping) and len(value) > 0
    if not (is_word or is_mapping):
        raise InvalidRequestError(f"file_format, {kind_of(value)}, is not supported; {expected}.")

    if is_mapping:
        for name, word in value.items():
            if not isinstance(name, str) or word not in known:
                raise InvalidRequestError(f"file_format[{name!r}] is not supported; {expected}.")

    return cast("FileFormat", value)


def duration(
    name: str,
    value: object,
    *,
    days: int,
    zero: bool = False,
    kind: type[Exception] = ValueError,
) -> timedelta:
    """
    Return the duration that an argument gives: a timedelta, or a number of seconds.

    :param name: what the argument is called in errors
    :param days: how long it may be
    :param zero: whether it may be 0
    :param kind: the class of the error that is raised if it is neither, too short or too long
    """
    given = value
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):  # of NaN and of what no timedelta can hold
            given = timedelta(seconds=value)

    shortest = timedelta() if zero else timedelta.resolution
    if isinstance(given, timedelta) and shortest <= given <= timedelta(days=days):
        return given

    least = "0 or more" if zero else "more than 0"
    raise kind(
        f"{name} is {value!r}: expected a timedelta, or a number of seconds, of {least} and at "
        f"most timedelta(days={days})."
    )


def check_rendered(name: str, value: object) -> None:
    """
    Check a value that a template or an XCom may have made.

    :param name: what the value is called in errors
    :raises InvalidRequestError: if it is None or empty, the text that a template makes of None, of
        a list or of a dict, or a template that was not rendered
    """
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        raise InvalidRequestError(
            f"{name} is {value!r}: the template or XCom that it comes from has no value.",
            next_step=(
                "The upstream task may have been skipped, or its result may have no such key."
            ),
        )

    if isinstance(value, str):
        check_text(name, value)


def rendered(name: str, value: Any) -> Any:
    """
    Return a value that a template or an XCom may have made; text loses the blanks around it.

    :param name: what the value is called in errors
    :raises InvalidRequestError: as :func:`check_rendered` does
    """
    check_rendered(name, value)
    return value.strip() if isinstance(value, str) else value


def check_text(name: str, text: str) -> None:
    """
    Check that a text is not what a template leaves in place of a value.

    :param name: what the text is called in errors
    :raises InvalidRequestError: if it is the text of a list or dict, or a template that was not
        rendered
    """
    kind = _kind_of_text(text.strip())
    if kind:
        # Not quoted: it may be long, and hold anything.
        raise InvalidRequestError(
            f"{name} is the text of {kind}: a template makes text of every value.",
            next_step=(
                "Pass the value itself, such as the output of an upstream task.\n"
                "For params and conf, set render_template_as_native_obj=True on the DAG."
            ),
        )

    check_no_template(name, text)


def _kind_of_text(text: str) -> str:
    """
    Return the kind of the list, tuple or dict that a text is made of.

    :return: empty if it is not made of one
    """
    if not text.startswith(("[", "(", "{")):
        return ""

    for parse in (ast.literal_eval, json.loads):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue

        if isinstance(value, list | tuple | dict):
            return kind_of(value)

    return ""


def check_no_template(name: str, text: str) -> None:
    """Raise an InvalidRequestError if a text is a template that was not rendered."""
    if "{{" in text or "{%" in text:
        raise InvalidRequestError(
            f"{name} is {_shown(text)}, a template that was not rendered.",
            next_step=(
                "Airflow renders templates in text, but not in a Path, in the names of a dict, or "
                "inside a @task.\n"
                "Give a path as text, and make any other value in a @task."
            ),
        )


# Paths as a shell, Windows or a library may write them, and why they name no file here.
_OTHER_PATHS = {
    r"^~": "~ is not expanded, because it means a different folder for each user",
    r"\$\{?[A-Za-z_]": "a variable of the environment is not expanded",
    r"\{[^{}]*,[^{}]*\}": "braces are not expanded",
    r"^([A-Za-z]:[\\/]|\\\\)": "a path of Windows names no file where the task runs",
    r"""^(["']).*\1$""": "quotation marks would be a part of its name",
    r"^[A-Za-z][A-Za-z0-9+.-]+:/(?!/)": "a URL has two slashes after its scheme",
    r"\.\w+\s*,.*\.\w+$": "a comma does not separate paths",
    # As in what Path.as_uri() returns.
    r"%[0-9A-Fa-f]{2}": "%-encoding is not decoded",
}


def check_path(name: str, path: str | None) -> None:
    """
    Check a rendered path; one that exists is meant as it is written.

    :param name: what the path is called in errors
    :raises InvalidRequestError: if it has no value, or is meant for a shell, Windows or a library
    """
    if path and os.path.lexists(path):
        return

    check_rendered(name, path)
    if not path or "://" in path:
        return

    for pattern, why in _OTHER_PATHS.items():
        if re.search(pattern, path):
            raise InvalidRequestError(
                f"{name} is {_shown(path)}, and there is no such file: {why}.",
                next_step="Give the path, or each of several, as it is where the task runs.",
            )


def check_names(name: str, inputs: object) -> None:
    """
    Check that no input has a template as its name: Airflow renders only values.

    The names within a value may look like templates: a flow may use them to fill in a document.

    :param name: what the inputs are called in errors
    :raises InvalidRequestError: if one is
    """
    if isinstance(inputs, Mapping):
        for key in inputs:
            check_no_template(f"{name} has a name that", str(key))


def _shown(text: str) -> str:
    # Not at the top: this module is imported when a DAG file is parsed.
    from workflow_automation_provider.client.redaction import shown

    return shown(text)


def is_positive_integer(value: object) -> bool:
    """Return whether a value is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def identifier(name: str, value: object) -> str:
    """
    Validate a ``flow_id`` or ``run_id``: text, or a whole number, which becomes text.

    :raises InvalidRequestError: if it is empty or of another type; also for a float, which may have
        lost digits
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


def path_segment(text: str) -> str:
    """Return a text as one segment of a URL's path."""
    segment = quote(text, safe="")
    if segment.strip("."):
        return segment
    # quote() leaves dots, and a segment of dots alone would be a relative path.
    return segment.replace(".", "%2E")


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


# Control characters, line and paragraph separators, and lone surrogates, which no log or database
# can store.
_NOT_ON_ONE_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """Return a text with its line breaks and other control characters escaped, as Python does."""
    return _NOT_ON_ONE_LINE.sub(lambda char: repr(char[0])[1:-1], text)


# Without credentials, and without what a browser changes: it leaves out blanks and control
# characters, and takes a backslash for a slash.
_WEB = re.compile(
    r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?([/?#][^\s\x00-\x20\x7f\\]{0,2000})?",
    re.I | re.ASCII,
)

_HOST_AND_PATH = re.compile(r"[\w-]+(\.[\w-]+)+/")


def web_link(link: object) -> str:
    """
    Return a link of the service if it is http or https, otherwise an empty text.

    A browser runs ``javascript:``.
    """
    return link if isinstance(link, str) and _WEB.fullmatch(link) else ""


def is_relative_link(link: object) -> bool:
    """
    Return whether a link of the service is to be resolved against its base URL.

    One that begins with a host name lacks its scheme.
    """
    if not isinstance(link, str) or _HOST_AND_PATH.match(link.strip()):
        return False
    try:
        return not urlsplit(link.strip()).scheme
    except ValueError:
        return False


def browser_link(link: object) -> str:
    """
    Return a link of the service as a browser opens it: quoted, its host in ASCII.

    :param link: as the service or a run gave it; one that is fine stays as it is
    :raises ValueError: if there is no such link, with the reason as a predicate, such as ``is not
        a valid URL``: the caller puts the name of the link before it
    """
    if not isinstance(link, str):
        raise ValueError(f"is {kind_of(link)}, not text")

    link = link.strip()
    if web_link(link):
        return link

    if one_line(link) != link or "\\" in link:
        raise ValueError("contains a control character or a backslash")

    try:
        parts = urlsplit(link)
    except ValueError:
        raise ValueError("is not a valid URL") from None

    if parts.scheme not in ("http", "https"):
        raise ValueError("is not the URL of a web page, which begins with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("contains a user name or password")

    # Not at the top: this module is imported when a DAG file is parsed.
    import httpx

    try:
        found = web_link(str(httpx.URL(link)))
    except (httpx.InvalidURL, ValueError):
        found = ""

    if not found:
        raise ValueError("is not a valid URL, or too long")

    return found
