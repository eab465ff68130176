"""A JSON Lines file: its lines, each with one object, and how other formats are recognized."""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import json
import os
import re
from collections import Counter
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.client.files import reason
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.location import locate, shown_path
from workflow_automation_provider.hooks.reading import pieces
from workflow_automation_provider.hooks.stores import as_url, in_time

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    _Path = str | os.PathLike[str] | ObjectStoragePath

MAX_LINE = 4 * 1024**2
"""Maximum length of a line, in bytes: parsing takes ten times as much memory."""

# Object stores read ahead in blocks of this size, instead of their default of tens of megabytes.
_BLOCK = 4 * 1024 * 1024

# How files begin that are not UTF-8.
_BEGINNINGS = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstandard"),
    (b"PK\x03\x04", "a zip archive, such as an Excel file"),
    (b"PAR1", "Parquet"),
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)

_EXPECTED = "expected one inputs object in each line"


class LineError(Exception):
    """
    A line that is not an object of input names and values.

    :param problem: what is wrong and how to correct it: the rest of a sentence whose subject is the
        line
    :param column: the character that is wrong, from 1; None if it is unknown
    """

    def __init__(self, problem: str, column: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.column = column


def numbered_lines(path: _Path) -> Generator[tuple[int, bytes], None, None]:
    """
    Yield the lines that are not blank, with their numbers from 1.

    Of a line that is too long, yield only a part, and end.

    :raises InvalidRequestError: if the file looks like one of another format
    :raises FileUnavailableError: if it is missing or cannot be read
    """
    is_first = True
    with contextlib.closing(_lines(path)) as lines:
        for number, line in enumerate(lines, start=1):
            content = line
            if number == 1:
                content = line.removeprefix(codecs.BOM_UTF8)
            if not content.strip():
                continue
            if is_first:
                _check_format(path, content)
                is_first = False

            yield number, content


def parse_line(line: bytes) -> Mapping[str, Any]:
    """
    Return the object of a line, with its numbers as text, which keeps their digits.

    :raises LineError: if it has none
    """
    if len(line) > MAX_LINE:
        raise LineError(
            f"is longer than {MAX_LINE // 1024**2} MiB: pass large content as files of an upload."
        )

    text = _decode(line)
    try:
        # NaN stays a float, which JSON rejects.
        value = json.loads(text, object_pairs_hook=_members, parse_float=str, parse_int=str)
    except (ValueError, RecursionError) as error:
        # Without the original message, which may quote the line.
        column = getattr(error, "colno", None)
        raise LineError(f"is not JSON: {_EXPECTED}.", column) from None

    if not isinstance(value, Mapping):
        start = text.lstrip()
        is_number = isinstance(value, str) and not start.startswith('"')
        kind = "a number" if is_number else kind_of(value)
        column = len(text) - len(start) + 1
        raise LineError(f"is {kind}: expected an object of input names and values.", column)

    return value


def _decode(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        before = line[: error.start].decode()
        problem = "is not UTF-8: it looks like Latin-1 or Windows-1252. Write the file in UTF-8."
        raise LineError(problem, len(before) + 1) from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """
    Return an object's members.

    :raises LineError: if it has a name twice, of which the service may take either
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = Counter(name for name, _ in pairs)
        [(name, _)] = names.most_common(1)
        raise LineError(f"has {name!r:.60} twice: expected each name once.")

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
        is_first = True
        open_file = functools.partial(fs.open, location.key, "rb", block_size=_BLOCK)
        for piece in pieces(open_file):
            if is_first:
                _check_encoding(path, piece)
                is_first = False

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


def _check_encoding(path: _Path, beginning: bytes) -> None:
    """
    Check that a file does not begin like one that is not UTF-8.

    :raises InvalidRequestError: if it does
    """
    looks_like = ""
    for signature, name in _BEGINNINGS:
        if beginning.startswith(signature):
            looks_like = name
            break

    if not looks_like and b"\0" in beginning[:2]:
        looks_like = "UTF-16"

    if looks_like:
        raise InvalidRequestError(
            f"batch is {shown_path(path)}, which is not UTF-8: it looks like {looks_like}.",
            next_step="Write it as JSON Lines in UTF-8, not compressed.",
        )


def _check_format(path: _Path, first_line: bytes) -> None:
    """
    Check that a file looks like JSON Lines.

    :param first_line: its first line that is not blank
    :raises InvalidRequestError: if it looks like another known format
    """
    looks_like = _other_format(path, first_line.strip())
    if looks_like:
        raise InvalidRequestError(
            f"batch is {shown_path(path)}, which looks like {looks_like}, not JSON Lines: "
            f"{_EXPECTED}.",
            next_step="Write json.dumps(row) in a line for each row.",
        )


def _other_format(path: _Path, first_line: bytes) -> str:
    """Return the format that a file seems to have, empty if that is JSON Lines."""
    if first_line in (b"{", b"["):
        return "one JSON value over several lines"
    if first_line.startswith(b"["):
        return "a JSON array"
    if first_line.startswith(b"{"):
        return ""

    is_named_so = str(path).lower().endswith((".csv", ".tsv"))
    has_delimiter = re.search(rb"[,;\t]", first_line)
    if is_named_so or has_delimiter:
        return "CSV"

    return ""
