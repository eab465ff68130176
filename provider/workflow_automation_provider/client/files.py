"""
Files to upload, and the bodies of the requests that upload them.

Follows section 4.3 of the interface.

The interface does not show what an element of ``files`` looks like, so a *file format* defines it.
A body is a stream of JSON whose length is known before its first byte is sent: files are read in
chunks, so that memory use does not grow with their size, and hardly with their number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from workflow_automation_provider.client.checks import identifier
from workflow_automation_provider.client.file_format import DEFAULT_FILE_FORMAT, FileFormat
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.media_types import media_type
from workflow_automation_provider.client.redaction import without_credentials_of
from workflow_automation_provider.exceptions import (
    FileUnavailableError,
    InvalidRequestError,
    WorkflowAutomationError,
)
from workflow_automation_provider.wording import kind_of

# A multiple of 3, so that base64 of each chunk joins without padding.
_CHUNK = 3 * 64 * 1024

# How much is kept of an error's message, in characters: that of a store's client may quote a whole
# response.
_MAX_REASON = 200


class Reading(Protocol):
    """The files of a request, read in the order in which they are sent, some ahead of time."""

    def chunks(self, file: File) -> Iterator[bytes]:
        """
        Return the content of the next file, in chunks.

        The length of each is a multiple of 3, except of the last.

        :raises Exception: of any kind, if it cannot be read, or is no longer the version of the
            file
        """

    def close(self) -> None:
        """Stop reading, at once."""


ReadAhead = Callable[[Iterable["File"]], Reading]
"""Begins to read files, in order."""


@dataclass(frozen=True, slots=True)
class File:
    """
    A file to upload, read while it is sent.

    :param name: the name to send to the service
    :param size: in bytes
    :param content_type: its media type, None for that of its name
    :param source: where it comes from, for errors
    :param open: opens it for reading in binary mode
    :param fingerprint: returns a value that changes when the file does (size, modification time, …)
    :param location: its path or URL, for lineage; None if it has none
    :param read_ahead: reads the content in place of ``open``, and checks that it still has this
        fingerprint
    :param path: its path below the folder or prefix that was searched, None for its name
    """

    name: str
    size: int
    content_type: str | None
    source: str
    open: Callable[[], IO[bytes]] = field(repr=False)
    fingerprint: Callable[[], object] = field(repr=False, default=lambda: None)
    location: str | None = field(repr=False, default=None)
    read_ahead: ReadAhead | None = field(repr=False, default=None)
    path: str | None = field(repr=False, default=None)


Element = File | Mapping[str, Any]
"""An element of ``files``: a file, or a JSON object that is sent unchanged."""


_TAIL = b"]}"


class UploadBody:
    """
    The body of an upload request, which reads its files while it is sent.

    :param head: what comes before the elements
    :param file_format: of each file
    """

    def __init__(self, head: bytes, file_format: FileFormat) -> None:
        self.files: list[File | bytes] = []
        """The elements of the request: files, and mappings as JSON."""
        self._head = head
        self._file_format = file_format
        self._length = len(head) + len(_TAIL)

    def __len__(self) -> int:
        """Return its size in bytes."""
        return self._length

    def add(self, element: File | bytes, length: int) -> None:
        """Add an element that takes ``length`` bytes of the body."""
        if self.files:
            self._length += len(b",")
        self._length += length
        self.files.append(element)

    def stream(self) -> Generator[bytes]:
        """Yield its bytes, from the beginning each time; closing the generator ends all reading."""
        ahead = [part for part in self._layout() if isinstance(part, File) and part.read_ahead]
        read_ahead = ahead[0].read_ahead if ahead else None
        if read_ahead is None:
            yield from self._encoded(None)
            return

        with closing(read_ahead(ahead)) as reading:
            yield from self._encoded(reading)

    def _layout(self) -> Iterator[bytes | File]:
        """Yield the body in parts: JSON, and a file where its content in base64 belongs."""
        yield self._head
        for number, element in enumerate(self.files):
            if number:
                yield b","
            yield from _layout_of(element, self._file_format)
        yield _TAIL

    def _encoded(self, reading: Reading | None) -> Iterator[bytes]:
        import pybase64  # not at the top: only uploads need it

        for part in self._layout():
            # The body is not valid JSON before its end, which is sent only after every file was
            # read to its expected size: the service cannot mistake a file that changed for a
            # complete one.
            if isinstance(part, File):
                yield from map(pybase64.b64encode, read_whole(part, reading))
            else:
                yield part


def upload_bodies(
    flow_id: object,
    run_id: object,
    elements: Iterable[Element],
    file_format: FileFormat = DEFAULT_FILE_FORMAT,
    *,
    files_per_request: int | None = None,
    max_request_bytes: int | None = None,
) -> list[UploadBody]:
    """
    Make the bodies of the requests that upload files, in order; no file is read.

    :param flow_id: the flow that the files belong to
    :param run_id: the run that they belong to: text, or a whole number
    :param elements: the files, and mappings
    :param file_format: the format of each :class:`File`
    :param files_per_request: the maximum number of elements in one request, at least 1; None for no
        limit
    :param max_request_bytes: the maximum size of a request's body in bytes, None for no limit
    :raises InvalidRequestError: if an identifier or an element cannot be sent, or an element alone
        exceeds ``max_request_bytes``, naming it
    """
    ids = {"flow_id": identifier("flow_id", flow_id), "run_id": identifier("run_id", run_id)}
    head = encode("upload", ids)[:-1] + b',"files":['
    limit = math.inf if max_request_bytes is None else max_request_bytes
    bodies: list[UploadBody] = []

    for number, element in enumerate(elements):
        name = f"files[{number}]"
        content = _content(name, element)
        length = _encoded_length(content, file_format)
        has_room = (
            bool(bodies)
            and len(bodies[-1].files) != files_per_request
            and len(bodies[-1]) + 1 + length <= limit
        )
        if not has_room:
            bodies.append(UploadBody(head, file_format))

        body = bodies[-1]
        body.add(content, length)
        if len(body) > limit:
            what = content.source if isinstance(content, File) else name
            raise InvalidRequestError(
                f"{what} alone makes a request of {len(body)} bytes, more than max_request_bytes "
                f"({max_request_bytes}): raise the limit, or leave the file out."
            )

    return bodies


def _content(name: str, element: Element) -> File | bytes:
    """
    Return a file, or the JSON of a mapping.

    :param name: what the element is called in errors
    :raises InvalidRequestError: if it is neither, or the mapping cannot be sent
    """
    if isinstance(element, File):
        return element
    if isinstance(element, Mapping):
        return encode(name, element)
    raise InvalidRequestError(f"{name} is {kind_of(element)}: pass a file or a mapping.")


def _encoded_length(content: File | bytes, file_format: FileFormat) -> int:
    """Return how many bytes of a body an element takes."""
    length = 0
    for part in _layout_of(content, file_format):
        if isinstance(part, File):
            length += (part.size + 2) // 3 * 4  # of base64
        else:
            length += len(part)

    return length


def _layout_of(content: File | bytes, file_format: FileFormat) -> Iterator[bytes | File]:
    """Yield an element in parts: JSON, and the file where its content in base64 belongs."""
    if isinstance(content, bytes):
        yield content
    elif isinstance(file_format, str):
        yield from _field(content, file_format)
    else:
        before = b"{"
        for field_name, word in file_format.items():
            yield before + encode("file_format", field_name) + b":"
            yield from _field(content, word)
            before = b","

        yield b"}"


def _field(file: File, word: str) -> Iterator[bytes | File]:
    """Yield a field of an element in parts, as :func:`_layout_of` does."""
    if word not in ("base64", "data_url"):
        yield encode(f"the {word} of {file.source}", _described(file, word))
        return

    start = f"data:{media_type_of(file)};base64," if word == "data_url" else ""
    yield json.dumps(start)[:-1].encode("ascii")
    yield file
    yield b'"'


def _described(file: File, word: str) -> str | int:
    """Return what a word of a file format stands for."""
    if word == "size":
        return file.size
    if word == "content_type":
        return media_type_of(file)
    if word == "path" and file.path is not None:
        return file.path
    return file.name


def media_type_of(file: File) -> str:
    """Return the media type that is sent."""
    if file.content_type is None:
        return media_type(file.name)
    return file.content_type


def read_whole(file: File, reading: Reading | None = None) -> Iterator[bytes]:
    """
    Read a file, and raise if it has changed since it was measured.

    :param reading: what reads the files of the request that have a ``read_ahead``
    :return: its bytes, exactly ``file.size``, in chunks whose length is a multiple of 3, except the
        last
    :raises FileUnavailableError: if it is shorter, longer or gone by now, or changed while it is
        read
    """
    left = file.size
    try:
        if reading is not None and file.read_ahead is not None:
            chunks = reading.chunks(file)
        else:
            chunks = _unchanged_chunks(file)

        for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                raise changed(file, f"is longer than its original {file.size} bytes")
            yield chunk

        if left:
            raise changed(file, f"is {left} bytes shorter than its original {file.size}")
    except WorkflowAutomationError:
        raise
    except Exception as error:  # object stores raise all kinds of exceptions
        raise changed(file, f"could not be read ({reason(error, file.location)})") from None


def _unchanged_chunks(file: File) -> Iterator[bytes]:
    """Read a file that is not read ahead, and raise an error if it changes meanwhile."""
    before = file.fingerprint()
    with file.open() as stream:
        while chunk := read_exactly(stream, _CHUNK):
            yield chunk

    if file.fingerprint() != before:
        raise changed(file, "changed")


def checked_fingerprint(file: File) -> object:
    """
    Return the fingerprint of a file.

    :raises FileUnavailableError: if it can no longer be read
    """
    try:
        return file.fingerprint()
    except Exception as error:  # of any kind, by store
        raise FileUnavailableError(
            f"{file.source} can no longer be read ({reason(error, file.location)}).",
            consequence="Its request was not sent.",
        ) from None


def reason(error: Exception, source: object) -> str:
    """
    Return in one line why a file cannot be read.

    :param source: the path or URL that an author gave, whose credentials the error may quote
    """
    given = str(source)
    message = getattr(error, "strerror", None)
    if message:
        return without_credentials_of(given, str(message))

    line = str(error).strip().partition("\n")[0]
    text = without_credentials_of(given, line[: 10 * _MAX_REASON])[:_MAX_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end: object stores may return less than requested."""
    chunk = stream.read(size)
    while chunk and len(chunk) < size:
        more = stream.read(size - len(chunk))
        if not more:
            break
        chunk += more

    return chunk


def changed(file: File, what: str) -> FileUnavailableError:
    """Return the error for a file that has changed while it was sent."""
    return FileUnavailableError(
        f"{file.source} {what} while it was being uploaded.",
        consequence="The request was aborted: its files were not accepted.",
    )
