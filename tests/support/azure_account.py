"""
A storage account of Azure in this process, as far as mailboxes need it.

Unlike Azurite it needs no npm. It checks the signature of each URL, and what it may be used for.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import trustme

from store_handler import StoreHandler

NAME = "devstoreaccount1"
KEY = base64.b64encode(b"the key of the account, of which nothing may show" * 2).decode()
DELEGATED = base64.b64encode(b"the key that a credential is given").decode()
TOKEN = "eyJ0.an-access-token.x"

OVERWRITE = "UnauthorizedBlobOverwrite"

HEADERS = {"x-ms-blob-type": "BlockBlob"}

# What is signed of a URL, in this order, between the permission and the headers of a response.
_BY_ACCOUNT = ("si", "sip", "spr", "sv", "sr", "", "ses")
_BY_USER = (
    *("skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid", "skdutid", "sduoid"),
    *("sip", "spr", "sv", "sr", "", "ses", "", ""),
)
_RESPONSE = ("rscc", "rscd", "rsce", "rscl", "rsct")

Response = tuple[int, Mapping[str, str], bytes]


def signature(query: Mapping[str, str], path: str) -> str:
    """
    Return the signature that a URL should have.

    :param path: container and blob
    """
    names, key = (_BY_USER, DELEGATED) if "skoid" in query else (_BY_ACCOUNT, KEY)
    first = [query["sp"], query.get("st", ""), query["se"], f"/blob/{NAME}/{path}"]
    text = "\n".join([*first, *(query.get(name, "") for name in (*names, *_RESPONSE))])
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


@dataclass
class AzureAccount:
    """An account with one container."""

    container: str
    port: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    """Method and path of each request."""

    @contextlib.contextmanager
    def running(self, ca_bundle: Path | None = None) -> Iterator[AzureAccount]:
        """
        Run in a thread.

        :param ca_bundle: where to write the certificate, for TLS
        """
        handler = type("Handler", (_Handler,), {"account": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            if ca_bundle:
                authority = trustme.CA()
                authority.cert_pem.write_to_path(str(ca_bundle))
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                authority.issue_cert("127.0.0.1").configure_cert(context)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            self.port = server.server_port
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            yield self
            server.shutdown()

    def connection(self, port: int = 0) -> dict[str, Any]:
        """
        Return the fields of an Airflow connection.

        :param port: of a proxy in front of it
        """
        host = f"http://127.0.0.1:{port or self.port}/{NAME}"
        return {"conn_type": "wasb", "host": host, "login": NAME, "password": KEY}

    def respond(self, method: str, target: str, headers: Any, body: bytes) -> Response:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = unquote(parts.path).removeprefix(f"/{NAME}/")
        self.seen.append(f"{method} {path}")
        if parts.path == "/token":
            until = int(datetime.now(UTC).timestamp()) + 3600
            token = f'{{"access_token": "{TOKEN}", "expires_on": "{until}", "resource": "r"}}'
            return 200, {"Content-Type": "application/json"}, token.encode()
        if method != "PUT" and not headers.get("Authorization", "").startswith(
            (f"SharedKey {NAME}:", f"Bearer {TOKEN}")
        ):
            return _error(403, "AuthenticationFailed")
        if query.get("comp") == "userdelegationkey":
            return _delegation_key(body)

        container, _, name = path.partition("/")
        if container != self.container:
            return _error(404, "ContainerNotFound")
        if method == "PUT":
            return self._put(name, query, headers, body)
        return self._get(name, headers) if name else self._list(query)

    def _put(self, name: str, query: Mapping[str, str], headers: Any, body: bytes) -> Response:
        if headers.get("x-ms-blob-type") != "BlockBlob":
            return _error(400, "MissingRequiredHeader")
        expected = signature(query, f"{self.container}/{name}")
        is_over = datetime.fromisoformat(query["se"]) < datetime.now(UTC)
        if query.get("sig") != expected or is_over:
            return _error(403, "AuthenticationFailed")
        if query["sp"] != "c":
            return _error(403, "AuthorizationPermissionMismatch")
        if name in self.blobs:
            return _error(403, OVERWRITE)

        self.blobs[name] = body
        return 201, {}, b""

    def _get(self, name: str, headers: Any) -> Response:
        if name not in self.blobs:
            return _error(404, "BlobNotFound")

        body = self.blobs[name]
        more = {"Last-Modified": format_datetime(datetime.now(UTC), usegmt=True), "ETag": '"1"'}
        span = headers.get("x-ms-range") or headers.get("Range")
        if span is None:
            return 200, more, body
        first, last = map(int, span.removeprefix("bytes=").split("-"))
        if first >= len(body):
            return _error(416, "InvalidRange")

        part = body[first : last + 1]
        more["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(body)}"
        return 206, more, part

    def _list(self, query: Mapping[str, str]) -> Response:
        names = [name for name in sorted(self.blobs) if name.startswith(query.get("prefix", ""))]
        first = int(query.get("marker", "0"))
        page = names[first : first + 5000]
        blobs = "".join(f"<Blob><Name>{escape(name)}</Name><Properties/></Blob>" for name in page)
        rest = str(first + 5000) if names[first + 5000 :] else ""
        return _xml(
            f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{rest}</NextMarker>"
            "</EnumerationResults>"
        )


def error(code: str) -> bytes:
    """Return the body of an error, with a line that shows too much."""
    text = f"No.\nThe MAC signature found in the request is {KEY}"
    return f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()


def _error(status: int, code: str) -> Response:
    return status, {"Content-Type": "application/xml", "x-ms-error-code": code}, error(code)


def _xml(text: str) -> Response:
    body = f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode()
    return 200, {"Content-Type": "application/xml"}, body


def _delegation_key(body: bytes) -> Response:
    start, _, rest = body.decode().partition("<Start>")[2].partition("</Start>")
    expiry = rest.partition("<Expiry>")[2].partition("</Expiry>")[0]
    return _xml(
        "<UserDelegationKey><SignedOid>oid</SignedOid><SignedTid>tid</SignedTid>"
        f"<SignedStart>{start}</SignedStart><SignedExpiry>{expiry}</SignedExpiry>"
        "<SignedService>b</SignedService><SignedVersion>2026-02-06</SignedVersion>"
        f"<Value>{DELEGATED}</Value></UserDelegationKey>"
    )


class _Handler(StoreHandler):
    account: AzureAccount

    def respond(self, body: bytes) -> Response:
        return self.account.respond(self.command, self.path, self.headers, body)

    do_GET = do_POST = do_PUT = do_DELETE = StoreHandler.answer  # noqa: N815 - the names are given
