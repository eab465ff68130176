"""
Which requests are answered at all.

A service on a loopback address is within reach of every web page that is open in a browser on the same machine. Two
rules keep such a page out:

- The ``Host`` is a loopback name or address, or one that the service was told of. A page can give its own name the
  address 127.0.0.1 after it was loaded (DNS rebinding), but its requests still carry that name.
- The control endpoints take no request of another ``Origin``, and a fault only as ``application/json``, which a
  browser sends to another site only if that site allows it. This one never does.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from workflow_automation_provider.testing.rules import Refusal

if TYPE_CHECKING:
    from starlette.types import Scope

__all__ = ["Guard"]

_HOST = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+)(?::[0-9]+)?")
_EVERY_ADDRESS = {"", "0.0.0.0", "::"}  # noqa: S104 - only compared


class Guard:
    """
    Tells who is answered.

    :param host: the address or name that the service listens on.
    :param public_url: another address that clients reach it by.
    """

    def __init__(self, host: str, public_url: str | None = None) -> None:
        public = urlsplit(public_url or "").hostname or ""
        self._everywhere = host in _EVERY_ADDRESS
        self._known = {_plain(name) for name in (host, public) if name not in _EVERY_ADDRESS}

    def judge(self, scope: Scope) -> Refusal | None:
        """
        Return why a request is not answered, ``None`` if it is.

        :param scope: the ASGI scope.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        # Only HTTP/1.0 may leave it out, and no browser does.
        host = headers.get(b"host")
        if host is not None and not self.answers_to(host.decode("latin-1")):
            return Refusal(
                421,
                "the Host is not localhost, a loopback address or the address that this service listens on, and web "
                "pages are kept out by that: use one of these, or start the service with public_url (--public-url) "
                "set to the address that clients use",
            )
        origin = headers.get(b"origin")
        if scope["raw_path"].startswith(b"/_control/") and origin is not None:
            own = f"{scope['scheme']}://".encode() + (host or b"")
            if origin.lower() != own.lower():
                return Refusal(
                    403,
                    "the control endpoints take no requests from web pages of another Origin: call them from a "
                    "program, such as with ControlClient",
                )
        return None

    def answers_to(self, host: str) -> bool:
        """
        Tell whether a ``Host`` stands for this service.

        :param host: the header, with or without a port. The port is not compared: it may be forwarded.
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
        # Where it listens on every address, any may be its own; and no page can make an address lead elsewhere.
        return address.is_loopback or self._everywhere or str(address) in self._known


def _plain(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.rstrip(".").lower()
