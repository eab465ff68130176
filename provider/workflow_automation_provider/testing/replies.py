"""Replies, and what can be done on the connection of a request besides replying."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Receive, Send

    from workflow_automation_provider.testing.connection import Connection

__all__ = ["Exchange", "Reply", "json_reply"]


@dataclass(frozen=True)
class Reply:
    """
    An HTTP reply.

    :param status: its status.
    :param body: its body.
    :param headers: its headers, besides ``Content-Length``; ``Content-Type`` is JSON unless named here.
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as ASGI wants them."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers.setdefault("content-type", "application/json")
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


def json_reply(status: int, value: Any, headers: dict[str, str] | None = None) -> Reply:
    """
    Make a reply of a JSON value.

    :param status: its status.
    :param value: the value.
    :param headers: more headers.
    """
    return Reply(status, json.dumps(value).encode("ascii"), headers or {})


@dataclass(frozen=True)
class Exchange:
    """
    A request's connection, once the request has been received.

    :param receive: the ASGI callable.
    :param send: the ASGI callable.
    :param connection: the connection it came on.
    :param stopping: set when the service stops.
    """

    receive: Receive
    send: Send
    connection: Connection
    stopping: asyncio.Event

    async def reply(self, reply: Reply) -> None:
        """
        Send a whole reply.

        :param reply: the reply.
        """
        # These two never have a body, whatever was scripted.
        bodiless = reply.status in {204, 304}
        await self.start(reply, length=None if bodiless else len(reply.body))
        await self.send({"type": "http.response.body", "body": b"" if bodiless else reply.body})

    async def start(self, reply: Reply, length: int | None) -> None:
        """
        Send the status and the headers of a reply.

        :param reply: the reply.
        :param length: the length to announce, ``None`` to send in chunks.
        """
        headers = reply.raw_headers()
        if length is not None:
            headers.append((b"content-length", str(length).encode("ascii")))
        await self.send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def send_part(self, data: bytes) -> None:
        """
        Send a part of a body; more may follow.

        :param data: the part.
        """
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def drop(self) -> None:
        """Close the connection as it stands."""
        self.connection.drop()
        await self.wait_closed()

    async def reset(self) -> None:
        """Reset the connection."""
        self.connection.reset()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        # uvicorn answers 500 by itself if the application returns before the connection is gone.
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def hang(self, seconds: float) -> None:
        """
        Do nothing for a while, then close; end sooner if the client leaves or the service stops.

        :param seconds: how long.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait_closed(), seconds)
        await self.drop()

    async def pause(self, seconds: float) -> bool:
        """
        Wait, even if the client leaves; return whether the service is still running afterwards.

        :param seconds: how long.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)
        return not self.stopping.is_set()
