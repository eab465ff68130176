"""
A client's TCP connection that the application can close or reset, for which ASGI has no message.

uvicorn accepts a custom protocol class. This one passes itself to the application, which can then close or
reset the connection instead of responding. That needs no proxy in front of the server, works the same over
TLS, and costs nothing per byte.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import Scope
    from uvicorn import Config
    from uvicorn.server import ServerState

__all__ = ["ClientConnection"]

_SCOPE_KEY = "workflow_automation.connection"


class ClientConnection(H11Protocol):
    """A TCP connection that the application can close or reset."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # Whatever the loggers of this process are set to: a URL may have a token.
        self.access_log = False
        self._on_unread: Callable[[], None] | None = None
        app = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope[_SCOPE_KEY] = self
            await app(scope, receive, send)

        self.app = with_connection

    @classmethod
    def of(cls, scope: Scope) -> ClientConnection:
        """Return the connection that a request arrived on."""
        connection = scope[_SCOPE_KEY]
        assert isinstance(connection, cls)  # noqa: S101 - set in __init__
        return connection

    @property
    def closed(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self.transport.is_closing()

    def drop(self) -> None:
        """Close the connection; data already written is still sent."""
        self.transport.close()

    def reset(self) -> None:
        """Reset the connection (RST); data not yet sent is lost."""
        sock = self.transport.get_extra_info("socket")
        # Closing with a linger time of zero sends RST instead of FIN.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def close_next_unread(self, on_unread: Callable[[], None]) -> None:
        """
        Close the connection when the next request arrives on it, without reading that request.

        :param on_unread: called when that happens
        """
        self._on_unread = on_unread

    def data_received(self, data: bytes) -> None:
        """Receive bytes from the client."""
        if self._on_unread is None:
            super().data_received(data)
        elif not self.closed:
            self._on_unread()
            self.drop()
