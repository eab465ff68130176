"""A relay that makes a service on this machine as far away as another data centre."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way: float
) -> None:
    """Write what is read, each piece after its time on the way."""
    loop = asyncio.get_running_loop()
    while piece := await reader.read(65536):
        loop.call_later(one_way, writer.write, piece)
    loop.call_later(one_way, writer.close)


def _relay(listener: socket.socket, port: int, round_trip: float) -> None:
    tasks = set()  # the loop itself does not keep them alive

    async def carry_both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        # The kernel has accepted the connection at once.
        await asyncio.sleep(round_trip)
        service_reader, service_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            _carry(reader, service_writer, round_trip / 2),
            _carry(service_reader, writer, round_trip / 2),
            return_exceptions=True,
        )
        tasks.discard(task)

    async def serve() -> None:
        server = await asyncio.start_server(carry_both, sock=listener, backlog=512)
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def far_away(url: str, round_trip: float) -> Iterator[str]:
    """
    Give the URL of a service that is far away.

    :param url: that of the service on this machine
    :param round_trip: in seconds
    """
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(
            target=_relay, args=(listener, parts.port, round_trip), daemon=True
        )
        process.start()
    yield f"{parts.scheme}://127.0.0.1:{port}"
    process.kill()
    process.join()
