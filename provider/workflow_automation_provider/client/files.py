"""
Files to upload, and their format in the request.

The interface does not show what an element of ``files`` looks like, so a *file format* defines it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal, Protocol, get_args

from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import (
    FileUnavailableError,
    InvalidRequestError,
    WorkflowAutomationError,
)

FormatWord = Literal["name", "base64", "data_url", "content_type", "size"]
"""What a field of an element may hold."""

DEFAULT_FILE_FORMAT: Mapping[str, FormatWord] = {
    "name": "name",
    "content_type": "content_type",
    "content": "base64",
}
"""The file format if neither the connection nor the operator sets one."""

# A multiple of 3, so that base64 of each chunk joins without padding.
_CHUNK = 3 * 64 * 1024

_WRONG_PATHS = (errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)

# A message of a store's client may quote a whole response.
_REASON = 200


class ChangedError(Exception):
    """A file is no longer the one that was listed."""


class Reading(Protocol):
    """The files of a request, read in the order in which they are sent, some of them ahead of their turn."""

    def chunks(self, file: File) -> Iterator[bytes]:
        """
        Return the content of the next file, in chunks whose length is a multiple of 3, except the last.

        :raises ChangedError: if it is no longer the version of the file
        :raises Exception: of any kind, if it cannot be read
        """

    def close(self) -> None:
        """Stop reading, at once."""


ReadAhead = Callable[[Iterable["File"], Callable[[], bool]], Reading]
"""Begins to read files, in order. The second argument returns whether to stop."""


@dataclass(frozen=True, slots=True)
class File:
    """
    A file to upload, read while it is sent.

    :param name: the name to send to the service
    :param size: in bytes
    :param content_type: its media type
    :param source: where it comes from, for errors
    :param open: opens it for reading in binary mode
    :param fingerprint: returns a value that changes when the file does (size, modification time, …)
    """

    name: str
    size: int
    content_type: str
    source: str
    open: Callable[[], IO[bytes]] = field(repr=False)
    fingerprint: Callable[[], object] = field(repr=False, default=lambda: None)

    @property
    def location(self) -> str | None:
        """Its path or URL, for lineage; None if it has none."""
        return None

    @property
    def read_ahead(self) -> ReadAhead | None:
        """What reads the content in place of ``open``, and makes sure that it is the version of its fingerprint."""
        return None


FileFormat = Mapping[str, str] | FormatWord
"""
How a file becomes an element of ``files``: a mapping of field name to word, or one word, for elements that are plain
strings.

The words of a mapping are typed as ``str``, which is what type checkers infer for a plain dict; whether each
is a :data:`FormatWord` is checked at run time.
"""

Element = File | Mapping[str, Any]
"""An element of ``files``: a file, or a JSON object that is sent unchanged."""


def check_file_format(value: object) -> FileFormat:
    """
    Check a file format.

    :raises InvalidRequestError: if it is neither a word nor a mapping of field names to words
    """
    words = get_args(FormatWord)
    known = ", ".join(words)
    if isinstance(value, str):
        if value in words:
            return value  # type: ignore[return-value]  # mypy does not narrow a str by membership
        raise InvalidRequestError(
            f"file_format is not supported; expected one of {known}, or a mapping of field name to one of them."
        )
    if not isinstance(value, Mapping) or not value:
        raise InvalidRequestError(
            f"file_format is {kind_of(value)}: expected a mapping of field name to one of {known}."
        )
    for name, word in value.items():
        if not isinstance(name, str) or not isinstance(word, str) or word not in words:
            raise InvalidRequestError(
                f"file_format[{name!r}] has an unsupported value; expected one of {known}."
            )
    return value


def read_whole(
    file: File,
    *,
    reading: Reading | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[bytes]:
    """
    Read a file, and raise if it has changed since it was measured.

    :param reading: what reads the files of the request ahead, None to read only this one
    :param stopped: returns whether to stop
    :return: its bytes, exactly ``file.size``, in chunks whose length is a multiple of 3, except the last
    :raises FileUnavailableError: if it is shorter, longer or gone by now, or changed while it is read
    """
    left = file.size
    alone = None
    try:
        if file.read_ahead is None:
            chunks = _opened(file)
        else:
            reading = reading or (alone := file.read_ahead([file], stopped))
            chunks = reading.chunks(file)
        for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                raise changed(file, f"is longer than its original {file.size} bytes")
            yield chunk
        if left:
            raise changed(file, f"is {left} bytes shorter than its original {file.size}")
    except WorkflowAutomationError:
        raise
    except ChangedError as error:
        raise changed(file, f"changed ({error})") from None
    except Exception as error:  # object stores raise all kinds of exceptions
        if stopped():
            raise
        raise changed(file, f"could not be read ({reason(error)})") from None
    finally:
        if alone is not None:
            alone.close()


def _opened(file: File) -> Iterator[bytes]:
    """Read a file that is not read ahead, and raise if it changes meanwhile."""
    left = file.size
    before = file.fingerprint()
    with file.open() as stream:
        while left:
            chunk = read_exactly(stream, min(_CHUNK, left))
            left -= len(chunk)
            if not chunk:
                return
            if left == 0 and stream.read(1):
                raise changed(file, f"is longer than its original {file.size} bytes")
            yield chunk
        if file.size == 0 and stream.read(1):
            raise changed(file, "is no longer empty")
    if file.fingerprint() != before:
        raise changed(file, "changed")


def version_of(file: File) -> object:
    """
    Return the fingerprint of a file.

    :raises FileUnavailableError: if it can no longer be read
    """
    try:
        return file.fingerprint()
    except Exception as error:  # of any kind, by store
        raise FileUnavailableError(
            f"{file.source} can no longer be read ({reason(error)}).", consequence="Its request was not sent."
        ) from None


def reason(error: Exception) -> str:
    """Describe in one line why a file cannot be read."""
    if message := getattr(error, "strerror", None):
        return without_credentials(str(message))
    line = str(error).strip().partition("\n")[0]
    text = without_credentials(line[: 10 * _REASON])[:_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_wrong_path(error: Exception) -> bool:
    """
    Return whether no file can be at a path, which a retry cannot fix: a folder, a path through a file, or no path at all.

    :param error: of a file system, or of the client of a store
    """
    if isinstance(error, OSError):
        return isinstance(error, IsADirectoryError | NotADirectoryError) or error.errno in _WRONG_PATHS
    # But for what a store responded, clients check their arguments.
    return isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError)


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end: object stores may return less than requested."""
    chunk = stream.read(size)
    while chunk and len(chunk) < size and (more := stream.read(size - len(chunk))):
        chunk += more
    return chunk


def changed(file: File, what: str) -> FileUnavailableError:
    """Return the error for a file that has changed while it was sent."""
    return FileUnavailableError(
        f"{file.source} {what} while it was being uploaded.",
        consequence="The request was aborted before all of it was sent: no files were accepted.",
    )
