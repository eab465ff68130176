"""
Send each request once, within its deadlines, and know whether its last byte was handed over.

httpx limits the time of each *read*, so a response that trickles in never times out, and it does not tell how much was sent.
httpcore's network backend sees every read and write, so both are done there.

Each request has its own connection, unless connections are kept for many requests that follow each other closely: with
TLS to a distant service, each new connection costs two round trips or more. A server may close an idle connection just when a
request is sent on it; then its outcome is *unknown*, like that of any other request without a response, and it is not sent
again. To make that rare, a connection is used again only if

- it was idle for less than a second: servers hang up after several;
- nothing arrived while it was idle, neither a close notification nor unsolicited bytes;
- its response was read to its end, and announced no ``Connection: close``;
- its response named a new run. One that was sent twice could be taken for that of the next request: with the ``run_id`` of
  a run that is known, the outcome is *unknown*, but nothing tells whether another response, such as a rejection, was repeated.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.client.settings import Settings

# A stop takes effect between two pieces. Smaller ones cost system calls, larger ones delay the stop.
_PIECE = 256 * 1024

# Seconds to wait for a response after the request was aborted: only one that has already arrived counts.
_EARLY_RESPONSE = 1.0

# Seconds. The shortest time after which common servers and gateways hang up is 2 (gunicorn).
_MAX_IDLE = 1.0

# How our requests begin. What is sent before, on a new connection, sets up a proxy.
_METHODS = (b"POST ", b"HEAD ")


class StoppedError(Exception):
    """The client was stopped before the request was sent completely."""


class SendProgress:
    """
    The progress of one request and its response.

    A request counts as sent once its last byte was handed to the operating system: a server that received fewer
    bytes than ``Content-Length`` announces has no complete JSON document to act on.

    :param seconds: time for connecting (proxy and TLS included), for each send, and for the whole response
    :param content_length: size of the request's body in bytes
    :param stopped: returns whether nothing more may be sent
    :param before_last_byte: called before the last byte of the request is handed to the operating system
    """

    def __init__(
        self,
        seconds: float,
        content_length: int,
        stopped: Callable[[], bool],
        before_last_byte: Callable[[], None] | None = None,
    ) -> None:
        self.seconds = seconds
        self.begun = False
        """Whether the first byte of the request may have been sent."""
        self.whole = False
        """Whether the last byte of the request may have been sent."""
        self.write_error: Exception | None = None
        """What aborted the request before its last byte, if anything did."""
        self.has_read = False
        """Whether anything was read from the network since the request was sent: the deadline is then that of the response."""
        self.may_keep = False
        """Whether the connection may be used again."""
        self._stopped = stopped
        self._before_last_byte = before_last_byte
        self._head = b""
        self._left = content_length
        self._deadline = time.monotonic() + seconds

    def check_stop(self) -> None:
        """
        Raise if nothing more may be sent.

        :raises StoppedError: if the client was stopped
        """
        if self._stopped():
            raise StoppedError

    def time_left(self) -> float:
        """
        Return the seconds until the deadline, first that of connecting and then that of the response.

        :raises httpcore.TimeoutException: if it has passed
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._overdue()
        return left

    def read(self, stream: httpcore.NetworkStream, max_bytes: int) -> bytes:
        """
        Read from the network.

        :raises httpcore.TimeoutException: if the deadline has passed
        """
        if self.begun and not self.has_read:
            # The first read after the request starts the deadline of the whole response.
            seconds = self.seconds if self.write_error is None else min(self.seconds, _EARLY_RESPONSE)
            self.has_read, self._deadline = True, time.monotonic() + seconds
        try:
            return stream.read(max_bytes, self.time_left())
        except httpcore.ReadTimeout:
            raise self._overdue() from None

    def _overdue(self) -> httpcore.TimeoutException:
        return httpcore.ReadTimeout() if self.has_read else httpcore.ConnectTimeout()

    def write(self, stream: httpcore.NetworkStream, data: bytes) -> None:
        """
        Write to the network.

        :raises StoppedError: if the client was stopped before the request was sent completely
        :raises httpcore.WriteError: if the request was aborted, also by a timeout: httpcore then still reads
            the response that a server may have sent early
        """
        if not (self.begun or self._head):
            if not data.startswith(_METHODS):
                self.check_stop()
                stream.write(data, self.time_left())
                return
            self._head = data
            self._left += len(data)
            if self._left > len(data):
                return  # httpcore writes the head by itself; it goes with the first bytes of the body
            data = b""
        data, self._head = self._head + data, b""
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._left -= len(piece)
            if self._left:
                self._hand_over(stream, piece)
                continue
            # The last byte by itself: whatever ends its write, also an error of a signal handler, it may have been sent.
            self._hand_over(stream, piece[:-1])
            self._hand_over(stream, piece[-1:], is_last=True)

    def _hand_over(self, stream: httpcore.NetworkStream, piece: bytes, *, is_last: bool = False) -> None:
        self.check_stop()
        if is_last and self._before_last_byte:
            self._before_last_byte()
        self.begun, self.whole = True, is_last
        try:
            stream.write(piece, self.seconds)
        except (httpcore.WriteError, httpcore.WriteTimeout) as error:
            if not is_last:
                self.write_error = error
            raise httpcore.WriteError(str(error)) from error


class Transport(httpx.BaseTransport):
    """
    Send each request on a connection of its own, unless connections are kept open between requests.

    Each is tracked by the :class:`SendProgress` in its ``progress`` extension. Raises httpcore's exceptions, not httpx's.

    :raises RuntimeError: if the proxy needs a package that is not installed
    """

    def __init__(self, tls: ssl.SSLContext, proxy: httpx.Proxy | None) -> None:
        self._tls = tls
        self._proxy = proxy
        # Threads share it: append() and pop() of a list are atomic. They share no pool, for a pool looks at its idle connections
        # while other threads begin to use them, and may close one whose response is about to arrive.
        self._idle: list[_Connection] | None = None
        _Connection(tls, proxy)  # raises now, not at the first request

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
            connection.pool.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """
        Send a request and return the response, its body still unread.

        :raises httpcore.RemoteProtocolError: if the response had arrived before the request was sent: it
            belongs to another one
        """
        try:
            connection = (self._idle or []).pop()
        except IndexError:  # there is none, or another thread took it
            connection = _Connection(self._tls, self._proxy)
        progress = connection.progress = request.extensions["progress"]
        try:
            response = connection.pool.handle_request(
                httpcore.Request(
                    request.method,
                    _core_url(request.url),
                    headers=request.headers.raw,
                    content=cast("httpx.SyncByteStream", request.stream),
                    extensions=request.extensions,
                )
            )
            if not progress.has_read:
                raise httpcore.RemoteProtocolError("the response arrived before the request was sent")
        except BaseException:
            connection.pool.close()
            raise
        body = _Body(response, lambda: self._release(connection))
        headers = httpx.Headers(response.headers)
        # httpx parses this header even if redirects are not followed, and raises if it is malformed: the status, which
        # says that nothing was started, would be lost.
        extensions = {**response.extensions, "location": headers.pop("location", "")}
        return httpx.Response(response.status, headers=headers, stream=body, extensions=extensions)

    def _release(self, connection: _Connection) -> None:
        # httpcore has closed what must not be used again, and opens another connection in its place. It also does so if
        # something arrived while the connection was idle.
        idle = self._idle
        if idle is None or not connection.progress.may_keep:
            connection.pool.close()
        else:
            idle.append(connection)


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response, done: Callable[[], None]) -> None:
        self._response = response
        self._done = done

    def __iter__(self) -> Iterator[bytes]:
        yield from self._response.iter_stream()

    def close(self) -> None:
        try:
            self._response.close()
        finally:
            self._done()


class _Connection(httpcore.NetworkBackend):
    """A pool of one connection at most, for one request at a time, and the network below it."""

    progress: SendProgress
    """The progress of the request that uses the connection at present."""

    def __init__(self, tls: ssl.SSLContext, proxy: httpx.Proxy | None) -> None:
        self._inner = httpcore.SyncBackend()
        self.pool: httpcore.ConnectionPool
        options: dict[str, Any] = {
            "ssl_context": tls,
            "keepalive_expiry": _MAX_IDLE,
            "network_backend": self,
        }
        if proxy is None:
            self.pool = httpcore.ConnectionPool(**options)
            return
        options |= {"proxy_url": _core_url(proxy.url), "proxy_auth": proxy.raw_auth}
        if proxy.url.scheme.startswith("socks"):
            self.pool = httpcore.SOCKSProxy(**options)
        else:
            over_tls = tls if proxy.url.scheme == "https" else None
            self.pool = httpcore.HTTPProxy(**options, proxy_ssl_context=over_tls)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        addresses = [*dict.fromkeys(str(address[0]) for *_, address in found)]
        if len(addresses) == 1:
            addresses = [
                host
            ]  # as it was written: the resolver strips the interface from a link-local address
        # One by one, because httpcore would allow the full timeout for each address.
        for address in addresses:
            self.progress.check_stop()
            time_left = self.progress.time_left()
            try:
                inner = self._inner.connect_tcp(address, port, time_left, local_address, socket_options)
            except httpcore.ConnectError as error:
                failure = error
            else:
                return _Stream(inner, self)
        raise failure


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, connection: _Connection) -> None:
        self._inner = inner
        self._connection = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._connection.progress.read(self._inner, max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._connection.progress.write(self._inner, buffer)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # does not change what was sent and read before
            self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        progress = self._connection.progress
        try:
            progress.check_stop()
            inner = self._inner.start_tls(ssl_context, server_hostname, progress.time_left())
        except BaseException:
            self.close()  # httpcore does not
            raise
        return _Stream(inner, self._connection)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


# TLS and proxies -----------------------------------------------------------------------------------------


def _why(error: Exception) -> str:
    # The operating system's message never quotes the value, which may be a whole pasted key.
    return getattr(error, "strerror", None) or type(error).__name__


def tls_context(settings: Settings, *urls: str) -> ssl.SSLContext:
    """
    Make the TLS context. The default certificates are loaded only if one of the URLs, of the service and the proxy, needs them.

    :raises InvalidRequestError: if a file cannot be used, naming the argument and never quoting its value
    """
    ca_bundle, client_cert = settings.ca_bundle, settings.client_cert
    if ca_bundle:
        cafile, capath = (None, ca_bundle) if Path(ca_bundle).is_dir() else (ca_bundle, None)
        try:
            context = ssl.create_default_context(cafile=cafile, capath=capath)
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"ca_bundle cannot be read as PEM certificates ({_why(error)}): expected a file or directory of them."
            ) from None
    elif any(url.lower().startswith("https:") for url in urls):
        context = httpx.create_ssl_context(trust_env=True)
    else:
        # Loading the default certificates takes longer than a request. An empty context, because httpcore
        # would load them for None.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_cert:
        certificate, key = (client_cert, None) if isinstance(client_cert, str) else client_cert
        try:
            # Without the password callback, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"client_cert cannot be read as a PEM certificate with its unencrypted key "
                f"({_why(error)}): expected one file with both, or a pair of files."
            ) from None
    return context


def environment_proxy(url: str) -> str | None:
    """Return the URL of the environment's proxy for an address, None if it has none."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
