"""
Google Cloud Storage, and the services that give credentials for it, as far as mailboxes need them.

Unlike the emulators of others, it checks each signature, and what a signed URL demands. It is
reached by its address, or by the real names, by a proxy, over TLS.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import httpx
import trustme
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tls_proxy import ProxiedHandler

ACCOUNT = "reader@project.iam.gserviceaccount.com"
TOKEN = "ya29.an-access-token"

Response = tuple[int, Mapping[str, str], bytes]


def signature_problem(method: str, target: str, headers: Message, key: rsa.RSAPublicKey) -> str:
    """
    Return the code of what is wrong with a request by a V4 signed URL, empty if nothing is.

    :param headers: those that were sent
    """
    path, _, query = target.partition("?")
    parameters = {name: values[0] for name, values in parse_qs(query).items()}
    signed = parameters["X-Goog-SignedHeaders"].split(";")
    ours = [name.lower() for name in headers if name.lower().startswith("x-goog-")]
    if not set(ours).issubset(signed):
        return "MalformedSecurityHeader"

    unsigned = [pair for pair in query.split("&") if not pair.startswith("X-Goog-Signature=")]
    lines = [f"{name}:{headers.get(name, '').strip()}\n" for name in signed]
    request = [method, path, "&".join(sorted(unsigned)), "".join(lines), ";".join(signed)]
    canonical = "\n".join([*request, "UNSIGNED-PAYLOAD"])
    at = parameters["X-Goog-Date"]
    _, _, scope = parameters["X-Goog-Credential"].partition("/")
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join([parameters["X-Goog-Algorithm"], at, scope, digest])
    signature = bytes.fromhex(parameters["X-Goog-Signature"])
    try:
        key.verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return "SignatureDoesNotMatch"

    until = datetime.strptime(f"{at}+0000", "%Y%m%dT%H%M%SZ%z") + timedelta(
        seconds=int(parameters["X-Goog-Expires"])
    )
    return "ExpiredToken" if until < datetime.now(UTC) else ""


@dataclass
class GoogleCloud:
    """
    The services, with one bucket.

    :param upstream: an emulator that keeps the objects: it knows no credentials, and checks neither
        signature nor condition
    :param refuses: what IAM answers, by the name of its method
    """

    bucket: str = "reports"
    upstream: str = ""
    port: int = 0
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    served: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, host and path of each request."""
    tunnels: list[str] = field(default_factory=list)
    """The host of each connection by its real name."""
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 1024))
    authority: trustme.CA = field(default_factory=trustme.CA)

    @contextlib.contextmanager
    def running(self, ca_bundle: Path) -> Iterator[GoogleCloud]:
        """Run in a thread."""
        self.authority.cert_pem.write_to_path(str(ca_bundle))
        handler = type("Handler", (_Handler,), {"cloud": self, "authority": self.authority})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            self.port = server.server_port
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield self
            server.shutdown()

    @property
    def pem(self) -> str:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def key_file(self, token_uri: str = "https://oauth2.googleapis.com/token") -> dict[str, str]:
        """Return the key file of the account."""
        return {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "1",
            "private_key": self.pem,
            "client_email": ACCOUNT,
            "token_uri": token_uri,
        }

    def connection(self) -> dict[str, Any]:
        """Return the fields of an Airflow connection, by the key file."""
        key_file = self.key_file(token_uri=f"http://127.0.0.1:{self.port}/token")
        return {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": key_file}}

    def asked(self, host: str) -> list[str]:
        """Return method and path of each request to a host."""
        return [f"{method} {path}" for method, named, path in self.served if named == host]

    def respond(self, method: str, target: str, headers: Message, body: bytes) -> Response:
        # By a proxy without TLS, it has the host as well.
        path = unquote(urlsplit(target).path)
        self.served.append((method, headers["Host"], path))
        if path == "/token":
            return _json({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
        if path.startswith("/computeMetadata"):
            return self._metadata(path)
        if "/serviceAccounts/" in path:
            return self._iam(path.rpartition(":")[2], body)
        if method == "PUT":
            return self._put(path, target, headers, body)
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return _json({"error": {"code": 401, "message": "Invalid Credentials"}}, 401)
        if self.upstream:
            return self._pass_on(method, target, headers, body)

        return self._read(path, target, headers)

    def _metadata(self, path: str) -> Response:
        if path.endswith("/token"):
            return _json({"access_token": TOKEN, "expires_in": 3600})
        if path.endswith("/universe-domain"):
            return 404, {}, b""

        return _json({"email": ACCOUNT, "scopes": []})

    def _iam(self, method: str, body: bytes) -> Response:
        if method in self.refuses:
            status, code = self.refuses[method]
            return _json({"error": {"code": status, "message": "No.", "status": code}}, status)
        if method == "generateAccessToken":
            until = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
            return _json({"accessToken": TOKEN, "expireTime": until})

        payload = base64.b64decode(json.loads(body)["payload"])
        signature = self.key.sign(payload, padding.PKCS1v15(), hashes.SHA256())
        return _json({"keyId": "1", "signedBlob": base64.b64encode(signature).decode()})

    def _put(self, path: str, target: str, headers: Message, body: bytes) -> Response:
        problem = signature_problem("PUT", target, headers, self.key.public_key())
        bucket, _, key = path.removeprefix("/").partition("/")
        if problem:
            return _xml(400 if problem.startswith("Expired") else 403, problem)
        if bucket != self.bucket:
            return _xml(404, "NoSuchBucket")
        if headers.get("x-goog-if-generation-match") == "0" and self._has(key):
            return _xml(412, "PreconditionFailed")
        if self.upstream:
            return self._pass_on("PUT", target, headers, body)

        self.objects[key] = body, datetime.now(UTC)
        return 200, {}, b""

    def _has(self, key: str) -> bool:
        if not self.upstream:
            return key in self.objects
        path = f"/storage/v1/b/{self.bucket}/o/{quote(key, safe='')}"
        return httpx.get(f"{self.upstream}{path}", trust_env=False).is_success

    def _pass_on(self, method: str, target: str, headers: Message, body: bytes) -> Response:
        kept = {name: headers[name] for name in ("Content-Type", "Range") if name in headers}
        response = httpx.request(
            method, f"{self.upstream}{target}", headers=kept, content=body, trust_env=False
        )
        return response.status_code, {"Content-Type": "application/json"}, response.content

    def _read(self, path: str, target: str, headers: Message) -> Response:
        query = parse_qs(urlsplit(target).query)
        bucket, _, key = path.partition("/b/")[2].partition("/o")
        if bucket != self.bucket:
            return _json(
                {"error": {"code": 404, "message": "The specified bucket does not exist."}}, 404
            )
        if not key:
            return self._list(query)
        if key[1:] not in self.objects:
            return _json({"error": {"code": 404, "message": f"No such object: {key}"}}, 404)

        body, at = self.objects[key[1:]]
        if query.get("alt") != ["media"]:
            created = f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
            return _json({"name": key[1:], "size": str(len(body)), "timeCreated": created})

        first, last = headers["Range"].removeprefix("bytes=").split("-")
        part = body[int(first) : int(last) + 1]
        return (206, {}, part) if part else (416, {}, b"")

    def _list(self, query: Mapping[str, list[str]]) -> Response:
        prefix = query.get("prefix", [""])[0]
        names = [name for name in sorted(self.objects) if name.startswith(prefix)]
        first = int(query.get("pageToken", ["0"])[0])
        size = int(query.get("maxResults", ["1000"])[0])
        page: dict[str, Any] = {"items": [{"name": name} for name in names[first : first + size]]}
        if len(names) > first + size:
            page["nextPageToken"] = str(first + size)
        return _json(page)


def _json(value: Any, status: int = 200) -> Response:
    headers = {"Content-Type": "application/json", "Metadata-Flavor": "Google"}
    return status, headers, json.dumps(value).encode()


def _xml(status: int, code: str) -> Response:
    return status, {}, f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()


class _Handler(ProxiedHandler):
    cloud: GoogleCloud

    def connected(self, host: str) -> None:
        self.cloud.tunnels.append(host)

    def respond(self, body: bytes) -> Response:
        return self.cloud.respond(self.command, self.path, self.headers, body)

    do_GET = do_POST = do_PUT = ProxiedHandler.answer  # noqa: N815 - the names are given
