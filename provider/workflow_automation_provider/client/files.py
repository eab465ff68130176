"""
The upload body (section 4.3) as a stream of JSON whose length is known before the first byte.

The interface does not show what an element of ``files`` looks like, so a *file format* says it. Files are
read in chunks: memory does not grow with their size or number.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal, get_args

from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.errors import (
    FileUnavailableError,
    InvalidRequestError,
    WorkflowAutomationError,
)
from workflow_automation_provider.client.protocol import identifier

FormatWord = Literal["name", "base64", "data_url", "text", "content_type", "size"]
"""What a field of an element may hold."""

FileFormat = Mapping[str, FormatWord] | FormatWord
"""Field name → word; or one word, for elements that are plain strings."""

DEFAULT_FILE_FORMAT: Mapping[str, FormatWord] = {
    "name": "name",
    "content_type": "content_type",
    "content": "base64",
}

# A multiple of 3, so that base64 of each chunk joins without padding.
_CHUNK = 3 * 64 * 1024


@dataclass(frozen=True, slots=True)
class File:
    """
    A file to upload, read when it is sent.

    :param name: the name the service is told
    :param size: its size in bytes
    :param content_type: its media type
    :param source: where it comes from, as errors name it
    :param open: opens it for reading bytes
    :param fingerprint: returns what changes when the file does (size, modification time, …)
    """

    name: str
    size: int
    content_type: str
    source: str
    open: Callable[[], IO[bytes]] = field(repr=False)
    fingerprint: Callable[[], object] = field(repr=False, default=lambda: None)


Element = File | Mapping[str, Any]
"""An element of ``files``: a file, or a JSON object that is sent as it stands."""


@dataclass(frozen=True)
class UploadBody:
    """
    The body of one upload request.

    :param content_length: its length in bytes
    :param pieces: makes its bytes, anew each time it is called
    """

    content_length: int
    pieces: Callable[[], Iterator[bytes]] = field(repr=False)

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces()


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
            f"file_format is no word that is known: use one of {known}, or an object of field name to one of them."
        )
    if not isinstance(value, Mapping) or not value:
        raise InvalidRequestError(
            f"file_format is a {type(value).__name__}: use an object of field name to one of {known}."
        )
    for name, word in value.items():
        if not isinstance(name, str) or not isinstance(word, str) or word not in words:
            raise InvalidRequestError(f"file_format[{name!r}] is no word that is known: use one of {known}.")
    return value


def upload_body(
    flow_id: object, run_id: object, files: Iterable[Element], file_format: FileFormat = DEFAULT_FILE_FORMAT
) -> UploadBody:
    """
    Make the body of an upload request.

    :param flow_id: the flow that the files belong to
    :param run_id: the run that they belong to, text or a whole number
    :param files: the elements of the ``files`` array
    :param file_format: how a :class:`File` is written
    :raises InvalidRequestError: if an argument cannot be sent, or a file that must be text is not UTF-8
    """
    parts: list[bytes | _Content] = [
        b'{"flow_id":%b,"run_id":%b,"files":['
        % (
            json_values.encode("flow_id", identifier("flow_id", flow_id)),
            json_values.encode("run_id", identifier("run_id", run_id)),
        )
    ]
    for number, element in enumerate(files):
        if number:
            parts.append(b",")
        if isinstance(element, File):
            parts += _file_parts(element, file_format)
        elif isinstance(element, Mapping):
            parts.append(json_values.encode(f"files[{number}]", element))
        else:
            raise InvalidRequestError(
                f"files[{number}] is a {type(element).__name__}: give a file or a mapping. Nothing was sent."
            )
    parts.append(b"]}")

    def pieces() -> Iterator[bytes]:
        for part in parts:
            if isinstance(part, bytes):
                yield part
            else:
                yield from part.pieces()

    return UploadBody(sum(len(p) if isinstance(p, bytes) else p.length for p in parts), pieces)


@dataclass(frozen=True)
class _Content:
    """A file's content within the body, encoded without a byte around it."""

    file: File
    length: int
    encode: Callable[[Iterable[bytes]], Iterator[bytes]]

    def pieces(self) -> Iterator[bytes]:
        # The body is not valid JSON before its end, and the end comes only after every file was read to
        # its known size: a file that changed can never be taken for a whole one.
        left = self.length
        try:
            for piece in self.encode(_read_whole(self.file)):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
        except InvalidRequestError:  # it was text when it was measured
            left = -1
        if left:
            raise _changed(self.file, "was written to")


def _file_parts(file: File, file_format: FileFormat) -> list[bytes | _Content]:
    if isinstance(file_format, str):
        return _value_parts(file, file_format)
    parts: list[bytes | _Content] = [b"{"]
    for number, (name, word) in enumerate(file_format.items()):
        parts.append((b"," if number else b"") + _json_text(name) + b":")
        parts += _value_parts(file, word)
    return [*parts, b"}"]


def _value_parts(file: File, word: FormatWord) -> list[bytes | _Content]:
    match word:
        case "name":
            return [_json_text(file.name)]
        case "content_type":
            return [_json_text(file.content_type)]
        case "size":
            return [str(file.size).encode()]
        case "base64":
            return [b'"', _base64_content(file), b'"']
        case "data_url":
            prefix = _json_text(f"data:{file.content_type};base64,")[1:-1]
            return [b'"' + prefix, _base64_content(file), b'"']
        case "text":
            # The length of escaped text is known only by reading it: once to measure, once to send.
            length = sum(map(len, _escaped_text(file, _read_whole(file))))
            return [b'"', _Content(file, length, lambda chunks: _escaped_text(file, chunks)), b'"']


def _json_text(text: str) -> bytes:
    # ASCII with escapes, so that even a name that is no valid Unicode (surrogate escapes of odd file
    # systems) is valid JSON and comes back as it was.
    return json.dumps(text).encode("ascii")


def _base64_content(file: File) -> _Content:
    return _Content(file, (file.size + 2) // 3 * 4, lambda chunks: map(base64.b64encode, chunks))


def _escaped_text(file: File, chunks: Iterable[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in chunks:
            yield _json_text(decoder.decode(chunk))[1:-1]
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InvalidRequestError(
            f"{file.source} is not UTF-8 text, which file_format asks for: use base64. Nothing was sent."
        ) from None


def _read_whole(file: File) -> Iterator[bytes]:
    """Read exactly ``file.size`` bytes in chunks of a multiple of 3, or raise FileUnavailableError."""
    left = file.size
    try:
        before = file.fingerprint()
        with file.open() as stream:
            while left:
                chunk = _read_exactly(stream, min(_CHUNK, left))
                if not chunk:
                    raise _changed(file, f"is {left} bytes shorter than the {file.size} it had")
                left -= len(chunk)
                if left == 0 and stream.read(1):
                    raise _changed(file, f"is longer than the {file.size} bytes it had")
                yield chunk
            if file.size == 0 and stream.read(1):
                raise _changed(file, "is no longer empty")
        if file.fingerprint() != before:
            raise _changed(file, "was written to")
    except WorkflowAutomationError:
        raise
    except Exception as error:  # an object store's errors are of any kind
        what = getattr(error, "strerror", None) or type(error).__name__
        raise _changed(file, f"cannot be read ({what})") from None


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end: object stores may return less than was asked for."""
    chunk = stream.read(size)
    while chunk and len(chunk) < size:
        more = stream.read(size - len(chunk))
        if not more:
            break
        chunk += more
    return chunk


def _changed(file: File, what: str) -> FileUnavailableError:
    return FileUnavailableError(
        f"{file.source} {what} while it was uploaded. The request was broken off before its end, "
        "so the service cannot have taken the files."
    )
