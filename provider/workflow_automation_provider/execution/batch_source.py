"""
The files of a batch: its items, and the output.

The items are read in order, as often as needed, from a list, an XCom or a JSON Lines file. The output is
written whole, once, at the end; until then, an earlier file stays.
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
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from airflow.sdk import ObjectStoragePath
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from workflow_automation_provider.client.checks import (
    check_names,
    check_path,
    check_rendered,
    kind_of,
)
from workflow_automation_provider.client.files import reason
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.stores import (
    as_url,
    bucket_of,
    check_writable,
    in_time,
    pieces,
    stored_at,
    write_whole,
)

Batch = Sequence[Mapping[str, Any]] | str | os.PathLike[str] | ObjectStoragePath
"""``inputs`` objects; or the path or URL of a JSON Lines file with one of them in each line."""

DIGEST_BYTES = 6
"""Length of an item's digest: with 100,000 items that all changed, one in a billion batches goes unnoticed."""

# How many elements of an XCom are fetched at once: one by one, each costs a request to Airflow.
_SLICE = 500

MAX_LINE = 4 * 1024**2
"""Maximum length of a line, in bytes: parsing takes ten times as much memory."""

# Object stores read ahead in blocks of this size, instead of their default of tens of megabytes.
_BLOCK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """
    One item of a batch.

    :param index: its position, from 0
    :param inputs: its encoded inputs, those of a file exactly as they are written there
    :param digest: identifies its inputs and the flow
    :param place: what it is called in errors
    """

    index: int
    inputs: bytes
    digest: bytes
    place: str


class BatchSource:
    """
    The items of a batch; each iteration reads them from the beginning, in constant memory.

    :param batch: as the DAG author gave it, rendered
    :param flow_id: the flow, None if the API key identifies it
    :raises InvalidRequestError: if it cannot be a batch
    """

    def __init__(self, batch: object, flow_id: str | None) -> None:
        self._batch = batch
        self._prefix = f"{flow_id} ".encode(errors="surrogatepass")
        self._is_file = isinstance(batch, str | os.PathLike | ObjectStoragePath)
        if self._is_file:
            check_path("batch", str(batch))
        # A list, a tuple, or Airflow's lazy sequence of a mapped task's XComs.
        elif isinstance(batch, bytes | bytearray) or not isinstance(batch, Sequence):
            raise InvalidRequestError(
                f"batch is {kind_of(batch)}: expected a list of inputs objects, or the path or URL of a JSON Lines file."
            )

    def __iter__(self) -> Iterator[Item]:
        """
        Yield the items.

        :raises InvalidRequestError: if an item cannot be sent, naming it but not showing it; if the path is that of
            a folder
        :raises FileUnavailableError: if the file is missing or cannot be read
        """
        for index, (place, inputs, line) in enumerate(
            self._lines() if self._is_file else self._elements()
        ):
            if not self._is_file:
                check_rendered(place, inputs)
                check_names(place, inputs)
            if not isinstance(inputs, Mapping):
                raise InvalidRequestError(
                    f"{place} is {kind_of(inputs)}: expected an object of input names and values."
                )
            encoded = encode(place, inputs)
            if line is not None:  # sent as it is, with the digits of its numbers
                encoded = line
            digest = hashlib.sha256(self._prefix + encoded).digest()[:DIGEST_BYTES]
            yield Item(index, encoded, digest, place)

    def place_of(self, index: int, line: int | None = None) -> str:
        """
        Return what an item is called in errors.

        :param line: its number in the file, from 1; None if it has none
        """
        if not self._is_file:
            return f"batch[{index}]"
        return f"batch[{index}] ({'' if line is None else f'line {line} '}of {_shown(self._batch)})"

    def is_read_from(self, fs: Any, key: str) -> bool:
        """Return whether the items are in this file, even by another connection or scheme."""
        if not self._is_file:
            return False
        own_fs, own_key = _stored("batch", self._batch)
        if not bucket_of(key):
            own_key, key = (posixpath.normpath(f"/{path.lstrip('/')}") for path in (own_key, key))
        return bool((own_fs.protocol, own_key) == (fs.protocol, key))

    def _elements(self) -> Iterator[tuple[str, object, None]]:
        batch = cast("Sequence[Any]", self._batch)
        index = 0
        while part := batch[index : index + _SLICE]:
            for inputs in part:
                yield self.place_of(index), inputs, None
                index += 1

    def _lines(self) -> Iterator[tuple[str, object, bytes]]:
        """Yield what an item is called in errors, its value, and its line."""
        index = 0
        with contextlib.closing(self._read()) as lines:
            for number, line in enumerate(lines, start=1):
                place = self.place_of(index, number)
                if len(line) > MAX_LINE:
                    raise InvalidRequestError(
                        f"{place} is longer than {MAX_LINE // 1024**2} MiB: pass large content as files of an upload."
                    )
                encoded = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if encoded.isspace() or not encoded:
                    continue
                try:
                    # Numbers as text, which keeps their digits; NaN stays a float, which JSON rejects.
                    inputs = json.loads(
                        encoded.decode(), object_pairs_hook=_members, parse_float=str, parse_int=str
                    )
                except InvalidRequestError as error:
                    raise InvalidRequestError(f"{place} {error.message}") from None
                except (ValueError, RecursionError):
                    # Without the original message, which may quote the line.
                    raise InvalidRequestError(
                        f"{place} is not JSON: expected one inputs object in each line."
                    ) from None
                yield place, inputs, encoded.strip()
                index += 1

    def _read(self) -> Generator[bytes, None, None]:
        """Yield the lines; of one that is too long, only a part."""
        try:
            fs, key = _stored("batch", self._batch)
            fs.invalidate_cache()  # what an earlier task wrote may have been replaced
            # S3 opens a folder as an empty file.
            if in_time(fs.isdir, key):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            rest = b""
            for piece in pieces(functools.partial(fs.open, key, "rb", block_size=_BLOCK)):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
                if len(rest) > MAX_LINE:
                    break
            yield rest
        except InvalidRequestError:
            raise
        except Exception as error:  # object stores raise all kinds of exceptions
            what = f"batch is {_shown(self._batch)}, which cannot be read"
            why = reason(error, as_url(self._batch))
            raise FileUnavailableError(f"{what}: {why}.") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; reject a name that is there twice, for the service may take either."""
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
    :raises FileUnavailableError: if it cannot be written, such as where there is no folder or bucket for it
    """
    if path.endswith("/"):
        raise InvalidRequestError(f"output_path is {_shown(path)}, a folder: expected a file.")
    try:
        fs, key = _stored("output_path", path)
        if source.is_read_from(fs, key):
            raise InvalidRequestError(
                f"output_path is {_shown(path)}, the file of the batch: expected another file."
            )
        is_bucket = key.strip("/") == bucket_of(key) != ""
        if is_bucket:
            raise InvalidRequestError(
                f"output_path is {_shown(path)}, a bucket: expected a file in it."
            )
        check_writable(fs, key)
    except InvalidRequestError:
        raise
    except Exception as error:  # object stores raise all kinds of exceptions
        hint = "Create its folder or bucket first." if isinstance(error, FileNotFoundError) else ""
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


def _stored(name: str, source: Any) -> tuple[Any, str]:
    """
    Return the file system of a path or URL, and the key in it; a local link is followed.

    :raises InvalidRequestError: if it is no URL of a store; for a pipe or a device, which cannot be read twice or replaced
    """
    scheme, separator, rest = str(source).partition("://")
    if separator and scheme.lower() not in ("file", "local"):
        # An object storage path may have a connection of its own.
        return stored_at(name, source if isinstance(source, ObjectStoragePath) else str(source))
    path = os.path.realpath(rest if separator else str(source))
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112, PTH113 - as it is given
        raise InvalidRequestError(
            f"{name} is {_shown(source)}, a pipe or a device: expected a regular file."
        )
    # Not Airflow's, which looks through all providers first.
    return LocalFileSystem(), path


def _shown(path: object) -> str:
    return shown(as_url(path))
