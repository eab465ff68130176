"""Send each request once, on a connection of its own, which tells its progress."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

from workflow_automation_provider.client.network import Proxy, unusable_proxy
from workflow_automation_provider.client.protocol import Response
from workflow_automation_provider.client.quiet import quiet
from workflow_automation_provider.client.responses.body import RESPONSE_LIMIT, too_large
from workflow_automation_provider.client.responses.cause import is_refusal_of_client

if TYPE_CHECKING:
    from workflow_automation_provider.client.send_progress import SendProgress


class Transport(httpx.BaseTransport):
    """
    Send each request on a connection of its own.

    A request has its progress as its extension ``progress``. Raises httpcore's exceptions, not
    httpx's.

    :raises InvalidRequestError: if the proxy's URL is not valid, or needs a package that is not
        installed
    """

    def __init__(self, tls: ssl.SSLContext, proxy: Proxy | None) -> None:
        self._tls = tls
        self._proxy = _usable(proxy, tls) if proxy else None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """
        Send a request and read the response, up to a limit.

        :return: its status, and all of it as the extension ``response``: httpx itself would follow,
            decode or reject what some headers say, and the status would be lost
        :raises httpcore.RemoteProtocolError: if the response had arrived before the request was
            sent: it belongs to another one
        """
        progress: SendProgress = request.extensions["progress"]
        assert isinstance(request.stream, httpx.SyncByteStream)  # noqa: S101
        connection = _Connection(progress)
        pool = _pool(connection, self._tls, self._proxy)
        core_request = httpcore.Request(
            request.method,
            _core_url(request.url),
            headers=request.headers.raw,
            content=progress.writes(request.stream),
        )
        with quiet(), contextlib.closing(connection):
            unread = pool.handle_request(core_request)
            if not progress.has_read:
                raise httpcore.RemoteProtocolError(
                    "the response arrived before the request was sent"
                )

            response = _read(unread, is_early=not progress.whole)

        return httpx.Response(response.status, extensions={"response": response})


def _read(unread: httpcore.Response, *, is_early: bool) -> Response:
    """Read a response, up to a limit; what ends it before its end becomes its error."""
    body = bytearray()
    error: Exception | None = None
    try:
        for chunk in unread.iter_stream():
            body += chunk
            if len(body) > RESPONSE_LIMIT:
                raise too_large()

        unread.close()
    except Exception as failure:
        error = failure

    headers = httpx.Headers(unread.headers)
    return Response(unread.status, headers, bytes(body), error, early=is_early)


class _Connection(httpcore.NetworkBackend, httpcore.NetworkStream):
    """The connection of one request: it sends and reads within the deadline."""

    def __init__(self, progress: SendProgress) -> None:
        self._progress = progress
        self._stream = httpcore.NetworkStream()
        # Whether anything was read since the connection, or TLS on it, was opened.
        self._has_read = False

    def connect_tcp(self, *where: Any, **options: Any) -> httpcore.NetworkStream:
        self._progress.check_stop()
        options["timeout"] = self._progress.time_left()
        self._stream = httpcore.SyncBackend().connect_tcp(*where, **options)
        return self

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        self._progress.check_stop()
        left = self._progress.time_left()
        self._stream = self._stream.start_tls(ssl_context, server_hostname, left)
        self._has_read = False
        return self

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        progress = self._progress
        progress.start_response()
        try:
            read = self._stream.read(max_bytes, progress.time_left())
        except httpcore.ReadError as error:
            # With TLS 1.3, a server looks at the client's certificate when the request may be on
            # its way already.
            if not self._has_read and is_refusal_of_client(error):
                progress.take_back()
            raise

        self._has_read = True
        progress.note_response(read)
        return read

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        progress = self._progress
        if not progress.begun:
            progress.check_stop()

        seconds = progress.seconds if progress.begun else progress.time_left()
        try:
            self._stream.write(buffer, seconds)
        except httpcore.WriteTimeout as error:
            # After a WriteError, httpcore still reads the response that a server may have sent
            # early.
            raise httpcore.WriteError from error

    def close(self) -> None:
        with contextlib.suppress(Exception):  # does not change what was sent and read before
            self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _usable(proxy: Proxy, tls: ssl.SSLContext) -> httpx.Proxy:
    """
    Return a proxy after a trial, so that it fails now, not at the first request.

    :raises InvalidRequestError: if it cannot be used
    """
    try:
        usable = httpx.Proxy(proxy.url)
        _pool(httpcore.SyncBackend(), tls, usable)
    except (httpx.InvalidURL, ValueError, RuntimeError):
        raise unusable_proxy(proxy) from None

    return usable


def _pool(
    backend: httpcore.NetworkBackend, tls: ssl.SSLContext, proxy: httpx.Proxy | None
) -> httpcore.ConnectionPool:
    options: dict[str, Any] = {"ssl_context": tls, "network_backend": backend}
    if proxy is None:
        return httpcore.ConnectionPool(**options)

    options["proxy_url"] = _core_url(proxy.url)
    options["proxy_auth"] = proxy.raw_auth
    if proxy.url.scheme.startswith("socks"):
        return httpcore.SOCKSProxy(**options)

    return httpcore.HTTPProxy(**options)


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )
