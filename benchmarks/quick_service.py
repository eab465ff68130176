"""
A service that only responds, to measure clients and not itself: ``python quick_service.py --port 8080``.

It reads just enough HTTP/1.1 to find the end of a request, starts nothing, and answers each request with a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
from itertools import count

run_ids = count(1001)


class Connection(asyncio.Protocol):
    """
    One connection.

    :param latency: seconds before each response
    """

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Respond once a request is complete."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(fields.get(b"content-length", 0)):
            return
        self._received = b""
        close = b"connection: close" in head.lower()
        if self._latency:
            asyncio.get_running_loop().call_later(self._latency, self._respond, close)
        else:
            self._respond(close)

    def _respond(self, close: bool) -> None:
        run_id = str(next(run_ids))
        body = json.dumps({"run_id": run_id, "run_link": f"https://service.example/runs/{run_id}"}).encode()
        self._transport.write(
            b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        if close:
            self._transport.close()


async def serve(port: int, latency: float, certfile: str | None) -> None:
    """Serve for ever."""
    context = None
    if certfile:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certfile)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(latency), "127.0.0.1", port, ssl=context, backlog=512
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A service that only responds.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--certfile")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.latency, arguments.certfile))
