"""A server that is reached by any name, by a proxy, over TLS."""

from __future__ import annotations

from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import TYPE_CHECKING

from store_handler import StoreHandler

if TYPE_CHECKING:
    import trustme


class ProxiedHandler(StoreHandler):
    """What follows a CONNECT is answered here, with a certificate for the name that was asked."""

    authority: trustme.CA

    def do_CONNECT(self) -> None:  # noqa: N802 - the name is given
        host = self.path.partition(":")[0]
        self.connected(host)
        self.send_response(200)
        self.end_headers()
        context = SSLContext(PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(host).configure_cert(context)
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def connected(self, host: str) -> None:
        """Take note of a connection to a host."""
