"""
The files of a batch: its items, and the output.

The items are read in order, as often as needed, from a list, an XCom or a JSON Lines file. The
output is written whole, once, at the end; until then, an earlier file stays.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import hashlib
import json
import os
import posixpath
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from airflow.sdk import ObjectStoragePath
from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from workflow_automation_provider.client.checks import (
    check_names,
    check_path,
    check_rendered,
    kind_of,
    one_line,
)
from workflow_automation_provider.client.files import reason
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.redaction import shown, without_credentials
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.reading import pieces
from workflow_automation_provider.hooks.stores import as_url, bucket_of, in_time, stored_at
from workflow_automation_provider.hooks.writing import check_writable, write_whole

Batch = Sequence[Mapping[str, Any]] | str | os.PathLike[str] | ObjectStoragePath
"""``inputs`` objects; or the path or URL of a JSON Lines file with one of them in each line."""

DIGEST_BYTES = 6
"""
Length of an item's digest.

With 100,000 items that all changed, one in a billion batches goes unnoticed.
"""

# How many elements of an XCom are fetched at once: one by one, each costs a request to Airflow.
_SLICE = 500

MAX_LINE = 4 * 1024**2
"""Maximum length of a line, in bytes: parsing takes ten times as much memory."""

MAX_KEY = 100
"""Maximum length of an item's key, in characters: a row of an error's table has 160."""

# How many wrong items are named at once.
_MAX_WRONG = 20

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

# How a store's URL names a version of an object. Reading and writing would take the current one.
_VERSION = re.compile(r"\?versionid=", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Item:
    """
    One item of a batch.

    :param index: its position, from 0
    :param inputs: its encoded inputs, those of a file exactly as they are written there
    :param digest: identifies its inputs and the flow
    :param place: what it is called in errors
    :param key: what people recognize it by, None without one
    """

    index: int
    inputs: bytes
    digest: bytes
    place: str
    key: str | None = None


class BatchSource:
    """
    The items of a batch; each iteration reads them from the beginning, in constant memory.

    :param batch: as the DAG author gave it, rendered
    :param flow_id: the flow, None if the API key identifies it
    :param key: the name of the input by which people recognize an item, None for none
    :param redact: returns a key as it may be shown
    :raises InvalidRequestError: if it cannot be a batch
    """

    def __init__(
        self,
        batch: object,
        flow_id: str | None,
        key: str | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._batch = batch
        self._prefix = f"{flow_id} ".encode(errors="surrogatepass")
        self._key = key
        self._redact = redact
        self._is_file = isinstance(batch, str | os.PathLike | ObjectStoragePath)
        if self._is_file:
            check_path("batch", str(batch))
        elif isinstance(batch, bytes | bytearray) or not isinstance(batch, Sequence):
            raise InvalidRequestError(
                f"batch is {kind_of(batch)}: expected a list of inputs objects, or the path or URL "
                "of a JSON Lines file."
            )

    def __iter__(self) -> Iterator[Item]:
        """
        Yield the items; after one that cannot be sent, only look for others of the kind.

        :raises InvalidRequestError: if items cannot be sent, naming the first ones but not showing
            them; or if the path is a pattern
        :raises FileUnavailableError: if the file is missing or cannot be read
        """
        wrong: list[InvalidRequestError] = []
        items = self._of_file() if self._is_file else self._of_sequence()
        with contextlib.closing(items):
            for make in items:
                try:
                    item = make()
                except InvalidRequestError as error:
                    wrong.append(error)
                    if len(wrong) == _MAX_WRONG:
                        break
                    continue
                if not wrong:
                    yield item
        if wrong:
            raise _all_of(wrong)

    def place_of(self, index: int, line: int | None = None, column: int | None = None) -> str:
        """
        Return what an item is called in errors.

        :param line: its number in the file, from 1; None if it has none
        :param column: the character of the line that is wrong, from 1; None if it is unknown
        """
        if not self._is_file:
            return f"batch[{index}]"
        where = ""
        if line is not None:
            where = f"line {line} "
        if column is not None:
            where = f"line {line}, column {column} "
        return f"batch[{index}] ({where}of {_shown(self._batch)})"

    def is_at(self, fs: Any, key: str) -> bool:
        """Return whether the items are in this file, as the same connection names it."""
        if not self._is_file:
            return False
        own_fs, own_key = _stored("batch", self._batch)
        is_bucket = bucket_of(key) != ""
        if not is_bucket:
            own_key, key = _normal(own_key), _normal(key)
        return bool(own_fs == fs and own_key == key)

    def _of_sequence(self) -> Generator[Callable[[], Item], None, None]:
        """Yield what makes each item of a list or an XCom."""
        for index, inputs in enumerate(_elements(cast("Sequence[Any]", self._batch))):
            yield functools.partial(self._item, index, self.place_of(index), inputs)

    def _of_file(self) -> Generator[Callable[[], Item], None, None]:
        """Yield what makes each item of a JSON Lines file."""
        index = 0
        with contextlib.closing(self._read()) as lines:
            for number, line in enumerate(lines, start=1):
                content = line
                if number == 1:
                    content = line.removeprefix(codecs.BOM_UTF8)
                if not content.strip():
                    continue
                if index == 0:
                    self._check_format(content)
                yield functools.partial(self._item_of_line, index, number, content)
                index += 1

    def _item_of_line(self, index: int, number: int, line: bytes) -> Item:
        """
        Return the item of a line, whose inputs are sent as they are written there.

        :raises InvalidRequestError: if it cannot be sent
        """
        place = self.place_of(index, number)
        if len(line) > MAX_LINE:
            raise InvalidRequestError(
                f"{place} is longer than {MAX_LINE // 1024**2} MiB: pass large content as files of "
                "an upload."
            )

        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            before = line[: error.start].decode()
            place = self.place_of(index, number, len(before) + 1)
            raise InvalidRequestError(
                f"{place} is not UTF-8: it looks like Latin-1 or Windows-1252. Write the file in "
                "UTF-8."
            ) from None

        try:
            inputs = _parsed(text)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{place} {error.message}") from None
        except (ValueError, RecursionError) as error:
            # Without the original message, which may quote the line.
            place = self.place_of(index, number, getattr(error, "colno", None))
            raise InvalidRequestError(f"{place} is not JSON: {_EXPECTED}.") from None

        if not isinstance(inputs, Mapping):
            start = text.lstrip()
            place = self.place_of(index, number, len(text) - len(start) + 1)
            # Numbers were parsed as text.
            is_number = isinstance(inputs, str) and not start.startswith('"')
            if is_number:
                raise InvalidRequestError(
                    f"{place} is a number: expected an object of input names and values."
                )
        return self._item(index, place, inputs, line.strip())

    def _item(self, index: int, place: str, inputs: object, line: bytes | None = None) -> Item:
        """
        Return an item.

        :param line: its inputs as they are sent; by default, they are encoded
        :raises InvalidRequestError: if it cannot be sent
        """
        if line is None:
            check_rendered(place, inputs)
            check_names(place, inputs)
        if not isinstance(inputs, Mapping):
            raise InvalidRequestError(
                f"{place} is {kind_of(inputs)}: expected an object of input names and values."
            )
        encoded = encode(place, inputs)
        if line is not None:  # with the digits of its numbers
            encoded = line
        digest = hashlib.sha256(self._prefix + encoded).digest()[:DIGEST_BYTES]
        return Item(index, encoded, digest, place, self._key_of(place, inputs))

    def _key_of(self, place: str, inputs: Mapping[str, Any]) -> str | None:
        """
        Return an item's key as it may be shown, None without one.

        :raises InvalidRequestError: if the input is missing, or is neither text nor a number
        """
        if self._key is None:
            return None
        if self._key not in inputs:
            raise InvalidRequestError(
                f"{place} has no input {self._key!r}, which is the key: give each item one."
            )

        # As it is sent: a date, for example, is text.
        value = json.loads(encode(place, inputs[self._key]), parse_int=str, parse_float=str)
        if not isinstance(value, str):
            raise InvalidRequestError(
                f"{place} has {kind_of(inputs[self._key])} as {self._key!r}, which is the key: "
                "expected text or a number."
            )
        if not value.strip():
            raise InvalidRequestError(
                f"{place} has an empty text as {self._key!r}, which is the key: give each item one."
            )
        if len(value) > MAX_KEY:
            raise InvalidRequestError(
                f"{place} has {len(value)} characters as {self._key!r}, which is the key: expected "
                f"at most {MAX_KEY}."
            )
        return one_line(self._redact(value))

    def _check_format(self, line: bytes) -> None:
        """
        Check that a file looks like JSON Lines.

        :param line: its first line that is not blank
        :raises InvalidRequestError: if it is of another known format
        """
        start = line.strip()
        what = ""
        if start in (b"{", b"["):
            what = "one JSON value over several lines"
        elif not start.startswith((b"{", b"[")):
            is_named_so = str(self._batch).lower().endswith((".csv", ".tsv"))
            if is_named_so or re.search(rb"[,;\t]", start):
                what = "CSV"
        if what:
            raise InvalidRequestError(
                f"batch is {_shown(self._batch)}, which looks like {what}, not JSON Lines: "
                f"{_EXPECTED}.",
                next_step="Write json.dumps(row) in a line for each row.",
            )

    def _read(self) -> Generator[bytes, None, None]:
        """Yield the lines; of one that is too long, only a part."""
        try:
            fs, key = _stored("batch", self._batch)
            fs.invalidate_cache()  # what an earlier task wrote may have been replaced
            # S3 opens a folder as an empty file.
            if in_time(fs.isdir, key):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

            rest = b""
            is_first = True
            for piece in pieces(functools.partial(fs.open, key, "rb", block_size=_BLOCK)):
                if is_first:
                    _check_encoding(_shown(self._batch), piece)
                    is_first = False
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
                if len(rest) > MAX_LINE:
                    break
            yield rest
        except InvalidRequestError:
            raise
        except Exception as error:  # object stores raise all kinds of exceptions
            is_pattern = isinstance(error, FileNotFoundError) and "*" in str(self._batch)
            if is_pattern:
                raise InvalidRequestError(
                    f"batch is {_shown(self._batch)}, a pattern: expected the path or URL of one "
                    "file.",
                    next_step="Write all items to one file, or map the task over the files.",
                ) from None
            what = f"batch is {_shown(self._batch)}, which cannot be read"
            why = reason(error, as_url(self._batch))
            raise FileUnavailableError(f"{what}: {why}.") from None


def _elements(batch: Sequence[Any]) -> Iterator[Any]:
    """Yield the elements of a sequence, those of a mapped task's XComs many at a time."""
    if not isinstance(batch, LazyXComSequence):
        yield from batch
        return
    start = 0
    while part := batch[start : start + _SLICE]:
        yield from part
        start += len(part)


def _parsed(text: str) -> Any:
    """
    Return the value of a line.

    :raises ValueError: if it is not JSON
    :raises InvalidRequestError: if an object has a name twice
    """
    # Numbers as text, which keeps their digits; NaN stays a float, which JSON rejects.
    return json.loads(text, object_pairs_hook=_members, parse_float=str, parse_int=str)


def _check_encoding(shown: str, beginning: bytes) -> None:
    """Raise an InvalidRequestError if a file begins like one that is not UTF-8."""
    looks = [what for signature, what in _BEGINNINGS if beginning.startswith(signature)]
    if not looks and b"\0" in beginning[:2]:
        looks = ["UTF-16"]
    if looks:
        raise InvalidRequestError(
            f"batch is {shown}, which is not UTF-8: it looks like {looks[0]}.",
            next_step="Write it as JSON Lines in UTF-8, not compressed.",
        )


def _all_of(wrong: Sequence[InvalidRequestError]) -> InvalidRequestError:
    """Return one error for all items that cannot be sent."""
    first, *others = wrong
    if not others:
        return first
    lines = ["Further items that cannot be sent:", *(error.message for error in others)]
    if len(wrong) == _MAX_WRONG:
        lines.append(f"The check ended with these {_MAX_WRONG}.")
    return InvalidRequestError(first.message, next_step="\n".join(lines))


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; reject a name that is there twice."""
    # The service may take either.
    members = dict(pairs)
    if len(members) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidRequestError(f"has {name!r:.60} twice: expected each name once.")
    return members


def check_output(path: str, source: BatchSource) -> None:
    """
    Check that the output can be written, before runs are started that no file would name.

    :param path: local path, or URL that Airflow's object storage writes
    :param source: what must not be overwritten
    :raises InvalidRequestError: if it is the file of the batch, a bucket alone, or ends in ``/``
    :raises FileUnavailableError: if it cannot be written, such as where there is no folder or
        bucket for it, or no right to write there
    """
    if path.endswith("/"):
        raise InvalidRequestError(f"output_path is {_shown(path)}, a folder: expected a file.")
    try:
        fs, key = _stored("output_path", path)
        if source.is_at(fs, key):
            raise InvalidRequestError(
                f"output_path is {_shown(path)}, the file of the batch: expected another file."
            )
        is_bucket = key.strip("/") == bucket_of(key) != ""
        if is_bucket:
            raise InvalidRequestError(
                f"output_path is {_shown(path)}, a bucket: expected a file in it, such as "
                f"{without_credentials(path)}/runs.jsonl."
            )
        check_writable(fs, key)
    except InvalidRequestError:
        raise
    except Exception as error:  # object stores raise all kinds of exceptions
        hint = ""
        if isinstance(error, FileNotFoundError):
            hint = "Create its folder or bucket first."
        what = f"output_path is {_shown(path)}, which cannot be written"
        why = reason(error, path)
        raise FileUnavailableError(f"{what}: {why}.", next_step=hint) from None


def write_output(path: str, items: Iterable[Mapping[str, Any]]) -> None:
    """
    Write the results of all items as JSON Lines, whole or not at all.

    :raises FileUnavailableError: if they cannot be written
    """
    try:
        fs, key = _stored("output_path", path)
        with tempfile.NamedTemporaryFile() as file:
            file.writelines(json.dumps(item).encode() + b"\n" for item in items)
            file.flush()
            write_whole(fs, key, file.name)
    except Exception as error:  # object stores raise all kinds of exceptions
        why = reason(error, path)
        what = f"output_path is {_shown(path)}, which cannot be written: {why}."
        raise FileUnavailableError(what) from None


def _normal(path: str) -> str:
    """Return the path of a file system without ``.``, ``..`` and double slashes."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _stored(name: str, source: Any) -> tuple[Any, str]:
    """
    Return the file system of a path or URL, and the key in it; a local link is followed.

    :raises InvalidRequestError: if it is no URL of a store, or of a version of an object; for a
        pipe or a device, which cannot be read twice or replaced
    """
    scheme, separator, rest = str(source).partition("://")
    if separator and scheme.lower() not in ("file", "local"):
        if _VERSION.search(rest):
            raise InvalidRequestError(
                f"{name} is {_shown(source)}, a version of an object: expected the object itself.",
                next_step="Copy the version to an object of its own.",
            )
        # An object storage path may have a connection of its own.
        return stored_at(name, source if isinstance(source, ObjectStoragePath) else str(source))
    path = os.path.realpath(rest if separator else str(source))
    # As it is given: a Path would leave out a slash at its end.
    is_regular = os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112, PTH113
    if os.path.exists(path) and not is_regular:  # noqa: PTH110
        raise InvalidRequestError(
            f"{name} is {_shown(source)}, a pipe or a device: expected a regular file."
        )
    # Not Airflow's, which looks through all providers first.
    return LocalFileSystem(), path


def _shown(path: object) -> str:
    return shown(as_url(path))
