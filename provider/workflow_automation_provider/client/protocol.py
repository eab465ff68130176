"""
The requests and responses of the service, without any I/O.

:mod:`~.responses` interprets the responses.

"Section" refers to the document that describes the service's interface.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import httpx

from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.checks import (
    check_rendered,
    identifier,
    kind_of,
    path_segment,
)
from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.client.files import File, UploadBody

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})
"""No inputs."""

_EXAMPLE = "https://service.example/api"

# The end of a URL from which an operation's path, or its beginning, was not removed. "/flows" and a
# name count only after "/api": elsewhere they may belong to the base URL.
_OPERATION_PATH = re.compile(
    r"((/flows/[^/]+)?/trigger|/flows|(?<=/api)/flows/[^/]+|/public/upload)$"
)

_TRIGGER_BODY = b'{"inputs":%b}'


class Operation(enum.Enum):
    """The three operations of the service. Follows section 4 of the interface."""

    TRIGGER_BY_PATH = "path"
    TRIGGER_BY_KEY = "key"
    UPLOAD = "upload"

    @property
    def takes_key(self) -> bool:
        """Whether the request carries the API key. Follows section 5 of the interface."""
        return self is not Operation.TRIGGER_BY_PATH


@dataclass(frozen=True, slots=True)
class Run:
    """
    A run that was started.

    Follows section 2 of the interface.

    :param run_id: always text, exactly as the service wrote it; None if the response to a trigger
        by key has none, or one that contains the API key
    :param run_link: URL of the run in the application, None if the response has none, or one that
        contains a secret
    :param flow_id: the flow, None if only the API key identifies it
    :param response: the whole JSON response, as text if Airflow cannot store it, or a note instead
        if it reveals a secret
    """

    run_id: str | None
    run_link: str | None
    flow_id: str | None = None
    response: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """
    One POST request, complete except for the API key, which only the client knows.

    :param flow_id: the flow, None if the API key identifies it
    :param content: the body: bytes for a trigger, a stream for an upload
    :param files: the elements of an upload: files, and the JSON of mappings
    """

    operation: Operation
    url: str
    flow_id: str | None
    content: bytes | UploadBody = field(repr=False)
    files: Sequence[File | bytes] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        """The name of the request in logs and errors."""
        return f"POST {self.url}"


class Response(NamedTuple):
    """
    The response to a request.

    :param headers: names in lower case
    :param body: the bytes that were read
    :param error: what ended the body before its end, None if it is whole
    :param early: whether it arrived before the request was sent completely, and the rest was never
        sent
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    error: Exception | None = None
    early: bool = False


def parse_base_url(
    text: str, *, allow_http: bool = False, name: str = "The base URL", example: str = _EXAMPLE
) -> str:
    """
    Validate and normalize a base URL.

    :param text: such as ``https://service.example/api``; a missing scheme means https
    :param allow_http: whether to allow plain http to another machine
    :param name: what it is called in errors, which show an ``example``
    :return: the URL without a trailing slash
    :raises InvalidRequestError: if it is empty, is not http(s), contains user info, a query or a
        fragment, or is plain http to a host other than loopback without ``allow_http``
    """
    text = text.strip()
    if not text:
        raise InvalidRequestError(f"{name} is empty: expected one such as {example}.")
    if "://" not in text:
        text = f"https://{text}"

    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
        httpx.URL(text)
    except (ValueError, httpx.InvalidURL):
        # Without the original message, which quotes the URL: it may contain a password.
        raise InvalidRequestError(
            f"{name} is not a valid URL: expected one such as {example}."
        ) from None

    problem = _problem_of(text, parts, host, example)
    if not problem and parts.scheme == "http" and not (allow_http or is_loopback(host or "")):
        problem = (
            f"is plain http to {host}, where the API key or a callback's token can be read in "
            "transit: use https, or set the connection's extra allow_http to true"
        )

    if problem:
        raise InvalidRequestError(f"{name} {problem}.")

    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _problem_of(text: str, parts: SplitResult, host: str | None, example: str) -> str:
    """Return why a URL is no base URL, empty if it is one."""
    if parts.scheme not in ("http", "https"):
        return f"has the scheme {parts.scheme!r}: use https"

    if "@" in parts.netloc:
        return (
            "contains a user name or password: remove it and the @ after it. The API key has a "
            "field of its own, and a gateway's credentials go into the extra headers"
        )

    if "?" in text or "#" in text:
        return f"has a query (?) or fragment (#): it must end with the path, such as {example}"

    has_wrong_char = any(char.isspace() or not char.isprintable() or char == "\\" for char in text)
    if not host or has_wrong_char:
        return (
            "has no host name, or contains whitespace or a backslash: "
            f"expected one such as {example}"
        )

    return ""


def check_no_operation(base_url: str) -> None:
    """
    Check that a base URL is not that of one of the operations. Follows section 4 of the interface.

    :param base_url: as :func:`parse_base_url` returns it
    :raises InvalidRequestError: if it is, with what it should be
    """
    found = _OPERATION_PATH.search(urlsplit(base_url).path)
    if found:
        raise InvalidRequestError(
            f"The base URL ends in {found[0]}, which is the path of an operation: "
            f"expected {base_url.removesuffix(found[0])}, to which the provider adds that path."
        )


def base_url_of(target: str, url: str) -> str:
    """
    Return the base URL of the operation that another URL is that of, empty if it is another one.

    :param target: such as where a redirect leads to
    :param url: that of a request
    :raises ValueError: if the base URL cannot be used
    """
    path = _OPERATION_PATH.search(urlsplit(url).path)
    if path is None or not target.endswith(path[0]):
        return ""
    return parse_base_url(target.removesuffix(path[0]))


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL, in one form however they are written."""
    parts = httpx.URL(url)
    return f"{parts.scheme}://{parts.netloc.decode('ascii')}"


def is_loopback(host: str) -> bool:
    """Return whether ``host`` (a name or an address, without brackets) is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def trigger_request(base_url: str, inputs: object, flow_id: object = None) -> Request:
    """
    Build the request that starts a run: by path with a ``flow_id``, otherwise by key.

    Follows sections 4.1 and 4.2 of the interface.

    :param base_url: as :func:`parse_base_url` returns it
    :param inputs: mapping of input names to JSON values
    :param flow_id: the flow to start; None for the one that the API key identifies
    :raises InvalidRequestError: if an argument cannot be sent
    """
    if not isinstance(inputs, Mapping):
        check_rendered("inputs", inputs)
        raise InvalidRequestError(
            f"inputs is {kind_of(inputs)}: expected a dict of input names and values "
            "({} for none)."
        )

    content = _TRIGGER_BODY % json_values.encode("inputs", inputs)
    if flow_id is None:
        return Request(Operation.TRIGGER_BY_KEY, f"{base_url}/trigger", None, content)

    flow = identifier("flow_id", flow_id)
    url = f"{base_url}/flows/{path_segment(flow)}/trigger"
    return Request(Operation.TRIGGER_BY_PATH, url, flow, content)


def with_inputs(request: Request, encoded: bytes) -> Request:
    """
    Return a trigger request with other inputs.

    :param request: as :func:`trigger_request` returns it
    :param encoded: the inputs, as :func:`~.json_values.encode` returns them
    """
    return replace(request, content=_TRIGGER_BODY % encoded)


def upload_request(base_url: str, flow_id: object, body: UploadBody) -> Request:
    """
    Build the request that uploads files, which may be sent twice.

    Follows section 4.3 of the interface.

    :param base_url: as :func:`parse_base_url` returns it
    :param flow_id: the flow that the files belong to
    """
    url = f"{base_url}/public/upload"
    return Request(Operation.UPLOAD, url, identifier("flow_id", flow_id), body, body.files)
