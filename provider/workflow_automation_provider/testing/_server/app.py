"""
The whole service as one ASGI application, which keeps web pages out.

Every web page that is open in a browser can send requests to a loopback address of the same machine. Two
rules keep such a page out:

- The ``Host`` header must be a loopback name or address, or one that the service was given. A page can make
  its own name resolve to 127.0.0.1 after it was loaded (DNS rebinding), but its requests still carry that
  name.
- The control endpoints accept no request from another ``Origin``, and a fault only as ``application/json``,
  which a browser sends to another site only if that site allows it. This one never does.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from workflow_automation_provider.testing._server.calls import ClientLeftError, receive_body
from workflow_automation_provider.testing._server.rules import Rejection

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from workflow_automation_provider.testing._server.api import Api
    from workflow_automation_provider.testing._server.pages import Pages

__all__ = ["Guard", "make_app"]

_HOST = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+)(?::[0-9]+)?")
_EVERY_ADDRESS = {"", "0.0.0.0", "::"}  # noqa: S104 - only compared


class Guard:
    """
    Reject requests that a web page may have sent.

    :param host: the address or name that the service listens on
    :param public_url: another URL that clients use
    """

    def __init__(self, host: str, public_url: str | None = None) -> None:
        public = urlsplit(public_url or "").hostname or ""
        self._everywhere = host in _EVERY_ADDRESS
        self._known = {_plain(name) for name in (host, public) if name not in _EVERY_ADDRESS}

    def judge(self, scope: Scope) -> Rejection | None:
        """Return why a request is rejected, ``None`` if it is accepted."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        # Only HTTP/1.0 allows a request without Host, and no browser sends one.
        host = headers.get(b"host")
        if host is not None and not self.answers_to(host.decode("latin-1")):
            return Rejection(
                421,
                "the Host header is not localhost, a loopback address or the address that this service listens on; "
                "web pages are kept out this way. Use one of these, or start the service with public_url "
                "(--public-url) set to the URL that clients use",
            )
        origin = headers.get(b"origin")
        if scope["raw_path"].startswith(b"/_control/") and origin is not None:
            own = f"{scope['scheme']}://".encode() + (host or b"")
            if origin.lower() != own.lower():
                return Rejection(
                    403,
                    "the control endpoints accept no requests from web pages of another Origin; call them from a "
                    "program, for example with ControlClient or curl",
                )
        return None

    def answers_to(self, host: str) -> bool:
        """
        Return whether a ``Host`` header names this service.

        :param host: with or without a port, which is not compared: it may be forwarded
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1]
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            name = name.rstrip(".").lower()
            return name == "localhost" or name in self._known
        if (address.version == 6) != name.startswith("["):
            return False
        # A service that listens on every address may be reached by any; and no page can redirect an address.
        return address.is_loopback or self._everywhere or str(address) in self._known


def _plain(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.rstrip(".").lower()


def make_app(api: Api, pages: Pages, control: list[Route], guard: Guard) -> ASGIApp:
    """Combine the parts of the service."""
    site = Starlette(
        routes=[
            Route("/", pages.index),
            Route("/runs/{run_id}", pages.run),
            *control,
        ]
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        rejection = guard.judge(scope)
        if rejection is not None:
            await _reject(rejection, scope, receive, send)
            return
        raw_path: bytes = scope["raw_path"]
        of_site = raw_path == b"/" or raw_path.startswith((b"/runs/", b"/_control/"))
        # Everything else is treated as an operation, so that a request to a wrong path appears in the
        # journal.
        await (site if of_site else api)(scope, receive, send)

    return app


async def _reject(rejection: Rejection, scope: Scope, receive: Receive, send: Send) -> None:
    # The body is read first, because a client that is still sending may not read the response.
    with contextlib.suppress(ClientLeftError):
        await receive_body(receive, limit=0)
        await JSONResponse({"error": rejection.error}, rejection.status)(scope, receive, send)
