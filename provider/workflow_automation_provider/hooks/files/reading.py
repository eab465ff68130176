"""
Read files of stores in pieces: the objects of a request ahead, while those before are sent.

Cloud stores take many requests at once, so their objects are fetched in blocks. Only a large object
of S3 is read as one stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, cast

from workflow_automation_provider.client.files import File, read_exactly
from workflow_automation_provider.hooks.files.objects import AT_ONCE, StoredFile

# Bytes that are read and requested at once: multiples of 3, so that base64 of each piece joins
# without padding.
_PIECE = 1023 * 1024
_BLOCK = 4 * _PIECE

# The most bytes in the blocks that are on their way or wait to be sent.
_AHEAD = 3 * _BLOCK


class ObjectReading:
    """The objects of a request, see :class:`~workflow_automation_provider.client.files.Reading`."""

    def __init__(self, files: Iterable[File]) -> None:
        self._files = [file for file in files if isinstance(file, StoredFile)]
        self._unread = len(self._files)
        self._waiting = ((file, start) for file in self._files for start in _blocks(file))
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()

    def chunks(self, file: File) -> Iterator[bytes]:
        """
        Yield the content of the next file; after the last one, check that none has changed.

        :raises FileUnavailableError: if one has changed since it was found
        """
        yield from self._content(cast("StoredFile", file))
        self._unread -= 1
        if self._unread:
            return
        for store in {one.store for one in self._files}:
            store.check([one for one in self._files if one.store is store])

    def close(self) -> None:
        """Cancel what is being fetched."""
        for _, block in self._ahead:
            block.cancel()

    def _content(self, file: StoredFile) -> Iterator[bytes]:
        if not file.store.is_cloud:
            yield from pieces(file.open)
            return

        self._fetch()
        if _is_streamed(file):
            yield from _streamed(file)
            return

        for _ in _blocks(file):
            _, block = self._ahead[0]
            content = block.result()
            self._ahead.popleft()
            self._fetch()
            for start in range(0, len(content), _PIECE):
                yield content[start : start + _PIECE]

    def _fetch(self) -> None:
        """Begin to fetch the next blocks, as many as there is room for."""
        while self._has_room():
            file, start = next(self._waiting, (None, 0))
            if file is None:
                return
            fs = file.store.fs
            end = min(start + _BLOCK, file.size)
            # Always with both ends: without them, s3fs would request the size first.
            content = fs._cat_file(file.key, start=start, end=end)
            block = asyncio.run_coroutine_threadsafe(content, fs.loop)
            self._ahead.append((end - start, block))

    def _has_room(self) -> bool:
        size = sum(size for size, _ in self._ahead)
        return len(self._ahead) < AT_ONCE and size + _BLOCK <= _AHEAD


def pieces(open_file: Callable[[], Any]) -> Iterator[bytes]:
    """
    Yield the content of a file of any store.

    :param open_file: opens the file for reading in binary mode
    """
    with open_file() as stream:
        while piece := read_exactly(stream, _PIECE):
            yield piece


def _is_streamed(file: StoredFile) -> bool:
    return file.store.is_s3 and file.size > _BLOCK


def _blocks(file: StoredFile) -> range:
    """Return where the blocks of an object begin; none if it is not fetched in blocks."""
    is_in_blocks = file.store.is_cloud and not _is_streamed(file)
    return range(0, file.size if is_in_blocks else 0, _BLOCK)


def _streamed(file: StoredFile) -> Iterator[bytes]:
    """Yield an object of S3, read by one request, one piece ahead."""
    fs = file.store.fs
    stream = asyncio.run_coroutine_threadsafe(fs.open_async(file.key, "rb"), fs.loop).result()
    ahead = asyncio.run_coroutine_threadsafe(_piece(stream), fs.loop)
    try:
        while piece := ahead.result():
            ahead = asyncio.run_coroutine_threadsafe(_piece(stream), fs.loop)
            yield piece
    finally:
        ahead.cancel()
        if stream.r is not None:  # or its connection would be kept
            fs.loop.call_soon_threadsafe(stream.r.close)


async def _piece(stream: Any) -> bytes:
    piece = bytearray()
    while len(piece) < _PIECE:
        more = await stream.read(_PIECE - len(piece))
        if not more:
            break
        piece += more
    return bytes(piece)
