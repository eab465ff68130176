"""What the hook's tests share: connections as Airflow reads them, and a server that keeps every request."""

from __future__ import annotations

import base64
import hashlib
import json
import socketserver
import ssl
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler

import pytest
import trustme

from workflow_automation_provider.client.files import File
from workflow_automation_provider.hooks.sources import FileSource, resolve
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

KEY = "wak-secret-0123456789"


@pytest.fixture(scope="session")
def key():
    return KEY


@pytest.fixture
def connect(monkeypatch):
    """Define a connection by the environment, as a URI or as the fields of its JSON, and return a hook on it."""
    hooks = []

    def define(uri=None, /, conn_id="wa_test", **fields):
        value = uri or json.dumps({"conn_type": "workflow_automation", **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)
        hooks.append(WorkflowAutomationHook(conn_id))
        return hooks[-1]

    yield define
    for hook in hooks:
        hook.close()


@pytest.fixture
def hook(workflow_automation_connection):
    with WorkflowAutomationHook(workflow_automation_connection) as hook:
        yield hook


@pytest.fixture
def run_id(hook):
    """Start a run, for uploads."""
    return hook.trigger_flow({}, "demo-flow").run_id


def resolved(source: FileSource | Iterable[FileSource]) -> list[File]:
    """Resolve sources that name files, and no mapping."""
    elements = resolve(source)
    files = [element for element in elements if isinstance(element, File)]
    assert files == elements
    return files


def digest(content):
    """Return the hash of a file's content as the service keeps it: of a long one, it keeps the hash."""
    if isinstance(content, dict):
        return content["long_string"]["decoded"]["sha256"]
    return hashlib.sha256(base64.b64decode(content)).hexdigest()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """A client that leaves during the TLS handshake is part of some tests."""


class RecordingServer:
    """An HTTP(S) server that keeps the method, the path and the headers of every request."""

    def __init__(self, tls=None):
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status = 201
        self.body = b'{"run_id": "7"}'
        self.headers: dict[str, str] = {}
        recording = self

        class Handler(BaseHTTPRequestHandler):
            def setup(self):
                if tls is not None:
                    self.request = tls.wrap_socket(self.request, server_side=True)
                super().setup()

            def answer(self):
                length = int(self.headers.get("Content-Length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                recording.requests.append((self.command, self.path, headers, self.rfile.read(length)))
                self.send_response(recording.status)
                for name, value in recording.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(recording.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(recording.body)

            do_HEAD = do_GET = do_POST = answer  # noqa: N815 - the names are http.server's

            def log_message(self, *_):
                """Say nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.base_url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/api"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def recording():
    """Start a recording server."""
    servers = []

    def start(tls=None):
        servers.append(RecordingServer(tls))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class Authority:
    """A certificate authority with its certificates as files."""

    def __init__(self, folder):
        self._ca = trustme.CA()
        self._folder = folder
        self.bundle = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.bundle)

    def issue(self, name):
        """Write a certificate: one file with its key, and the two apart."""
        certificate = self._ca.issue_cert(name)
        both, chain, key = (
            str(self._folder / f"{name}.{end}") for end in ("both.pem", "chain.pem", "key.pem")
        )
        certificate.private_key_and_cert_chain_pem.write_to_path(both)
        certificate.private_key_pem.write_to_path(key)
        certificate.cert_chain_pems[0].write_to_path(chain)
        return both, chain, key

    def server_context(self, name="127.0.0.1", *, of_clients=False):
        """Make the TLS context of a server, which may ask clients for a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(name)[0])
        if of_clients:
            context.load_verify_locations(self.bundle)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)
