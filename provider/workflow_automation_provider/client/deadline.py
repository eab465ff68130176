"""
Track how much of a request was sent, and set one deadline for the whole response.

httpx limits the time of each *read*, so a response that trickles in never times out. httpcore's network
backend sees every read and write, so the limits are enforced there. Each request has its own connection, unless
:mod:`~.keep_alive` keeps them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpcore

# A stop takes effect between two pieces. Smaller ones cost system calls, larger ones delay the stop.
_PIECE = 256 * 1024

# Where the errors of a socket are raised.
_SOCKET_MODULES = ("httpcore", "ssl")

# Seconds to wait for a response after the request was aborted: only one that has already arrived counts.
_EARLY_RESPONSE = 1.0


class StoppedError(Exception):
    """The client was stopped before the request was sent completely."""


class SendProgress:
    """
    The progress of one request and its response.

    A request counts as sent when the operating system accepted its last byte: a server that received fewer
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
        """What aborted the request, if anything did."""
        self.has_read = False
        """Whether anything was read from the network since the request was sent."""
        self.may_keep = False
        """Whether the connection may be used again."""
        self._is_set_up = False
        self._stopped = stopped
        self._before_last_byte = before_last_byte
        self._body_left = content_length
        self._overdue: type[httpcore.TimeoutException] = httpcore.ConnectTimeout
        self._deadline = time.monotonic() + seconds

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note, as httpcore's ``trace`` extension, when the request itself begins, after the setup of a proxy."""
        if event == "http11.send_request_headers.started" and info["request"].method != b"CONNECT":
            self._is_set_up = True

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
            raise self._overdue("timed out")
        return left

    def read(self, stream: httpcore.NetworkStream, max_bytes: int) -> bytes:
        """
        Read from the network.

        :raises httpcore.TimeoutException: if the deadline has passed
        """
        if self.begun and self._overdue is not httpcore.ReadTimeout:
            # The first read after the request starts the deadline of the whole response.
            seconds = self.seconds if self.write_error is None else min(self.seconds, _EARLY_RESPONSE)
            self._overdue, self._deadline = httpcore.ReadTimeout, time.monotonic() + seconds
            self.has_read = True
        try:
            return stream.read(max_bytes, self.time_left())
        except httpcore.ReadTimeout:
            raise self._overdue("timed out") from None

    def write(self, stream: httpcore.NetworkStream, data: bytes) -> None:
        """
        Write to the network.

        :raises StoppedError: if the client was stopped before the request was sent completely
        :raises httpcore.WriteError: if the request was aborted, also by a timeout: httpcore then still reads
            the response that a server may have sent early
        """
        if not self._is_set_up:
            self.check_stop()
            stream.write(data, self.time_left())
            return
        body_from = 0 if self.begun else len(data.partition(b"\r\n\r\n")[0]) + 4
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self.check_stop()
            # Updated before the write: whatever interrupts it, the bytes may have been sent.
            self.begun = True
            self._body_left -= max(0, start + len(piece) - max(start, body_from))
            self.whole = self._body_left <= 0
            if self.whole and self._before_last_byte:
                self._before_last_byte()
            try:
                stream.write(piece, self.seconds)
            except (httpcore.WriteError, httpcore.WriteTimeout) as error:
                if not _is_of_socket(error):
                    raise
                # The write fails only while part of the piece is unsent.
                self.whole = False
                self.write_error = error
                raise httpcore.WriteError(str(error)) from error


def _is_of_socket(error: Exception) -> bool:
    """
    Return whether the socket raised an error, not a signal handler, perhaps after the last byte.

    httpcore maps any TimeoutError and OSError alike, but that of a handler was raised in the handler's own frame.
    """
    if error.__cause__ is None:
        return False
    *_, (frame, _) = traceback.walk_tb(error.__cause__.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] in _SOCKET_MODULES


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, backend: _Backend) -> None:
        self._inner = inner
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._backend.progress.read(self._inner, max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._backend.progress.write(self._inner, buffer)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # does not change what was sent and read before
            self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        progress = self._backend.progress
        try:
            progress.check_stop()
            inner = self._inner.start_tls(ssl_context, server_hostname, progress.time_left())
        except BaseException:
            self.close()  # httpcore does not
            raise
        return _Stream(inner, self._backend)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    progress: SendProgress
    """The progress of the request that uses the connection at present."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self.progress.check_stop()
        # One by one, because httpcore would allow the full timeout for each address.
        addresses = _addresses(host, port)
        for address in addresses:
            self.progress.check_stop()
            try:
                inner = self._inner.connect_tcp(
                    address, port, self.progress.time_left(), local_address, socket_options
                )
            except httpcore.ConnectError:
                if address == addresses[-1]:
                    raise
            else:
                return _Stream(inner, self)
        raise AssertionError("A host has at least one address")


def _addresses(host: str, port: int) -> list[str]:
    """
    Return a host's addresses without duplicates, in the operating system's order of preference.

    :raises httpcore.ConnectError: if there is none
    """
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in entries))
    # A single one as it was written: the resolver strips the interface from a link-local address.
    return addresses if len(addresses) > 1 else [host]


class Connection:
    """
    One connection to the service, opened when a request is sent, for one request at a time.

    :param pool: makes a pool for a network backend; it will have one connection at most
    """

    def __init__(self, pool: Callable[[httpcore.NetworkBackend], httpcore.ConnectionPool]) -> None:
        self._backend = _Backend()
        self._pool = pool(self._backend)

    def send(self, request: httpcore.Request, progress: SendProgress) -> httpcore.Response:
        """Send a request, tracked by its progress."""
        self._backend.progress = progress
        return self._pool.handle_request(request)

    def close(self) -> None:
        """Close the connection, if it is open."""
        self._pool.close()
