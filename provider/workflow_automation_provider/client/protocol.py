"""
The service's interface as values, without any I/O. What a response means: :mod:`~.responses`.

"Section" refers to the service's interface description.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.exceptions import Accepted, InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.client.files import Element

__all__ = [
    "API_KEY_HEADER",
    "NO_INPUTS",
    "Operation",
    "Request",
    "Response",
    "Run",
    "UploadBody",
    "identifier",
    "is_loopback",
    "parse_base_url",
    "path_segment",
    "trigger_request",
    "upload_request",
]

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})
"""The inputs of a run that needs none."""

API_KEY_HEADER = "X-API-Key"
"""The request header that carries the key (section 5)."""


class Operation(enum.Enum):
    """The three operations of the service (section 4), each with what it does when it is accepted."""

    TRIGGER_BY_PATH = "trigger by path"
    TRIGGER_BY_KEY = "trigger by key"
    UPLOAD = "upload"

    @property
    def takes_key(self) -> bool:
        """Whether the API key goes along (section 5: trigger by path declares none)."""
        return self is not Operation.TRIGGER_BY_PATH

    def consequence(self, accepted: Accepted) -> str:
        """Say what became of a request."""
        return (_OF_AN_UPLOAD if self is Operation.UPLOAD else _OF_A_TRIGGER)[accepted]

    @property
    def look(self) -> str:
        """Say where to look what became of a request whose outcome is not known."""
        where = "the run's files" if self is Operation.UPLOAD else "the workflow's list of runs"
        return f"Look in {where}."


_OF_A_TRIGGER = {
    Accepted.NO: "No run was started.",
    Accepted.MAYBE: "A run may have been started.",
    Accepted.YES: "A run was started, but its run_id is unknown.",
}
_OF_AN_UPLOAD = {
    Accepted.NO: "No files were accepted.",
    Accepted.MAYBE: "The files may have been accepted.",
    Accepted.YES: "The files were accepted.",
}


@dataclass(frozen=True, slots=True)
class Run:
    """
    A run that was started (section 2).

    :param run_id: its identifier, always text, digit for digit as the service wrote it; None where a
        trigger by key was answered without one, or with one that contains the API key
    :param run_link: URL of the run in the application, None where the service gave none, or one that
        contains the API key
    :param flow_id: the flow, None where only the API key identifies it
    :param response: the service's whole JSON response, or a note in its place if it reveals a secret
    """

    run_id: str | None
    run_link: str | None
    flow_id: str | None = None
    response: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class UploadBody:
    """
    The body of one upload request, a stream.

    :param content_length: its length in bytes
    :param pieces: makes its bytes, anew each time it is called
    """

    content_length: int
    pieces: Callable[[], Iterator[bytes]] = field(repr=False)

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces()

    def __len__(self) -> int:
        return self.content_length

    def watched(self, sent: Callable[[int], None]) -> UploadBody:
        """Return the same body, which calls ``sent`` with the length of each piece that was handed over."""

        def pieces() -> Iterator[bytes]:
            for piece in self.pieces():
                yield piece
                sent(len(piece))

        return UploadBody(self.content_length, pieces)


@dataclass(frozen=True, slots=True)
class Request:
    """
    One POST of the interface, whole but for the key, which only the client knows.

    :param flow_id: the flow, None where the API key identifies it
    :param content: the body: a trigger's bytes, or an upload's stream
    :param files: what an upload carries
    """

    operation: Operation
    url: str
    flow_id: str | None
    content: bytes | UploadBody = field(repr=False)
    files: Sequence[Element] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        """Name the request in logs and errors."""
        return f"POST {self.url}"


@dataclass(frozen=True, slots=True)
class Response:
    """
    What came back.

    :param status: HTTP status code
    :param headers: response headers, names in lower case
    :param body: the bytes read
    :param incomplete: why ``body`` is not the whole body ("it was cut off: …"), empty where it is whole
    :param early: it came before the request was handed over whole, and the rest of that was never sent
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    incomplete: str = ""
    early: bool = False


def parse_base_url(text: str, *, allow_http: bool = False) -> str:
    """
    Check and normalise the base address of the service.

    :param text: such as ``https://service.example/api``; a missing scheme means https
    :param allow_http: accept plain http to another machine, where the API key can be read on the way
    :return: the address without a trailing slash
    :raises InvalidRequestError: if it is empty, is not http(s), holds user-info, a query or a fragment, or
        is plain http to anything but loopback while ``allow_http`` is false
    """
    text = text.strip()
    if not text:
        raise InvalidRequestError(
            "The base URL is empty: give the service's address, such as https://service.example/api."
        )
    if "://" not in text:
        text = f"https://{text}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        # Not the error's own words: they quote the address, and it may hold a password.
        raise InvalidRequestError(
            "The base URL is not a valid address: write it as https://host[:port]/api."
        ) from None
    if parts.scheme not in ("http", "https"):
        raise InvalidRequestError(f"The base URL has the scheme {parts.scheme!r}: use https.")
    if "@" in parts.netloc:
        raise InvalidRequestError(
            "The base URL holds a user name or password: the API key is all that is needed, in its own field."
        )
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise InvalidRequestError(
            "The base URL has a query (?) or fragment (#): end it at the path, such as https://service.example/api."
        )
    if not host or any(c.isspace() or not c.isprintable() or c == "\\" for c in text):
        raise InvalidRequestError(
            "The base URL has no host name, or has white space or a backslash in it: write it as "
            "https://host[:port]/api."
        )
    if parts.scheme == "http" and not (allow_http or is_loopback(host)):
        raise InvalidRequestError(
            f"The base URL is plain http to {host}, where the API key can be read on the way: "
            "use https, or set the connection's extra allow_http to true."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` (a name or an address, without brackets) is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def path_segment(name: str, value: object) -> str:
    """
    Percent-encode ``value`` so that it can only ever be one segment of a path.

    :param name: what the value is called in errors
    :raises InvalidRequestError: if it is empty or no text
    """
    segment = quote(identifier(name, value), safe="")
    # Dots are left alone by quote(), but a segment of nothing else would be resolved as "here" or "up".
    return segment if segment.strip(".") else segment.replace(".", "%2E")


def identifier(name: str, value: object) -> str:
    """
    Check a ``flow_id`` or ``run_id``: text, or a whole number, which becomes text.

    :raises InvalidRequestError: if it is empty or of another type; a float is rejected because its digits
        may not be those that the service wrote
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} is {kind_of(value)}: give it as text.")
    if not value.strip():
        raise InvalidRequestError(f"{name} is empty: give the identifier as the service shows it.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{name} is not valid Unicode text: repair its decoding.") from None
    return value


def trigger_request(base_url: str, inputs: object, flow_id: object = None) -> Request:
    """
    Make the request that starts a run: by path (section 4.1) with a ``flow_id``, by key (4.2) without.

    :param base_url: as :func:`parse_base_url` returns it
    :param inputs: mapping of input names to JSON values
    :param flow_id: the flow to start; None lets the API key identify it
    :raises InvalidRequestError: if an argument cannot be sent
    """
    if not isinstance(inputs, Mapping):
        raise InvalidRequestError(
            f"inputs is {kind_of(inputs)}: give a dict of input names and values ({{}} for none)."
        )
    content = b'{"inputs":%b}' % json_values.encode("inputs", inputs)
    if flow_id is None:
        return Request(Operation.TRIGGER_BY_KEY, f"{base_url}/trigger", None, content)
    segment = path_segment("flow_id", flow_id)
    return Request(Operation.TRIGGER_BY_PATH, f"{base_url}/flows/{segment}/trigger", str(flow_id), content)


def upload_request(base_url: str, flow_id: object, body: UploadBody, files: Sequence[Element]) -> Request:
    """
    Make the request that uploads files (section 4.3).

    :param base_url: as :func:`parse_base_url` returns it
    :param flow_id: the flow that the files belong to
    :param body: the body made of ``files``
    """
    return Request(Operation.UPLOAD, f"{base_url}/public/upload", identifier("flow_id", flow_id), body, files)
