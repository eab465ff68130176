r"""
Request bodies: received piece by piece, parsed strictly, described briefly.

A string of more than :data:`LONG_STRING` characters is *described* in the journal instead of being copied:

.. code-block:: json

    {"long_string": {"length": 1368, "sha256": "…", "decoded": {"length": 1024, "sha256": "…"}}}

``length`` and ``sha256`` are of the string (characters; its UTF-8 bytes). ``decoded`` is there only if the
string looks like base64, and is of the bytes it stands for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Receive

__all__ = ["LONG_STRING", "PARSE_LIMIT", "Body", "BodyError", "ClientLeftError", "describe", "receive_body"]

PARSE_LIMIT = 64 * 1024 * 1024
"""Bytes: larger bodies are only counted and hashed."""

LONG_STRING = 256
"""Characters: longer strings are described, not kept."""

_HEAD = 64 * 1024
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


class ClientLeftError(Exception):
    """
    The client closed the connection before its body was complete.

    :param size: the bytes that had arrived.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class BodyError(Exception):
    """The body is not what the operation asks for."""


@dataclass(frozen=True)
class Body:
    """
    A received body.

    :param size: its bytes.
    :param sha256: its SHA-256.
    :param data: the body, ``None`` if it is too large to be kept.
    :param head: its beginning.
    """

    size: int
    sha256: str
    data: bytes | None
    head: bytes

    @cached_property
    def fields(self) -> dict[str, Any]:
        """
        The fields of the JSON object that the body is.

        :raises BodyError: if it is anything else, or too large.
        """
        if self.data is None:
            raise BodyError("too large to be parsed")
        try:
            # Decoded here because json would also take UTF-16 and UTF-32.
            value = json.loads(self.data.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BodyError("not JSON") from error
        if not isinstance(value, dict):
            raise BodyError("not a JSON object")
        return value

    def leading_fields(self) -> dict[str, Any]:
        """Return the fields that come, complete, at the beginning of a body too large to be parsed."""
        decoder = json.JSONDecoder()
        text = self.head.decode("utf-8", errors="replace")
        fields: dict[str, Any] = {}
        field = re.compile(r"\s*[{,]\s*(\"(?:[^\"\\]|\\.)*\")\s*:\s*")
        end = 0
        while match := field.match(text, end):
            try:
                value, end = decoder.raw_decode(text, match.end())
                fields[json.loads(match[1])] = value
            except (ValueError, RecursionError):
                break
        return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


async def receive_body(receive: Receive, limit: int = PARSE_LIMIT) -> Body:
    """
    Receive a whole body, keeping no more than a limit of it in memory.

    :param receive: the ASGI callable.
    :param limit: above so many bytes only the size, the hash and the beginning are kept.
    :raises ClientLeftError: if the client closes the connection first.
    """
    digest = hashlib.sha256()
    kept = bytearray()
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError(size)
        chunk: bytes = message.get("body", b"")
        digest.update(chunk)
        size += len(chunk)
        if size <= limit:
            kept += chunk
        elif len(kept) < _HEAD:
            kept += chunk[: _HEAD - len(kept)]
        else:
            del kept[_HEAD:]
        if not message.get("more_body", False):
            break
    return Body(size, digest.hexdigest(), bytes(kept) if size <= limit else None, bytes(kept[:_HEAD]))


def describe(value: Any) -> Any:
    """
    Return a JSON value with its long strings described.

    :param value: any JSON value.
    """
    if isinstance(value, str) and len(value) > LONG_STRING:
        return {"long_string": _describe_string(value)}
    if isinstance(value, list):
        return [describe(element) for element in value]
    if isinstance(value, dict):
        return {name: describe(element) for name, element in value.items()}
    return value


def _describe_string(text: str) -> dict[str, Any]:
    description: dict[str, Any] = _fingerprint(text.encode("utf-8", errors="surrogatepass"))
    description["length"] = len(text)
    if len(text) % 4 == 0 and _BASE64.fullmatch(text):
        description["decoded"] = _fingerprint(base64.b64decode(text))
    return description


def _fingerprint(data: bytes) -> dict[str, Any]:
    return {"length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
