"""
The body of an upload request: a stream of JSON whose length is known before the first byte is sent.

Files are read in chunks, and of each only what cannot be encoded again is kept, so memory use does not grow with
their size, and hardly with their number. Follows section 4.3 of the interface.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pybase64

from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.client.files import (
    DEFAULT_FILE_FORMAT,
    ChangedError,
    Content,
    Element,
    File,
    FileFormat,
    Reading,
    changed,
    is_wrong_path,
    read_whole,
    version_of,
)
from workflow_automation_provider.client.protocol import UploadBody, identifier
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError

# Every piece that is sent costs at least one system call, so smaller ones are joined.
_SMALL_PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """
    An element of ``files`` and the JSON that it becomes.

    :param length: size of the JSON in bytes
    """

    element: Element
    length: int
    _kept: list[_Part] | FileFormat = field(repr=False)

    @property
    def parts(self) -> list[_Part]:
        """Its JSON text, with a placeholder for each content that is read while it is sent."""
        kept = self._kept
        return kept if isinstance(kept, list) else _element_parts("files", self.element, kept)


def measure(
    files: Iterable[Element],
    file_format: FileFormat = DEFAULT_FILE_FORMAT,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Measured]:
    """
    Encode each element, once: to measure a text file, all of it must be read, and the next ones meanwhile.

    :param files: the elements of the ``files`` array
    :param file_format: the format of each :class:`File`
    :param stopped: returns whether to stop
    :raises InvalidRequestError: if an element cannot be sent, or a file to send as text is not UTF-8
    """
    elements = list(files)
    measured = []
    # What a callable asks for is not known before it is called.
    texts = 0 if callable(file_format) else _texts(file_format)
    # With these, the JSON of a file takes less time to write again than memory to keep.
    again: FileFormat | None = None if callable(file_format) or texts else file_format
    with _reading(lambda: (file for file in _read_ahead(elements) for _ in range(texts)), stopped) as reading:
        for number, element in enumerate(elements):
            parts = _element_parts(f"files[{number}]", element, file_format, stopped, reading)
            keep = parts if again is None or not isinstance(element, File) else again
            measured.append(Measured(element, _length(parts), keep))
    return measured


def _texts(file_format: Mapping[str, str] | str) -> int:
    """Return how often the format has a file's content as text."""
    words = [file_format] if isinstance(file_format, str) else [*file_format.values()]
    return words.count("text")


def split(
    flow_id: object,
    run_id: object,
    files: Sequence[Measured],
    *,
    files_per_request: int | None = None,
    max_request_bytes: int | None = None,
) -> list[list[Measured]]:
    """
    Split files into requests, in order.

    :param files_per_request: the maximum number of elements in one request, at least 1; None for no limit
    :param max_request_bytes: the maximum size of a request's body in bytes, None for no limit
    :return: the elements of each request
    :raises InvalidRequestError: if a single element exceeds ``max_request_bytes``, naming it
    """
    empty = len(_head(flow_id, run_id)) + len(_TAIL)
    requests: list[list[Measured]] = []
    size = 0
    for number, file in enumerate(files):
        if max_request_bytes is not None and empty + file.length > max_request_bytes:
            what = file.element.source if isinstance(file.element, File) else f"files[{number}]"
            raise InvalidRequestError(
                f"{what} alone makes a request of {empty + file.length} bytes, more than max_request_bytes "
                f"({max_request_bytes}): raise the limit, or leave the file out."
            )
        full = requests and len(requests[-1]) == files_per_request
        too_large = max_request_bytes is not None and size + 1 + file.length > max_request_bytes
        if not requests or full or too_large:
            requests.append([])
            size = empty - 1  # the first element has no comma before it
        requests[-1].append(file)
        size += 1 + file.length
    return requests


def upload_body(flow_id: object, run_id: object, files: Sequence[Measured]) -> UploadBody:
    """
    Make the body of an upload request.

    :param flow_id: the flow that the files belong to
    :param run_id: the run that they belong to: text, or a whole number
    :raises InvalidRequestError: if an identifier cannot be sent
    """
    head = _head(flow_id, run_id)
    length = len(head) + len(_TAIL) + sum(file.length for file in files) + max(0, len(files) - 1)

    def pieces(stopped: Callable[[], bool], begun: Callable[[Element], None]) -> Generator[bytes]:
        with _reading(lambda: _contents(files), stopped) as reading:
            yield head
            for number, file in enumerate(files):
                begun(file.element)
                if number:
                    yield b","
                for part in file.parts:
                    if isinstance(part, bytes):
                        yield part
                    else:
                        yield from part.pieces(reading, stopped)
            yield _TAIL

    return UploadBody(length, lambda stopped, begun: _gathered(pieces(stopped, begun)))


def _contents(files: Iterable[Measured]) -> Iterator[File]:
    """Return the files that can be read ahead, in the order in which they are read, as often as they are."""
    for file in files:
        for _ in _read_ahead([file.element]):
            for part in file.parts:
                if isinstance(part, _Content):
                    yield part.file


def _read_ahead(elements: Iterable[Element]) -> Iterator[File]:
    return (file for file in elements if isinstance(file, File) and file.read_ahead is not None)


def _reading(
    files: Callable[[], Iterator[File]], stopped: Callable[[], bool]
) -> contextlib.AbstractContextManager[Reading | None]:
    """
    Begin to read files ahead.

    :param files: returns them in the order in which they are read, as often as they are
    :return: None if there are none
    """
    ahead = next((file.read_ahead for file in files()), None)
    return contextlib.closing(ahead(files(), stopped)) if ahead else contextlib.nullcontext()


def _gathered(pieces: Generator[bytes]) -> Generator[bytes, None, None]:
    waiting: list[bytes] = []
    size = 0
    with contextlib.closing(pieces):
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= _SMALL_PIECE:
                yield b"".join(waiting)
                waiting.clear()
                size = 0
    if waiting:
        yield b"".join(waiting)


_TAIL = b"]}"


def _head(flow_id: object, run_id: object) -> bytes:
    return b'{"flow_id":%b,"run_id":%b,"files":[' % (
        json_values.encode("flow_id", identifier("flow_id", flow_id)),
        json_values.encode("run_id", identifier("run_id", run_id)),
    )


@dataclass(frozen=True)
class _Content:
    """A file's encoded content within the body, without quotes."""

    file: File
    length: int
    encode: Callable[[Iterable[bytes]], Iterator[bytes]]
    expected: object = None
    """The version of the file that the rest of the element was made for, None where it may have changed since."""

    def pieces(self, reading: Reading | None, stopped: Callable[[], bool]) -> Iterator[bytes]:
        # The body is not valid JSON before its end, which is sent only after every file was read to its
        # expected size: the service cannot mistake a file that changed for a complete one.
        left = self.length
        try:
            chunks = read_whole(self.file, expected=self.expected, reading=reading, stopped=stopped)
            for piece in self.encode(chunks):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
        except InvalidRequestError:  # not UTF-8, although it was when it was measured
            left = -1
        if left:
            raise changed(self.file, "changed")


_Part = bytes | _Content


def _length(parts: Iterable[_Part]) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.length for part in parts)


def _element_parts(
    name: str,
    element: Element,
    file_format: FileFormat,
    stopped: Callable[[], bool] = lambda: False,
    reading: Reading | None = None,
) -> list[_Part]:
    if isinstance(element, Mapping):
        return [json_values.encode(name, element)]
    if not isinstance(element, File):
        raise InvalidRequestError(f"{name} is {kind_of(element)}: pass a file or a mapping.")
    parts: list[_Part]
    if callable(file_format):
        # What it returns may tell of the content, such as a checksum: it must be sent with the same.
        before = version_of(element)
        parts = _json_parts(name, _called(file_format, element), stopped)
        return [replace(part, expected=before) if isinstance(part, _Content) else part for part in parts]
    if isinstance(file_format, str):
        return _value_parts(element, file_format, stopped, reading)
    parts = [b"{"]
    for field_name, word in file_format.items():
        parts += [_field(field_name), *_value_parts(element, word, stopped, reading), b","]
    parts[-1] = b"}"
    return _joined(parts)


def _called(file_format: Callable[[File], Any], file: File) -> Any:
    try:
        value = file_format(file)
    except ChangedError as error:
        raise changed(file, f"changed ({error})", sending=False) from None
    except Exception as error:
        # A store that cannot be reached, or a file that is missing, may be there later.
        may_pass = isinstance(error, OSError) and not is_wrong_path(error)
        kind = FileUnavailableError if may_pass else InvalidRequestError
        raise kind(f"file_format raised {type(error).__name__} for {file.source}: {error}.") from error
    if value is None:
        raise InvalidRequestError(f"file_format returned None for {file.source}: return the element to send.")
    return value


@functools.lru_cache
def _field(name: str) -> bytes:
    return json_values.encode("file_format", name) + b":"


def _joined(parts: list[_Part]) -> list[_Part]:
    joined: list[_Part] = []
    for part in parts:
        if joined and isinstance(part, bytes) and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _value_parts(file: File, word: str, stopped: Callable[[], bool], reading: Reading | None) -> list[_Part]:
    value = getattr(file, word)
    if isinstance(value, Content):
        return [b'"', *_content_parts(value, stopped, reading), b'"']
    return [json.dumps(value).encode("ascii")]


def _json_parts(name: str, value: Any, stopped: Callable[[], bool]) -> list[_Part]:
    """Encode a value that has file contents in it."""
    # What json_values cannot encode is replaced by a random placeholder, and the JSON is split there.
    placeholder = secrets.token_hex(16)
    contents: list[Content] = []

    def without_content(value: Any) -> Any:
        match value:
            case Content():
                contents.append(value)
                return placeholder
            case Mapping():
                return {key: without_content(item) for key, item in value.items()}
            case list() | tuple():
                return [without_content(item) for item in value]
        return value

    try:
        value = without_content(value)
    except RecursionError:
        raise InvalidRequestError(
            f"{name}: file_format returned a value that contains itself, or is nested too deeply: "
            "return a flat object."
        ) from None
    around = json_values.encode(name, value).split(placeholder.encode())
    parts: list[_Part] = [around[0]]
    for content, after in zip(contents, around[1:], strict=True):
        parts += [*_content_parts(content, stopped), after]
    return parts


def _content_parts(
    content: Content, stopped: Callable[[], bool], reading: Reading | None = None
) -> list[_Part]:
    file = content.file
    match content.encoding:
        case "base64":
            return [_base64_content(file)]
        case "data_url":
            return [_json_text(f"data:{file.content_type};base64,"), _base64_content(file)]
        case "text":
            # The length of escaped text is known only after reading it: once to measure, once to send.
            chunks = read_whole(file, sending=False, reading=reading, stopped=stopped)
            length = sum(map(len, _escaped_text(file, chunks)))
            return [_Content(file, length, lambda chunks: _escaped_text(file, chunks))]


def _json_text(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode("ascii")


def _base64_content(file: File) -> _Content:
    return _Content(file, (file.size + 2) // 3 * 4, lambda chunks: map(pybase64.b64encode, chunks))


def _escaped_text(file: File, chunks: Iterable[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in chunks:
            yield _json_text(decoder.decode(chunk))
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise InvalidRequestError(
            f"{file.source} is not UTF-8 text, as file_format requires: use base64."
        ) from None
