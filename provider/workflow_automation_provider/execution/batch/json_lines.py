"""A JSON Lines file: its lines, each with one object."""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import json
import os
from collections import Counter
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.files import reason
from workflow_automation_provider.client.wording import kind_of
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.location import locate, shown_path
from workflow_automation_provider.hooks.files.reading import pieces
from workflow_automation_provider.hooks.files.stores import as_url, in_time

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    _Path = str | os.PathLike[str] | ObjectStoragePath

MAX_LINE = 4 * 1024**2
"""Maximum length of a line, in bytes: parsing takes ten times as much memory."""

# Object stores read ahead in blocks of this size, instead of their default of tens of megabytes.
_BLOCK = 4 * 1024 * 1024

# How many bytes of a line are shown that is no object: more could reveal a secret.
_SHOWN = 4

_EXPECTED = "expected one inputs object in each line"


def numbered_lines(path: _Path) -> Generator[tuple[int, bytes], None, None]:
    """
    Yield the lines that are not blank, with their numbers from 1.

    Of a line that is too long, yield only a part, and end.

    :raises FileUnavailableError: if it is missing or cannot be read
    """
    with contextlib.closing(_lines(path)) as lines:
        for number, line in enumerate(lines, start=1):
            content = line
            if number == 1:
                content = line.removeprefix(codecs.BOM_UTF8)
            if content.strip():
                yield number, content


def parse_line(label: str, line: bytes) -> Mapping[str, Any]:
    """
    Return the object of a line, with its numbers as text, which keeps their digits.

    :param label: what the line is called in errors
    :raises InvalidRequestError: if it has none
    """
    if len(line) > MAX_LINE:
        raise InvalidRequestError(
            f"{label} is longer than {MAX_LINE // 1024**2} MiB: pass large content as files of an "
            "upload."
        )

    text = _decode(label, line)
    members = functools.partial(_members, label)
    try:
        # NaN stays a float, which JSON rejects.
        value = json.loads(text, object_pairs_hook=members, parse_float=str, parse_int=str)
    except (json.JSONDecodeError, RecursionError) as error:
        # Without the original message, which may quote the line.
        column = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequestError(
            f"{label} is not JSON{column}{_beginning(line)}: {_EXPECTED}."
        ) from None

    if not isinstance(value, Mapping):
        is_number = isinstance(value, str) and not text.lstrip().startswith('"')
        kind = "a number" if is_number else kind_of(value)
        raise InvalidRequestError(
            f"{label} is {kind}: expected an object of input names and values."
        )

    return value


def _decode(label: str, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode()) + 1
        raise InvalidRequestError(
            f"{label} is not UTF-8 at column {column}{_beginning(line)}: {_EXPECTED}, in UTF-8, "
            "not compressed."
        ) from None


def _beginning(line: bytes) -> str:
    """Return how a line begins that begins with no object, which tells the format of its file."""
    start = line.strip()
    if start.startswith(b"{"):
        return ""
    return f", it begins with {repr(start[:_SHOWN])[1:]}"


def _members(label: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """
    Return an object's members.

    :raises InvalidRequestError: if it has a name twice, of which the service may take either
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = Counter(name for name, _ in pairs)
        [(name, _)] = names.most_common(1)
        raise InvalidRequestError(f"{label} has {name!r:.60} twice: expected each name once.")

    return members


def _lines(path: _Path) -> Generator[bytes, None, None]:
    """Yield all lines; of one that is too long, only a part."""
    try:
        location = locate("batch", path)
        fs = location.fs
        fs.invalidate_cache()  # what an earlier task wrote may have been replaced
        # S3 opens a folder as an empty file.
        if in_time(fs.isdir, location.key):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

        rest = b""
        open_file = functools.partial(fs.open, location.key, "rb", block_size=_BLOCK)
        for piece in pieces(open_file):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
            if len(rest) > MAX_LINE:
                break

        yield rest
    except InvalidRequestError:
        raise
    except Exception as error:  # object stores raise all kinds of exceptions
        if isinstance(error, FileNotFoundError) and "*" in str(path):
            raise InvalidRequestError(
                f"batch is {shown_path(path)}, a pattern: expected the path or URL of one file.",
                next_step="Write all items to one file, or map the task over the files.",
            ) from None

        why = reason(error, as_url(path))
        raise FileUnavailableError(
            f"batch is {shown_path(path)}, which cannot be read: {why}."
        ) from None
