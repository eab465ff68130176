"""
A proxy in front of an object store.

Delays each request, counts them, and breaks what a test tells it to.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PIECE = 256 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Seen:
    """A request to the store."""

    method: str
    target: str


@dataclass
class Fault:
    """
    What to do with a request instead of passing it on as it is.

    :param status: respond with this status and ``body``, without asking the store
    :param break_after: close the connection after so many bytes of the body of the response
    :param hang_after: send no more after so many bytes
    :param damage: changes a piece of the body of the response
    :param before: called before the request is passed on
    :param times: how many requests it meets, None for all
    """

    matches: Callable[[Seen], bool] = lambda _: True
    status: int | None = None
    body: bytes = b""
    break_after: int | None = None
    hang_after: int | None = None
    damage: Callable[[bytes], bytes] | None = None
    before: Callable[[], object] | None = None
    times: int | None = 1


class StoreProxy:
    """
    Passes requests on to a store.

    :param upstream: port of the store
    :param delay: seconds before each request is passed on
    """

    def __init__(self, upstream: int, *, delay: float = 0.0) -> None:
        self.upstream = upstream
        self.delay = delay
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.open = 0
        """Requests in progress."""
        self.most_open = 0
        self.port = 0

    def counts(self) -> Counter[str]:
        """Count the requests by method."""
        return Counter(seen.method for seen in self.seen)

    @contextlib.contextmanager
    def running(self) -> Iterator[StoreProxy]:
        """Run in a thread."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self.start(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(server), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def start(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=4 * PIECE)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _stop(self, server: asyncio.Server) -> None:
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        store: Streams | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if store is None or store[0].at_eof() or store[1].is_closing():
                    store = await asyncio.open_connection(
                        "127.0.0.1", self.upstream, limit=4 * PIECE
                    )
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                try:
                    if not await self._pass_on(head, reader, writer, store):
                        return
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, *(store or ())[1:]):
                one.close()

    async def _pass_on(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        store: Streams,
    ) -> bool:
        line, headers = _parse(head)
        method, target, _ = line.split(" ")
        seen = Seen(method, target)
        self.seen.append(seen)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.delay:
            await asyncio.sleep(self.delay)
        fault = self._fault(seen)
        if fault.before:
            await asyncio.to_thread(fault.before)
        if fault.status is not None:
            writer.write(
                f"HTTP/1.1 {fault.status} x\r\nContent-Type: application/xml\r\n"
                f"Content-Length: {len(fault.body)}\r\n\r\n".encode()
            )
            writer.write(b"" if method == "HEAD" else fault.body)
            await writer.drain()
            return True
        store_reader, store_writer = store
        store_writer.write(_head(line, headers) + body)
        status, answered = _parse(await store_reader.readuntil(b"\r\n\r\n"))
        # As object stores do, and some stand-ins do not, the proxy keeps its connections and tells
        # the length.
        closes = answered.pop("connection", "") == "close"
        if answered.pop("transfer-encoding", "") == "chunked":
            content = await _chunks(store_reader)
            answered["content-length"] = str(len(content))
            store_reader = asyncio.StreamReader()
            store_reader.feed_data(content)
        writer.write(_head(f"HTTP/1.1 {status.partition(' ')[2]}", answered))
        has_body = method != "HEAD" and status.split(" ")[1] not in ("204", "304")
        left = int(answered["content-length"]) if has_body else 0
        goes_on = await self._pass_body(left, fault, store_reader, writer)
        if closes:
            store_writer.close()
        return goes_on

    async def _pass_body(
        self, left: int, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        limit = fault.break_after if fault.break_after is not None else fault.hang_after
        while left:
            piece = await reader.read(
                min(PIECE, left if limit is None else min(left, max(limit, 1)))
            )
            if not piece:
                raise ConnectionError("The store closed the connection")
            left -= len(piece)
            if limit is not None:
                if limit <= 0:
                    if fault.hang_after is not None:
                        await asyncio.sleep(3600)
                    return False
                limit -= len(piece)
            writer.write(fault.damage(piece) if fault.damage else piece)
            await writer.drain()
        await writer.drain()
        return True

    def _fault(self, seen: Seen) -> Fault:
        for fault in self.faults:
            if fault.times != 0 and fault.matches(seen):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return Fault()


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    content = b""
    while size := int(await reader.readline(), 16):
        content += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return content


def _head(line: str, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{line}\r\n{lines}\r\n".encode()


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    line, *rest = head.decode("latin-1").strip().split("\r\n")
    pairs = (one.partition(":") for one in rest)
    return line, {name.lower(): value.strip() for name, _, value in pairs}
