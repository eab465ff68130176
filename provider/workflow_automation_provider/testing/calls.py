"""What a request asks for: its operation, its flow and its key, read from the bytes that were sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from starlette.types import Scope

    from workflow_automation_provider.testing.bodies import Body
    from workflow_automation_provider.testing.journal import Operation

__all__ = ["Call", "decode_segment", "find_operation", "read_call", "says_json"]

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class Call:
    """
    A request, received and not yet judged.

    :param method: the HTTP method.
    :param path: the path as sent, still percent-encoded.
    :param operation: the operation the path stands for, ``None`` if none.
    :param path_flow_id: the flow named by the path.
    :param key_value: what came in ``X-API-Key``, ``None`` if the header is missing.
    :param content_type: what came in ``Content-Type``.
    :param body: the body.
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
        """Whether the request says that its body is JSON."""
        return says_json(self.content_type)


def says_json(content_type: str) -> bool:
    """
    Tell whether a ``Content-Type`` is that of JSON.

    :param content_type: the header.
    """
    return content_type.partition(";")[0].strip().lower() == "application/json"


def read_call(scope: Scope, body: Body) -> Call:
    """
    Read what a request asks for.

    :param scope: the ASGI scope.
    :param body: the body that was received.
    """
    # The decoded path cannot tell a%2Fb from a/b, so only the raw one is looked at.
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
    Find the operation, and the flow if the path names one.

    :param raw_path: the path as sent, percent-encoded.
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
    Decode one path segment, ``None`` if it cannot be an identifier.

    :param segment: the segment as sent, percent-encoded.
    """
    # A bare . or .. means a place in the path, not a name; encoded it is taken as a name.
    if segment in {b"", b".", b".."} or _BROKEN_ESCAPE.search(segment):
        return None
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        return None
