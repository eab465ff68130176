"""
Connections that stay open from one request to the next, where many requests follow each other closely.

With TLS to a distant service, each new connection costs two round trips or more.

A server may close an idle connection just when a request is sent on it; then it is unknown whether the request
was acted on. These rules make that rare:

- A connection is used again only if it was idle for less than a second: servers hang up after several.
- One whose response announced ``Connection: close``, or was not read to its end, is not used again.
- One on which something arrived while it was idle, a close notification or unsolicited bytes, is not used again.
- One whose response did not name a new run is not used again.

A response that was sent twice could be taken for that of the next request. If it has the ``run_id`` of a run that is
known, the outcome is *unknown*. Nothing tells any other response from one that was sent twice, such as a rejection: so the
connection ends with it, before the response to the next request is taken for that of the one after.

They are enough, because nothing rests on them. A request on a used connection is never sent again either: if the
connection ends without a response after the request was handed over, its outcome is *unknown*, like that of any
other request. If it ends before, the server has not received the whole request.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpcore

from workflow_automation_provider.client.deadline import Connection, SendProgress, SendTransport

if TYPE_CHECKING:
    import httpx

# Seconds. The shortest time after which common servers and gateways hang up is 2 (gunicorn).
_MAX_IDLE = 1.0


class KeepAliveTransport(SendTransport):
    """A transport that can keep connections open between requests; otherwise each request has its own."""

    def __init__(self, tls: ssl.SSLContext, proxy: httpx.Proxy | None) -> None:
        super().__init__(tls, proxy)
        # Threads share it: append() and pop() of a list are atomic.
        self._idle: list[Connection] | None = None

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Keep connections open for the requests that are sent meanwhile, from any thread."""
        self._idle = []
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Close the idle connections, and keep none from now on."""
        idle, self._idle = self._idle, None
        for connection in idle or ():
            connection.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """
        Send a request and return the response, its body still unread.

        :raises httpcore.RemoteProtocolError: if the response had arrived before the request was sent: it
            belongs to another one
        """
        response = super().handle_request(request)
        if not request.extensions["progress"].has_read:
            response.close()
            raise httpcore.RemoteProtocolError("the response arrived before the request was sent")
        return response

    def _acquire(self) -> Connection:
        idle = self._idle
        if idle is None:
            return super()._acquire()
        try:
            return idle.pop()  # the one that was used last
        except IndexError:
            return Connection(lambda backend: self._pool(backend, 1, _MAX_IDLE))

    def _release(self, connection: Connection, progress: SendProgress) -> None:
        # httpcore has closed its connection if it must not be used again, and opens another in its place. It also does
        # so if something arrived while the connection was idle.
        idle = self._idle
        if idle is None or not progress.may_keep:
            super()._release(connection, progress)
        else:
            idle.append(connection)
