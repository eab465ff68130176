r"""
Request bodies: received in pieces, parsed strictly, summarized for the journal.

The journal has a summary instead of each string of more than :data:`LONG_STRING` characters:

.. code-block:: json

    {"long_string": {"length": 1368, "sha256": "…", "decoded": {"length": 1024, "sha256": "…"}}}

``length`` is the number of characters, ``sha256`` the hash of the string as UTF-8. ``decoded`` is present
only if the string looks like base64: the number of decoded bytes, and their hash.
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

__all__ = ["LONG_STRING", "Body", "BodyError", "ClientLeftError", "receive_body", "summarize"]

LONG_STRING = 256
"""Characters; longer strings are summarized."""

_HEAD = 64 * 1024
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


class ClientLeftError(Exception):
    """
    The client closed the connection before its body was complete.

    :param size: the bytes that had arrived
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class BodyError(Exception):
    """The body is not what the operation requires."""


@dataclass(frozen=True)
class Body:
    """
    A received body.

    :param size: in bytes
    :param data: the whole body, ``None`` if it is too large to be kept
    :param head: the beginning of the body, at most 64 KiB
    """

    size: int
    sha256: str
    data: bytes | None
    head: bytes

    @cached_property
    def fields(self) -> dict[str, Any]:
        """
        The fields of the body, a JSON object.

        :raises BodyError: if the body is anything else, or too large
        """
        if self.data is None:
            raise BodyError("too large to be parsed")
        try:
            # Decoded here because json.loads also accepts UTF-16 and UTF-32.
            value = json.loads(self.data.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BodyError("not JSON") from error
        if not isinstance(value, dict):
            raise BodyError("not a JSON object")
        return value

    def leading_fields(self) -> dict[str, Any]:
        """Return the complete fields at the beginning of a body that is too large to be parsed."""
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


async def receive_body(receive: Receive, limit: int) -> Body:
    """
    Receive a whole body.

    :param limit: bytes; of a larger body, only the size, the hash and the beginning are kept
    :raises ClientLeftError: if the client closes the connection first
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
