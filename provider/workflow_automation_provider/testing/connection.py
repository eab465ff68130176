"""
One client connection, with the endings that ASGI has no word for.

uvicorn lets its protocol class be replaced; this one hands itself to the application, which can then close or
reset the connection instead of replying. That needs no second layer in front of the server, works the same
under TLS, and costs nothing per byte.
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

__all__ = ["Connection"]

_SCOPE_KEY = "workflow_automation.connection"


class Connection(H11Protocol):
    """A connection that the application can end in its own ways."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._on_unread: Callable[[], None] | None = None
        app = self.app

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope[_SCOPE_KEY] = self
            await app(scope, receive, send)

        self.app = with_connection

    @classmethod
    def of(cls, scope: Scope) -> Connection:
        """
        Return the connection a request came on.

        :param scope: the ASGI scope.
        """
        connection = scope[_SCOPE_KEY]
        assert isinstance(connection, cls)  # noqa: S101 - put there above
        return connection

    @property
    def closed(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self.transport.is_closing()

    def drop(self) -> None:
        """Close the connection as it stands; what was sent so far still goes out."""
        self.transport.close()

    def reset(self) -> None:
        """Reset the connection (RST); what was not sent yet is lost."""
        sock = self.transport.get_extra_info("socket")
        # Closing with a linger time of zero is how a socket is told to send RST instead of FIN.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def close_next_unread(self, on_unread: Callable[[], None]) -> None:
        """
        Close the connection when the next request comes in on it, without looking at it.

        :param on_unread: called when that happens.
        """
        self._on_unread = on_unread

    def data_received(self, data: bytes) -> None:
        """
        Take bytes from the client.

        :param data: the bytes.
        """
        if self._on_unread is None:
            super().data_received(data)
        elif not self.closed:
            self._on_unread()
            self.drop()
