"""
Responses, including those of faults, and what else can happen to the connection of a request.

ASGI has no message to close or reset a client's TCP connection. But uvicorn accepts a custom
protocol class, and this one passes itself to the application. That needs no proxy in front of the
server, works the same over TLS, and costs nothing per byte.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from workflow_automation_provider.testing._server.calls import Call
    from workflow_automation_provider.testing.faults import Fault

_SCOPE_KEY = "workflow_automation.connection"
_ENDLESS_PART = b" " * 65_536


class ClientConnection(H11Protocol):
    """
    A TCP connection that the application can close or reset.

    :ivar on_unread: what to call when the next request arrives, to close the connection without
        reading that request
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Off, however the loggers of this process are configured: a URL may have a token.
        self.access_log = False
        self.on_unread: Callable[[], None] | None = None
        app = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope[_SCOPE_KEY] = self
            await app(scope, receive, send)

        self.app = with_connection

    def data_received(self, data: bytes) -> None:
        """Receive bytes from the client."""
        if self.on_unread is None:
            super().data_received(data)
        elif not self.transport.is_closing():
            self.on_unread()
            self.transport.close()


def encode_body(body: Any) -> bytes:
    """Return a string as it is, any other value as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    # Lone surrogates are valid in JSON escapes, not in UTF-8.
    return text.encode("utf-8", errors="surrogatepass")


def _response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    # HTTP allows these statuses no body, whatever was scripted.
    content = b"" if status in {204, 304} else body
    return Response(content, status, headers, media_type="application/json")


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Make a response with a JSON body."""
    return _response(status, json.dumps(value).encode("ascii"), headers)


@dataclass(frozen=True)
class Exchange:
    """
    A request that was received in full, and the connection to respond on.

    :param stopping: set when the service stops
    """

    scope: Scope
    receive: Receive
    send: Send
    stopping: asyncio.Event

    @property
    def connection(self) -> ClientConnection:
        """The connection that the request arrived on."""
        connection: ClientConnection = self.scope[_SCOPE_KEY]
        return connection

    async def respond(self, response: Response) -> None:
        """Send a complete response."""
        await response(self.scope, self.receive, self.send)

    async def start(self, response: Response) -> None:
        """Send the status and the headers of a response."""
        headers = response.raw_headers
        await self.send(
            {"type": "http.response.start", "status": response.status_code, "headers": headers}
        )

    async def send_part(self, data: bytes) -> None:
        """Send a part of a body; more may follow."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def drop(self) -> None:
        """Close the connection; data already written is still sent."""
        self.connection.transport.close()
        await self.wait_closed()

    async def reset(self) -> None:
        """Reset the connection (RST); data not yet sent is lost."""
        sock = self.connection.transport.get_extra_info("socket")
        # Closing with a linger time of zero sends RST instead of FIN.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.transport.abort()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        # uvicorn sends a 500 of its own if the application returns before the connection is closed.
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def hang(self, seconds: float) -> None:
        """Wait, then close the connection; end sooner if the client leaves or the service stops."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait_closed(), seconds)
        await self.drop()

    async def pause(self, seconds: float) -> bool:
        """Wait, even if the client leaves; return whether the service is still running."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)
        return not self.stopping.is_set()


def faulty_response(fault: Fault, call: Call, usual: Response) -> Response:
    """
    Return the complete, well-formed response of a fault.

    :func:`send_faulty` may then send it incompletely.
    """
    status = usual.status_code if fault.status is None else fault.status
    match fault.kind:
        case "delay" | "stale" | "twice" | "drip" | "truncate":
            return usual
        case "empty" | "endless":
            return _response(status, b"")
        case "echo_key":
            return _echo(status, call.key_value or b"", bytes(usual.body))

    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["retry-after"] = str(fault.retry_after)
    if fault.location is not None:
        headers["location"] = fault.location

    if fault.body is not None:
        body = encode_body(fault.body)
    elif fault.kind == "response":
        body = bytes(usual.body)
    else:
        body = encode_body({"error": f"the fault {fault.kind}"})

    return _response(status, body, headers)


async def send_faulty(fault: Fault, response: Response, exchange: Exchange) -> None:
    """Send the response of :func:`faulty_response`, or fail to, as the fault specifies."""
    match fault.kind:
        case "drop_before" | "drop_after":
            await exchange.drop()
        case "reset_before" | "reset_after":
            await exchange.reset()
        case "hang_before" | "hang_after":
            await exchange.hang(fault.seconds or 0)
        case "drip":
            await _drip(fault.seconds or 0, response, exchange)
        case "truncate":
            await exchange.start(response)
            await exchange.send_part(bytes(response.body[: len(response.body) // 2]))
            await exchange.drop()
        case "endless":
            await _endless(fault.limit or 0, response, exchange)
        case _:
            await exchange.respond(response)


async def _drip(seconds: float, response: Response, exchange: Exchange) -> None:
    await exchange.start(response)
    for byte in bytes(response.body):
        if not await exchange.pause(seconds / len(response.body)):
            break
        await exchange.send_part(bytes([byte]))
    await exchange.send({"type": "http.response.body", "body": b""})


async def _endless(limit: int, response: Response, exchange: Exchange) -> None:
    del response.headers["content-length"]
    await exchange.start(response)
    sent = 0
    while not exchange.connection.transport.is_closing() and sent < limit:
        await exchange.send_part(_ENDLESS_PART)
        sent += len(_ENDLESS_PART)
        # Lets other requests run: sending alone may never yield.
        await exchange.pause(0)

    await exchange.drop()


def _echo(status: int, key_value: bytes, usual: bytes) -> Response:
    raw = key_value.decode("latin-1")
    forms = [raw, quote_from_bytes(key_value, safe=""), base64.b64encode(key_value).decode("ascii")]
    text = " ".join(forms)
    body: Any = {"echo": forms}
    if status < 300:
        # An accepted run keeps its ID in the response, so that a client logs or returns that
        # response.
        accepted = json.loads(usual)
        body = accepted | body if isinstance(accepted, dict) else f"{accepted} {text}"

    return _response(status, json.dumps(body, ensure_ascii=False).encode(), {"x-echo": text})
