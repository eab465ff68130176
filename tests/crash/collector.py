"""What collects the metrics and traces of a real Airflow: StatsD over UDP, and OpenTelemetry's protocol over HTTP."""

from __future__ import annotations

import importlib
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Span:
    """A span, and what it is a part of."""

    name: str
    attributes: dict[str, Any]
    span_id: bytes
    parent_id: bytes


class Collector:
    """A StatsD server and an OpenTelemetry collector on loopback."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: list[str] = []
        """The lines of this provider's metrics, such as ``airflow.workflow_automation.runs.started:1|c``."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # What comes while this process waits for the processor is not lost.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 2**20)
        self._socket.bind(("127.0.0.1", 0))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.spans))
        threading.Thread(target=self._read_metrics, daemon=True).start()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Stop collecting."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def settings(self) -> dict[str, str]:
        """Settings of an Airflow that sends its metrics and traces here."""
        return {
            "METRICS__STATSD_ON": "True",
            "METRICS__STATSD_HOST": "127.0.0.1",
            "METRICS__STATSD_PORT": str(self._socket.getsockname()[1]),
            "TRACES__OTEL_ON": "True",
        }

    @property
    def env(self) -> dict[str, str]:
        """Further environment variables of that Airflow."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        return {"OTEL_TRACES_EXPORTER": "otlp_proto_http", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url}

    def _read_metrics(self) -> None:
        while True:
            lines = self._socket.recv(65536).decode().splitlines()
            self.metrics += [line for line in lines if "workflow_automation" in line.partition(":")[0]]


def _handler(spans: list[Span]) -> type[BaseHTTPRequestHandler]:
    module = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in module.ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(map(_span, scope.spans))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    return Handler


def _span(found: Any) -> Span:
    attributes = {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in found.attributes}
    return Span(found.name, attributes, found.span_id, found.parent_span_id)
