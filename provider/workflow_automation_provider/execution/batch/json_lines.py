"""A JSON Lines file: its lines, each with one object."""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import json
import os
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.files import reason
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.location import locate, shown_path
from workflow_automation_provider.hooks.files.reading import pieces
from workflow_automation_provider.hooks.files.stores import as_url

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    _Path = str | os.PathLike[str] | ObjectStoragePath

MAX_LINE = 4 * 1024**2
"""Maximum length of a line, in bytes: parsing takes ten times as much memory."""

# Object stores read ahead in blocks of this size, instead of their default of tens of megabytes.
_BLOCK = 4 * 1024 * 1024

# How many bytes of a line are shown that is no object: more could reveal a secret.
_SHOWN = 4


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

    try:
        # NaN stays a float, which JSON rejects.
        value = json.loads(line.decode(), parse_float=str, parse_int=str)
    except (ValueError, RecursionError) as error:
        # Without the original message, which may quote the line.
        raise InvalidRequestError(
            f"{label} is not JSON in UTF-8{_place(error)}{_beginning(line)}: expected one inputs "
            "object in each line, not compressed."
        ) from None

    if not isinstance(value, Mapping):
        raise InvalidRequestError(
            f"{label} is no object{_beginning(line)}: expected an object of input names and values."
        )

    return value


def _place(error: Exception) -> str:
    """Return where a line is wrong, as far as that is known."""
    match error:
        case json.JSONDecodeError():
            return f" at column {error.colno}"
        case UnicodeDecodeError():
            return f" at byte {error.start + 1}"

    return ""


def _beginning(line: bytes) -> str:
    """Return how a line begins that begins with no object, which tells the format of its file."""
    start = line.strip()
    if start.startswith(b"{"):
        return ""
    return f", it begins with {repr(start[:_SHOWN])[1:]}"


def _lines(path: _Path) -> Generator[bytes, None, None]:
    """Yield all lines; of one that is too long, only a part."""
    try:
        location = locate("batch", path)
        fs = location.fs
        fs.invalidate_cache()  # what an earlier task wrote may have been replaced
        # S3 opens a folder as an empty file.
        if fs.isdir(location.key):
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
