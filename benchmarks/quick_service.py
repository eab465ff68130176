"""
A service that only responds, to measure clients and not itself.

It reads just enough HTTP/1.1 to find the end of a request, keeps nothing of it, and responds to
each with a run.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

LAST_CHUNK = b"\r\n0\r\n\r\n"  # no chunk of base64 ends like it
run_ids = count(1001)


class Connection(asyncio.BufferedProtocol):
    """
    One connection.

    :param latency: seconds before each response
    """

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._buffer = memoryview(bytearray(1024 * 1024))
        self._begin()

    def _begin(self) -> None:
        self._head = self._end = b""
        self._left: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to write what comes."""
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        """Respond once a request is complete."""
        received: bytes | memoryview = self._buffer[:size]
        if self._left is None:
            self._head, found, received = (self._head + received).lower().partition(b"\r\n\r\n")
            if not found:
                return
            fields = dict(line.split(b": ", 1) for line in self._head.split(b"\r\n")[1:])
            self._left = (
                -1 if b"transfer-encoding" in fields else int(fields.get(b"content-length", 0))
            )
        if self._left < 0:
            self._end = (self._end + received[-len(LAST_CHUNK) :])[-len(LAST_CHUNK) :]
            is_complete = self._end == LAST_CHUNK
        else:
            self._left -= len(received)
            is_complete = not self._left
        if is_complete:
            asyncio.get_running_loop().call_later(self._latency, self._respond)
            self._begin()

    def _respond(self) -> None:
        run_id = str(next(run_ids))
        body = json.dumps(
            {"run_id": run_id, "run_link": f"https://service.example/runs/{run_id}"}
        ).encode()
        head = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: "
        self._transport.write(f"{head}{len(body)}\r\n\r\n".encode() + body)


def _serve(listener: socket.socket, latency: float, certificate: Path | None) -> None:
    async def serve() -> None:
        context = None
        if certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(latency), sock=listener, ssl=context, backlog=512
        )
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def quick_service(latency: float = 0.0, certificate: Path | None = None) -> Iterator[str]:
    """
    Run it in a process of its own, and give its URL.

    :param latency: seconds before each response
    :param certificate: for https
    """
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        arguments = (listener, latency, certificate)
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=arguments, daemon=True
        )
        process.start()
    yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    process.kill()
    process.join()
