"""
S3 as it is at AWS: a bucket is in one region, and other hosts than its region's refuse it.

It is reached by its real names, by a proxy, over TLS.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import trustme

from tls_proxy import ProxiedHandler

_SCOPE = re.compile(r"/\d{8}/([a-z0-9-]+)/s3/aws4_request")

_HOST = re.compile(r"(?:.+\.)?s3(?:\.([a-z0-9-]+))?\.amazonaws\.com")


@dataclass
class Regions:
    """
    All hosts of S3, with one bucket.

    :param region: that of the bucket
    """

    region: str
    ca_bundle: Path
    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    served: list[tuple[str, str]] = field(default_factory=list)
    """Method and host of each request that was not refused."""
    authority: trustme.CA = field(default_factory=trustme.CA)

    @contextlib.contextmanager
    def running(self) -> Iterator[Regions]:
        """Run in a thread."""
        self.authority.cert_pem.write_to_path(self.ca_bundle)
        handler = type("Handler", (_Handler,), {"regions": self, "authority": self.authority})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            self.port = server.server_port
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield self
            server.shutdown()

    def respond(self, method: str, host: str, target: str, head: Any) -> tuple[int, str, bytes]:
        """Return status, code and body of a response."""
        found = _HOST.fullmatch(host)
        signed = _SCOPE.search(unquote(target) + head.get("Authorization", ""))
        if not found or not signed:
            return 403, "AccessDenied", b""
        # The global host is that of the oldest region: new ones are not known there.
        if (found[1] or "us-east-1") != self.region:
            if found[1] is None:
                return 400, "IllegalLocationConstraintException", b""
            return 301, "PermanentRedirect", b""
        if signed[1] != self.region:
            return 400, "AuthorizationHeaderMalformed", b""

        self.served.append((method, host))
        if method == "HEAD":
            return 200, "", b""
        key = target.partition("?")[0]
        if method == "PUT" and key in self.objects:
            return 412, "PreconditionFailed", b""
        if method == "PUT":
            self.objects[key] = b"\n"
            return 200, "", b""
        if key not in self.objects:
            return 404, "NoSuchKey", b""
        return 206, "", self.objects[key]


class _Handler(ProxiedHandler):
    regions: Regions

    def respond(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        status, code, content = self.regions.respond(
            self.command, self.headers["Host"], self.path, self.headers
        )
        if code:
            region = self.regions.region
            content = f"<Error><Code>{code}</Code><Region>{region}</Region></Error>".encode()
        headers = {
            "Last-Modified": "Sat, 28 Nov 2026 12:00:00 GMT",
            "x-amz-bucket-region": self.regions.region,
        }
        return status, headers, content

    do_GET = do_HEAD = do_PUT = ProxiedHandler.answer  # noqa: N815 - the names are given
