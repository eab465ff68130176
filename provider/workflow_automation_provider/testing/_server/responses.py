"""Responses, and what else can happen to the connection of a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Receive, Send

    from workflow_automation_provider.testing._server.client_connection import ClientConnection

__all__ = ["Exchange", "Response", "json_response"]


@dataclass(frozen=True)
class Response:
    """
    An HTTP response.

    :param headers: all but ``Content-Length``; without a ``Content-Type``, that of JSON is added
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers in ASGI's form."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers.setdefault("content-type", "application/json")
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


def json_response(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    """Make a response with a JSON body."""
    return Response(status, json.dumps(value).encode("ascii"), headers or {})


@dataclass(frozen=True)
class Exchange:
    """
    A request that was received in full, and the connection to respond on.

    :param stopping: set when the service stops
    """

    receive: Receive
    send: Send
    connection: ClientConnection
    stopping: asyncio.Event

    async def respond(self, response: Response) -> None:
        """Send a complete response."""
        # HTTP allows these no body, whatever was scripted.
        bodiless = response.status in {204, 304}
        await self.start(response, length=None if bodiless else len(response.body))
        await self.send({"type": "http.response.body", "body": b"" if bodiless else response.body})

    async def start(self, response: Response, length: int | None) -> None:
        """
        Send the status and the headers of a response.

        :param length: the ``Content-Length`` in bytes, ``None`` to send in chunks
        """
        headers = response.raw_headers()
        if length is not None:
            headers.append((b"content-length", str(length).encode("ascii")))
        await self.send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def send_part(self, data: bytes) -> None:
        """Send a part of a body; more may follow."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def drop(self) -> None:
        """Close the connection without sending anything more."""
        self.connection.drop()
        await self.wait_closed()

    async def reset(self) -> None:
        """Reset the connection."""
        self.connection.reset()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        # uvicorn sends a 500 of its own if the application returns before the connection is closed.
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def hang(self, seconds: float) -> None:
        """
        Wait, then close the connection; end sooner if the client leaves or the service stops.

        :param seconds: the longest time to wait
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait_closed(), seconds)
        await self.drop()

    async def pause(self, seconds: float) -> bool:
        """
        Wait, even if the client leaves.

        :param seconds: the time to wait
        :return: whether the service is still running
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)
        return not self.stopping.is_set()
