"""How the stand-ins of object stores answer over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any


class StoreHandler(BaseHTTPRequestHandler):
    """A subclass names the methods that it answers, each as :meth:`answer`."""

    protocol_version = "HTTP/1.1"

    def respond(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Return the status, headers and body of the response to a request with this body."""
        raise NotImplementedError

    def answer(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, headers, content = self.respond(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass
