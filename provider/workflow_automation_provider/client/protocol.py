"""
The requests and responses of the service, without any I/O.

:mod:`~.responses` interprets the responses.

"Section" refers to the document that describes the service's interface.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.checks import identifier
from workflow_automation_provider.client.rendered_values import check_rendered
from workflow_automation_provider.client.urls import path_segment
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.wording import kind_of

if TYPE_CHECKING:
    from workflow_automation_provider.client.files import File, UploadBody

NO_INPUTS: Mapping[str, Any] = MappingProxyType({})
"""No inputs."""

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

    def stream(self) -> Generator[bytes]:
        """Yield the body; closing the generator closes the files of an upload."""
        if isinstance(self.content, bytes):
            yield self.content
        else:
            yield from self.content.stream()


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


def check_no_operation(base_url: str) -> None:
    """
    Check that a base URL is not that of one of the operations. Follows section 4 of the interface.

    :param base_url: as :func:`~.urls.parse_base_url` returns it
    :raises InvalidRequestError: if it is, with what it should be
    """
    found = _OPERATION_PATH.search(urlsplit(base_url).path)
    if found:
        raise InvalidRequestError(
            f"The base URL ends in {found[0]}, which is the path of an operation: "
            f"expected {base_url.removesuffix(found[0])}, to which the provider adds that path."
        )


def trigger_request(base_url: str, inputs: object, flow_id: object = None) -> Request:
    """
    Build the request that starts a run: by path with a ``flow_id``, otherwise by key.

    Follows sections 4.1 and 4.2 of the interface.

    :param base_url: as :func:`~.urls.parse_base_url` returns it
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

    :param base_url: as :func:`~.urls.parse_base_url` returns it
    :param flow_id: the flow that the files belong to
    """
    url = f"{base_url}/public/upload"
    return Request(Operation.UPLOAD, url, identifier("flow_id", flow_id), body, body.files)
