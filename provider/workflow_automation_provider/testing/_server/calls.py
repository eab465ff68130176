"""What a request asks for: operation, flow and key, read from the raw bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from starlette.types import Scope

    from workflow_automation_provider.testing._server.bodies import Body
    from workflow_automation_provider.testing.journal import Operation

__all__ = ["Call", "decode_segment", "find_operation", "read_call", "says_json"]

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class Call:
    """
    A request that was received and not yet judged.

    :param path: the path as sent, still percent-encoded
    :param operation: ``None`` if the path is not that of an operation
    :param path_flow_id: the flow ID from the path, decoded; ``None`` if the path has none
    :param key_value: the ``X-API-Key`` header, ``None`` if it is missing
    :param content_type: the ``Content-Type`` header, empty if it is missing
    """

    method: str
    path: str
    operation: Operation | None
    path_flow_id: str | None
    key_value: bytes | None
    content_type: str
    body: Body

    @property
    def is_json(self) -> bool:
        """Whether the request declares a JSON body."""
        return says_json(self.content_type)


def says_json(content_type: str) -> bool:
    """Return whether a ``Content-Type`` header declares JSON."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def read_call(scope: Scope, body: Body) -> Call:
    """Read what a request asks for."""
    # The decoded path does not distinguish a%2Fb from a/b, so only the raw path is read.
    raw_path: bytes = scope["raw_path"]
    operation, flow_id = find_operation(raw_path)
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
    return Call(
        method=scope["method"],
        path=raw_path.decode("ascii", errors="replace"),
        operation=operation,
        path_flow_id=flow_id,
        key_value=headers.get(b"x-api-key"),
        content_type=headers.get(b"content-type", b"").decode("latin-1"),
        body=body,
    )


def find_operation(raw_path: bytes) -> tuple[Operation | None, str | None]:
    """
    Return the operation, and the flow ID if the path contains one.

    :param raw_path: the path as sent, percent-encoded
    """
    match raw_path.split(b"/"):
        case [b"", b"api", b"trigger"]:
            return "trigger_by_key", None
        case [b"", b"api", b"public", b"upload"]:
            return "upload", None
        case [b"", b"api", b"flows", segment, b"trigger"]:
            flow_id = decode_segment(segment)
            if flow_id is not None:
                return "trigger_by_path", flow_id
    return None, None


def decode_segment(segment: bytes) -> str | None:
    """
    Decode one path segment.

    :param segment: the segment as sent, percent-encoded
    :return: ``None`` if it cannot be an identifier
    """
    # A bare . or .. is a relative path; only its percent-encoded form is an identifier.
    if segment in {b"", b".", b".."} or _BROKEN_ESCAPE.search(segment):
        return None
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        return None
