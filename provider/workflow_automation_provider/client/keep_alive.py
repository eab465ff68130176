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
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpcore
import httpx

from workflow_automation_provider.client.deadline import Connection, SendProgress

# Seconds. The shortest time after which common servers and gateways hang up is 2 (gunicorn).
_MAX_IDLE = 1.0


class KeepAliveTransport(httpx.BaseTransport):
    """
    Send each request on a connection of its own, unless connections are kept open between requests.

    Each is tracked by the :class:`SendProgress` in its ``progress`` extension. Raises httpcore's exceptions, not httpx's.

    :raises RuntimeError: if the proxy needs a package that is not installed
    """

    def __init__(self, tls: ssl.SSLContext, proxy: httpx.Proxy | None) -> None:
        self._tls = tls
        self._proxy = proxy
        # Threads share it: append() and pop() of a list are atomic.
        self._idle: list[Connection] | None = None
        self._pool(httpcore.SyncBackend(), 0).close()

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
        progress: SendProgress = request.extensions["progress"]
        if not isinstance(request.stream, httpx.SyncByteStream):
            raise TypeError("The request's body is asynchronous.")
        connection = self._acquire()
        try:
            response = connection.send(
                httpcore.Request(
                    request.method,
                    _core_url(request.url),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions={**request.extensions, "trace": progress.trace},
                ),
                progress,
            )
        except BaseException:
            connection.close()
            raise
        if not isinstance(response.stream, Iterable):
            raise TypeError("The response's body is asynchronous.")
        body = _ResponseBody(response.stream, lambda: self._release(connection, progress))
        if not progress.has_read:
            body.close()
            raise httpcore.RemoteProtocolError("the response arrived before the request was sent")
        return httpx.Response(
            response.status, headers=response.headers, stream=body, extensions=response.extensions
        )

    def _acquire(self) -> Connection:
        idle = self._idle
        if idle is None:
            return Connection(lambda backend: self._pool(backend, 0))
        try:
            return idle.pop()  # the one that was used last
        except IndexError:
            return Connection(lambda backend: self._pool(backend, 1))

    def _release(self, connection: Connection, progress: SendProgress) -> None:
        # httpcore has closed its connection if it must not be used again, and opens another in its place. It also does
        # so if something arrived while the connection was idle.
        idle = self._idle
        if idle is None or not progress.may_keep:
            connection.close()
        else:
            idle.append(connection)

    def _pool(self, backend: httpcore.NetworkBackend, keepalive: int) -> httpcore.ConnectionPool:
        options: dict[str, Any] = {
            "ssl_context": self._tls,
            "max_keepalive_connections": keepalive,
            "keepalive_expiry": _MAX_IDLE,
            "network_backend": backend,
        }
        proxy = self._proxy
        if proxy is None:
            return httpcore.ConnectionPool(**options)
        options |= {"proxy_url": _core_url(proxy.url), "proxy_auth": proxy.raw_auth}
        if proxy.url.scheme.startswith("socks"):
            return httpcore.SOCKSProxy(**options)
        return httpcore.HTTPProxy(
            **options, proxy_ssl_context=self._tls if proxy.url.scheme == "https" else None
        )


class _ResponseBody(httpx.SyncByteStream):
    def __init__(self, parts: Iterable[bytes], done: Callable[[], None]) -> None:
        self._parts = parts
        self._done = done

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts

    def close(self) -> None:
        try:
            if hasattr(self._parts, "close"):
                self._parts.close()
        finally:
            self._done()


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
