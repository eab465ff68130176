"""
What a request asks for: operation, flow and key, read from the raw bytes, and its body.

A body is received in pieces and parsed strictly; the journal has a summary of its long strings, as
in :class:`.Upload`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from workflow_automation_provider.testing.journal import Operation

LONG_STRING = 256
"""Characters; longer strings are summarized."""

MAX_PARSED = 64 * 1024 * 1024
"""Bytes; a larger body is counted and hashed, not parsed."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Body:
    """
    A received body.

    :param size: in bytes
    :param data: the whole body, ``None`` if it is too large to be parsed
    :param is_whole: false if the client closed the connection before its end
    """

    size: int
    sha256: str
    data: bytes | None
    is_whole: bool = True

    @cached_property
    def fields(self) -> dict[str, Any]:
        """
        The fields of the body, a JSON object.

        :raises HTTPException: if the body is anything else, or too large
        """
        if self.data is None:
            raise HTTPException(413, "the body is too large for the local service")

        try:
            # Decoded here because json.loads also accepts UTF-16 and UTF-32.
            value = json.loads(self.data.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "the body is not JSON") from error

        if not isinstance(value, dict):
            raise HTTPException(400, "the body is not a JSON object")

        return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


async def receive_body(receive: Receive) -> Body:
    """Receive a body to its end, or until the client leaves."""
    digest = hashlib.sha256()
    kept = bytearray()
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return Body(size, "", None, is_whole=False)

        chunk: bytes = message.get("body", b"")
        digest.update(chunk)
        size += len(chunk)
        is_parsed = size <= MAX_PARSED
        if is_parsed:
            kept += chunk
        else:
            kept.clear()

        if not message.get("more_body", False):
            return Body(size, digest.hexdigest(), bytes(kept) if is_parsed else None)


def summarize(value: Any) -> Any:
    """Return a JSON value with its long strings summarized."""
    if isinstance(value, str) and len(value) > LONG_STRING:
        return {"long_string": _summarize_string(value)}
    if isinstance(value, list):
        return [summarize(element) for element in value]
    if isinstance(value, dict):
        return {name: summarize(element) for name, element in value.items()}
    return value


def _summarize_string(text: str) -> dict[str, Any]:
    summary: dict[str, Any] = _fingerprint(text.encode("utf-8", errors="surrogatepass"))
    summary["length"] = len(text)
    if len(text) % 4 == 0 and _BASE64.fullmatch(text):
        summary["decoded"] = _fingerprint(base64.b64decode(text))
    return summary


def _fingerprint(data: bytes) -> dict[str, Any]:
    return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}


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
    """Return the operation, and the flow ID if the path, still percent-encoded, contains one."""
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
    """Decode one percent-encoded segment of a path, ``None`` if it cannot be an identifier."""
    # A bare . or .. is a relative path; only its percent-encoded form is an identifier.
    if segment in {b"", b".", b".."} or _BROKEN_ESCAPE.search(segment):
        return None
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        return None
