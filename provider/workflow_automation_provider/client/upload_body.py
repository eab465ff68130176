"""
The body of an upload request: a stream of JSON whose length is known before the first byte is sent.

Files are read in chunks, and of each only its length is kept, so memory use does not grow with their size, and hardly
with their number. Follows section 4.3 of the interface.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pybase64

from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.client.files import (
    DEFAULT_FILE_FORMAT,
    Element,
    File,
    FileFormat,
    Reading,
    read_whole,
)
from workflow_automation_provider.client.protocol import UploadBody, identifier
from workflow_automation_provider.exceptions import InvalidRequestError

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
    _kept: bytes | FileFormat = field(repr=False)

    @property
    def parts(self) -> list[_Part]:
        """Its JSON text, with a placeholder for each content that is read while it is sent."""
        # The JSON of a file takes less time to write again than memory to keep.
        if isinstance(self._kept, bytes):
            return [self._kept]
        assert isinstance(self.element, File)  # noqa: S101
        return _file_parts(self.element, self._kept)


def measure(files: Iterable[Element], file_format: FileFormat = DEFAULT_FILE_FORMAT) -> list[Measured]:
    """
    Measure each element; no file is read.

    :param files: the elements of the ``files`` array
    :param file_format: the format of each :class:`File`
    :raises InvalidRequestError: if an element cannot be sent
    """
    return [_measured(f"files[{number}]", element, file_format) for number, element in enumerate(files)]


def _measured(name: str, element: Element, file_format: FileFormat) -> Measured:
    if isinstance(element, Mapping):
        encoded = json_values.encode(name, element)
        return Measured(element, len(encoded), encoded)
    if not isinstance(element, File):
        raise InvalidRequestError(f"{name} is {kind_of(element)}: pass a file or a mapping.")
    parts = _file_parts(element, file_format)
    length = sum(len(part) if isinstance(part, bytes) else part.length for part in parts)
    return Measured(element, length, file_format)


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
    """A file's content in base64 within the body, without quotes."""

    file: File
    length: int

    def pieces(self, reading: Reading | None, stopped: Callable[[], bool]) -> Iterator[bytes]:
        # The body is not valid JSON before its end, which is sent only after every file was read to its
        # expected size: the service cannot mistake a file that changed for a complete one.
        return map(pybase64.b64encode, read_whole(self.file, reading=reading, stopped=stopped))


_Part = bytes | _Content


def _file_parts(file: File, file_format: FileFormat) -> list[_Part]:
    if isinstance(file_format, str):
        return _value_parts(file, file_format)
    parts: list[_Part] = [b"{"]
    for field_name, word in file_format.items():
        parts += [_field(field_name), *_value_parts(file, word), b","]
    parts[-1] = b"}"
    return _joined(parts)


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


def _value_parts(file: File, word: str) -> list[_Part]:
    if word not in ("base64", "data_url"):
        return [json.dumps(getattr(file, word)).encode("ascii")]
    before = f"data:{file.content_type};base64," if word == "data_url" else ""
    return [json.dumps(before)[:-1].encode("ascii"), _Content(file, (file.size + 2) // 3 * 4), b'"']
