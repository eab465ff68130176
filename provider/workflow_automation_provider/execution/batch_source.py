"""
The files of a batch: its items, and the output.

The items are read in order, as often as needed, from a list, an XCom or a JSON Lines file. The output is written whole, once, at
the end; until then, what was there stays.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

from airflow.sdk import ObjectStoragePath

from workflow_automation_provider.client.checks import check_rendered, kind_of, unusable_path
from workflow_automation_provider.client.files import is_wrong_path, reason
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    FileUnavailableError,
    InvalidRequestError,
)
from workflow_automation_provider.hooks.sources import stored_at

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

# What a store's file is asked for at once.
_BUFFER = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """
    One item of a batch.

    :param index: its position, from 0
    :param inputs: its inputs, encoded: those of a file as they are written there
    :param digest: identifies its inputs and the flow
    :param place: what it is called in errors
    """

    index: int
    inputs: bytes
    digest: bytes
    place: str = field(compare=False)


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
            _check_path(str(batch))
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
        for index, (place, inputs, line) in enumerate(self._lines() if self._is_file else self._elements()):
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
        return f"batch[{index}] ({'' if line is None else f'line {line} '}of {self._name})"

    def is_read_from(self, path: str) -> bool:
        """
        Return whether the items are in this file.

        :param path: local path, or URL of an object store, with or without a connection
        """
        return self._is_file and _is_same_file(str(self._batch), path)

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
                    # Numbers as text, which has all of their digits; NaN stays a float, which JSON rejects.
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
        try:
            with self._open() as file:
                while line := file.readline(MAX_LINE + 1):
                    yield line
        except InvalidRequestError:
            raise
        except Exception as error:  # object stores raise all kinds of exceptions
            kind = InvalidRequestError if is_wrong_path(error) else FileUnavailableError
            raise kind(f"batch is {self._name}, which cannot be read: {reason(error)}.") from None

    def _open(self) -> IO[bytes]:
        path = _local(str(self._batch))
        if path is None:
            # With the connection of its own that a path may have.
            url = self._batch if isinstance(self._batch, ObjectStoragePath) else str(self._batch)
            fs, key = stored_at("batch", url)
            fs.invalidate_cache()  # what an earlier task wrote may have been replaced
            # S3 opens a folder as an empty file.
            if fs.isdir(key):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return io.BufferedReader(_Stored(fs.open(key, "rb", block_size=_BLOCK)), _BUFFER)
        _check_regular("batch", str(self._batch))
        return open(path, "rb")  # noqa: PTH123 - as it is given, closed by _read

    @property
    def _name(self) -> str:
        return _shown(self._batch)


class _Stored(io.RawIOBase):
    """The file of a store, of which no more is taken for granted than that it can be read."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members, each once: of others, the service may take the first or the last."""
    members = dict(pairs)
    if len(members) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidRequestError(f"has {name!r:.60} twice: expected each name once.")
    return members


def _check_path(text: str) -> None:
    if text.lstrip().startswith(("[", "{")):
        raise InvalidRequestError(
            "batch is the text of a whole value: pass the XCom itself, such as upstream.output, or set "
            "render_template_as_native_obj on the DAG."
        )
    check_rendered("batch", text)
    if error := unusable_path("batch", without_credentials(text)):
        raise error


def check_output(path: str, source: BatchSource) -> None:
    """
    Check that the output can be written, before anything is started for which there would be no file then.

    :param path: local path, or URL that Airflow's object storage writes
    :param source: what must not be overwritten
    :raises InvalidRequestError: if it is the file of the batch or no regular file, or there is no folder or bucket for it
    :raises FileUnavailableError: if it cannot be written for another reason
    """
    if path.endswith("/"):
        raise InvalidRequestError(f"output_path is {_shown(path)}, a folder: expected a file.")
    if source.is_read_from(path):
        raise InvalidRequestError(
            f"output_path is {_shown(path)}, the file of the batch: expected another file."
        )
    _check_regular("output_path", path)
    try:
        if (local := _local(path)) is None:
            _check_store(*stored_at("output_path", path))
        else:
            _write_beside(os.path.realpath(local), ())
    except Exception as error:  # object stores raise all kinds of exceptions
        what = _unwritable(path, error)
        if isinstance(error, FileNotFoundError):
            raise InvalidRequestError(what, next_step="Create its folder or bucket first.") from None
        kind = InvalidRequestError if is_wrong_path(error) else FileUnavailableError
        raise kind(what) from None


def write_output(path: str, items: Iterable[Mapping[str, Any]]) -> None:
    """
    Write the results of all items as JSON Lines, or nothing.

    :raises FileUnavailableError: if they cannot be written
    """
    lines = (json.dumps(item).encode() + b"\n" for item in items)
    try:
        if (local := _local(path)) is None:
            # An object appears whole. A file of SFTP grows while it is written.
            grows = path.lower().startswith(("sftp://", "ssh://"))
            _upload(*stored_at("output_path", path), lines, beside=grows)
        else:
            _write_beside(os.path.realpath(local), lines, replaces=True)
    except Exception as error:  # object stores raise all kinds of exceptions
        raise FileUnavailableError(_unwritable(path, error)) from error


def _unwritable(path: str, error: Exception) -> str:
    why = getattr(error, "strerror", None) or f"{type(error).__name__}: {without_credentials(str(error))}"
    return f"output_path is {_shown(path)}, which cannot be written: {why}."


def _write_beside(path: str, lines: Iterable[bytes], *, replaces: bool = False) -> None:
    """Write a file beside another, and rename it to that, or else delete it."""
    if os.path.isdir(path):  # noqa: PTH112 - as it is given
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    beside = _beside(path)
    try:
        with open(beside, "xb") as file:  # noqa: PTH123
            file.writelines(lines)
        if replaces:
            if os.path.exists(path):  # noqa: PTH110
                shutil.copymode(path, beside)
            os.replace(beside, path)  # noqa: PTH105
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside)  # noqa: PTH108


def _check_store(fs: Any, key: str) -> None:
    """Check that there is a bucket, or else that an object can be written beside the one that is meant."""
    bucket = key.partition("/")[0]
    if not bucket or fs.exists(bucket):
        return
    # Who may write need not be allowed to look.
    beside = _beside(key)
    fs.pipe_file(beside, b"")
    with contextlib.suppress(Exception):
        fs.rm_file(beside)


def _upload(fs: Any, key: str, lines: Iterable[bytes], *, beside: bool) -> None:
    """Write a file of a store once all of it is there: not every store can discard a part."""
    written = _beside(key) if beside else key
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(lines)
        file.flush()
        try:
            fs.put_file(file.name, written)
            if beside:
                fs.mv(written, key)
        except BaseException:
            if beside:
                with contextlib.suppress(Exception):
                    fs.rm_file(written)
            raise


def _beside(path: str) -> str:
    folder, separator, _ = path.rpartition("/")
    return f"{folder}{separator}.output-{secrets.token_hex(8)}"


def _local(path: str) -> str | None:
    """Return the local path that a path or URL means, None for a URL of a store."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    return rest if scheme.lower() in ("file", "local") else None


def _shown(path: object) -> str:
    return repr(without_credentials(str(path)))


def _check_regular(name: str, path: str) -> None:
    """Check that a path is not that of a pipe or a device, which cannot be read twice or replaced."""
    local = _local(path)
    try:
        mode = os.stat(local).st_mode if local is not None else 0  # noqa: PTH116 - as it is given
    except (OSError, ValueError):
        return  # opening it says why
    if mode and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidRequestError(f"{name} is {_shown(path)}, a pipe or a device: expected a regular file.")


def _is_same_file(one: str, other: str) -> bool:
    """Return whether two paths or URLs mean the same file: also through a link, another scheme or connection."""
    local, other_local = _local(one), _local(other)
    try:
        if local is None and other_local is None:
            (fs, key), (other_fs, other_key) = (stored_at("output_path", url) for url in (one, other))
            return bool(fs.protocol == other_fs.protocol and key == other_key)
        # Compares devices and inodes, which a hard link shares.
        return local is not None and other_local is not None and os.path.samefile(local, other_local)  # noqa: PTH121
    except Exception:  # of a store as well; who opens the file says why
        return False
