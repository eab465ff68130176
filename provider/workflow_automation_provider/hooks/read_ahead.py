"""
Read objects ahead of their turn: while one is sent, the next ones are fetched, in order and in bounded memory.

An asynchronous file system of fsspec has an event loop in a thread of its own; the objects are fetched there. Any
other file system is read in the thread that sends, one file after the other: few of them can be shared by threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import io
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from workflow_automation_provider.client.deadline import StoppedError
from workflow_automation_provider.client.files import ChangedError, read_exactly
from workflow_automation_provider.hooks.stores import (
    MAX_CONCURRENCY,
    READ_TIMEOUT,
    Store,
    StoredFile,
    compare,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.files import File
    from workflow_automation_provider.hooks.stores import Response

_MAX_READ_AHEAD = 32 * 1024 * 1024
"""Bytes to fetch ahead: at 100 MiB/s and 20 ms for each request, 2 MiB are on the way; the rest evens out speeds."""

# A multiple of 3, so that base64 of each chunk joins without padding.
_CHUNK = 3 * 64 * 1024

# How much of one object is fetched ahead. Any smaller object is fetched whole.
_WINDOW = 8 * 1024 * 1024

# What an object takes however small it is, in bytes.
_TASK = 64 * 1024

# How often a response that broke off is taken up again without a MiB of progress, and the first wait.
_RESUMES = 5
_FIRST_WAIT = 0.1
_PROGRESS = 1024 * 1024

# How soon reading ends after the task was ended, in seconds, and how long tasks may take to be cancelled.
_POLL_INTERVAL = 0.1
_CANCELLING = 2.0


class ObjectReading:
    """
    The objects of a request, see :class:`~workflow_automation_provider.client.files.Reading`.

    :param files: in the order in which their content is needed
    :param stopped: returns whether to stop
    :param budget: bytes that may be held at once
    """

    def __init__(
        self, files: Iterable[File], stopped: Callable[[], bool], budget: int = _MAX_READ_AHEAD
    ) -> None:
        self._waiting = iter(files)
        self._stopped = stopped
        self._budget = budget
        self._reserved = 0
        self._next: StoredFile | None = None
        self._fetches: deque[_Fetch] = deque()
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    def chunks(self, file: File) -> Iterator[bytes]:
        """Return the content of the next file."""
        self._begin()
        fetch = self._fetches.popleft()
        if fetch.file is not file:
            raise AssertionError("Files are read in the order of the request")
        try:
            yield from fetch.chunks(self._stopped)
        finally:
            fetch.cancel()
            self._reserved -= fetch.reserved

    def close(self) -> None:
        """Cancel what is being fetched, and wait until it has ended."""
        self._waiting = iter(())
        self._fetches.clear()
        for loop in self._loops.values():
            loop.close()
        self._loops.clear()

    def _begin(self) -> None:
        """Begin to fetch as many of the next files as there is memory for, at least one."""
        while True:
            stored = (file for file in self._waiting if isinstance(file, StoredFile))
            file = self._next = self._next or next(stored, None)
            if file is None:
                return
            # What is small counts for what it takes as well: a task, and buffers.
            overhead = min(file.size, file.store.overhead) + _TASK
            window = min(file.size, _WINDOW, self._budget - overhead)
            reserved = window + overhead
            if self._fetches and self._reserved + reserved > self._budget:
                return
            fetch = _Fetch(file, window, reserved)
            self._fetches.append(fetch)
            self._reserved += reserved
            self._next = None
            event_loop = file.store.loop
            if event_loop is None:
                return  # read when its turn has come
            if event_loop not in self._loops:
                self._loops[event_loop] = _Loop(event_loop)
            self._loops[event_loop].start(fetch)


class _Loop:
    """An event loop that fetches objects."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at_once: dict[Store, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(self, fetch: _Fetch) -> None:
        self._loop.call_soon_threadsafe(self._start, fetch)

    def _start(self, fetch: _Fetch) -> None:
        if not self._is_closed:
            store = fetch.file.store
            # Never more than the store's client has connections: one that holds its connection until there is room
            # for more would keep an earlier one from being resumed, for ever.
            at_once = self._at_once.setdefault(
                store, asyncio.Semaphore(min(MAX_CONCURRENCY, store.connections))
            )
            fetch.task = task = self._loop.create_task(fetch.run(at_once))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._cancel(), self._loop)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            closing.result(_CANCELLING)

    async def _cancel(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class _Fetch:
    """One object that is being fetched: written by the event loop, read by the thread that sends."""

    def __init__(self, file: StoredFile, window: int, reserved: int) -> None:
        self.file = file
        self.reserved = reserved
        self.task: asyncio.Task[None] | None = None
        self._loop = file.store.loop
        # Chunks, then None or what went wrong.
        self._queue: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        self._window = window
        self._given = self._taken = 0
        self._room = asyncio.Event()
        self._is_full = False
        # Of the response that is being read.
        self._buffer = bytearray()
        self._position = 0
        self._has_response = self._may_resume = False

    # In the thread that sends

    def chunks(self, stopped: Callable[[], bool]) -> Iterator[bytes]:
        if self._loop is None:
            yield from _read_at_once(self.file, stopped)
            return
        while True:
            try:
                # In short waits: a signal handler may end the task meanwhile, and must not set an event.
                chunk = self._queue.get(timeout=_POLL_INTERVAL)
            except queue.Empty:
                if stopped():
                    raise StoppedError from None
                continue
            if chunk is None:
                return
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk
            self._taken += len(chunk)
            if self._is_full:
                self._is_full = False
                self._loop.call_soon_threadsafe(self._room.set)

    def cancel(self) -> None:
        if self._loop is not None and self.task is not None and not self.task.done():
            self._loop.call_soon_threadsafe(self.task.cancel)

    # In the event loop

    async def run(self, at_once: asyncio.Semaphore) -> None:
        try:
            async with at_once:
                await self._fetch()
            self._queue.put(None)
        except Exception as error:
            self._queue.put(error)
        except asyncio.CancelledError:
            # Not only by this module: a store's client may cancel what it does, and the other thread waits.
            self._queue.put(ConnectionError("the store's client cancelled it"))
            raise

    async def _fetch(self) -> None:
        file, store = self.file, self.file.store
        counted = failures = 0
        while True:
            self._has_response = False
            try:
                is_of_version = await self._receive()
                break
            except Exception as error:
                if self._position - counted >= _PROGRESS:
                    counted, failures = self._position, 0
                failures += 1
                has_asked_again = store.asks_again and not self._has_response
                if failures > _RESUMES or has_asked_again or not _may_pass(error):
                    raise
                if self._position and (self._position >= file.size or not self._may_resume):
                    # All of it is there, but was damaged on the way; or the rest may be that of another version.
                    if self._given:
                        raise
                    self._buffer.clear()
                    self._position = counted = 0
                await asyncio.sleep(_FIRST_WAIT * 2 ** (failures - 1))
        if not is_of_version:
            await self._look()
        last, self._buffer = bytes(self._buffer), bytearray()
        if last:
            await self._give(last)

    async def _receive(self) -> bool:
        """Read a response to its end, but for the last chunk; return whether it is of the version that was listed."""
        file, buffer = self.file, self._buffer
        response = await file.store.respond(file, self._position)
        self._has_response, self._may_resume = True, response.may_resume
        try:
            while content := await self._read(response):
                self._position += len(content)
                buffer += content
                if self._position > file.size:
                    raise ChangedError("it is longer than before")
                while len(buffer) > _CHUNK:
                    await self._give(bytes(memoryview(buffer)[:_CHUNK]))
                    del buffer[:_CHUNK]
            if self._position < file.size:
                raise EOFError(f"it ended after {self._position} of {file.size} bytes")
        finally:
            response.close()
        return response.is_of_version

    async def _look(self) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    await self.file.store.look(self.file)
                return
            except Exception as error:
                failures += 1
                if failures > _RESUMES or self.file.store.asks_again or not _may_pass(error):
                    raise
                await asyncio.sleep(_FIRST_WAIT * 2 ** (failures - 1))

    async def _read(self, response: Response) -> bytes:
        async with asyncio.timeout(READ_TIMEOUT):
            return await response.read(_CHUNK)

    async def _give(self, chunk: bytes) -> None:
        while not self._has_room(chunk):
            self._room.clear()
            self._is_full = True
            # The other thread may have taken a chunk before it could see that it is waited for.
            if self._has_room(chunk):
                break
            await self._room.wait()
        self._given += len(chunk)
        self._queue.put(chunk)

    def _has_room(self, chunk: bytes) -> bool:
        waiting = self._given - self._taken
        return not waiting or waiting + len(chunk) <= self._window


def _may_pass(error: Exception) -> bool:
    """Return whether to ask a store again after an error."""
    never = ChangedError | FileNotFoundError | PermissionError | NotImplementedError | io.UnsupportedOperation
    return not isinstance(error, never)


def _read_at_once(file: StoredFile, stopped: Callable[[], bool]) -> Iterator[bytes]:
    left = file.size
    with file.open() as stream:
        while left and (chunk := read_exactly(stream, min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk
            if stopped():
                raise StoppedError
        if not left and stream.read(1):
            raise ChangedError("it is longer than before")
    file.store.fs.invalidate_cache(file.key)
    compare(file, file.store.fs.info(file.key))
