"""
The whole service as one ASGI application, which keeps web pages out.

Every web page that is open in a browser can send requests to a loopback address of the same
machine. Two rules keep such a page out:

- The ``Host`` header must be a loopback name or address, or one that the service was given. A page
  can make its own name resolve to 127.0.0.1 after it was loaded (DNS rebinding), but its requests
  still carry that name.
- A control endpoint acts only on ``DELETE`` or ``application/json``, which a browser sends to
  another site only if that site allows it. This one never does.

The control endpoints are for tests in another process, via :class:`~..control_client.ControlClient`
or curl: ``/_control/`` and ``health``, ``journal``, ``faults`` or ``callbacks``. The last two are
listed by GET, added to by POST, and removed by DELETE. They require no key: every program that can
reach the service may use them, which is why the service listens on a loopback address by default.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.routing import Route

from workflow_automation_provider.testing._server import pages
from workflow_automation_provider.testing._server.calls import receive_body, says_json
from workflow_automation_provider.testing._server.responses import json_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from workflow_automation_provider.testing._server.api import Api
    from workflow_automation_provider.testing.callbacks import Callbacks
    from workflow_automation_provider.testing.faults import Faults
    from workflow_automation_provider.testing.journal import Journal, Record

_HOST = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+)(?::[0-9]+)?")
_EVERY_ADDRESS = {"", "0.0.0.0", "::"}  # noqa: S104 - only compared
_FOREIGN = (
    "the Host header is not localhost, a loopback address or the address that this service listens "
    "on; web pages are kept out this way. Use one of these, or start the service with public_url "
    "(--public-url) set to the URL that clients use"
)


class Guard:
    """
    Decide for which ``Host`` headers the service responds.

    :param host: the address or name that the service listens on
    :param public_url: another URL that clients use
    """

    def __init__(self, host: str, public_url: str | None = None) -> None:
        public = urlsplit(public_url or "").hostname or ""
        self._everywhere = host in _EVERY_ADDRESS
        self._known = {"localhost", *map(_plain, {host, public} - _EVERY_ADDRESS)}

    def answers_to(self, host: str) -> bool:
        """Return whether a ``Host`` header names this service, with any port."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False

        name = _plain(match[1].strip("[]"))
        if name in self._known:
            return True

        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False

        # A service that listens on every address may be reached by any; and no page can redirect an
        # address.
        return address.is_loopback or self._everywhere


def _plain(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.rstrip(".").lower()


def make_app(
    api: Api, faults: Faults, callbacks: Callbacks, journal: Journal, guard: Guard
) -> ASGIApp:
    """Combine the parts of the service."""
    site = _make_site({"faults": faults, "callbacks": callbacks}, journal)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Only HTTP/1.0 allows a request without Host, and no browser sends one.
        host = dict(scope["headers"]).get(b"host")
        raw_path: bytes = scope["raw_path"]
        if host is not None and not guard.answers_to(host.decode("latin-1")):
            # The body is read first, because a client that is still sending may not read the
            # response.
            await receive_body(receive)
            await json_response(421, {"error": _FOREIGN})(scope, receive, send)
        elif raw_path == b"/" or raw_path.startswith((b"/runs/", b"/_control/")):
            await site(scope, receive, send)
        else:
            # An operation, so that a request to a wrong path appears in the journal.
            await api(scope, receive, send)

    return app


def _make_site(queues: Mapping[str, Faults | Callbacks], journal: Journal) -> ASGIApp:
    """Return the pages and the control endpoints."""
    queue = functools.partial(_queue, queues)
    return Starlette(
        routes=[
            Route("/", functools.partial(pages.index, journal)),
            Route("/runs/{run_id}", functools.partial(pages.run, journal)),
            Route("/_control/health", _health),
            Route("/_control/journal", functools.partial(_journal, journal)),
            Route("/_control/{name}", queue, methods=["GET", "POST", "DELETE"]),
        ]
    )


async def _health(_: Request) -> Response:
    return json_response(200, {"status": "ok"})


async def _journal(journal: Journal, _: Request) -> Response:
    kinds: dict[str, Sequence[Record]] = {
        "runs": journal.runs(),
        "uploads": journal.uploads(),
        "requests": journal.requests(),
        "callbacks": journal.callbacks(),
        "worked": journal.worked(),
    }
    return json_response(
        200, {kind: [vars(record) for record in records] for kind, records in kinds.items()}
    )


async def _queue(queues: Mapping[str, Faults | Callbacks], request: Request) -> Response:
    name = request.path_params["name"]
    queue = queues.get(name)
    if queue is None:
        return json_response(404, {"error": "no such path"})
    if request.method == "POST":
        return await _add(queue, request)
    if request.method == "DELETE":
        queue.clear()
    return json_response(200, {name: [scripted.as_json() for scripted in queue.all()]})


async def _add(queue: Faults | Callbacks, request: Request) -> Response:
    if not says_json(request.headers.get("content-type", "")):
        hint = (
            "Content-Type must be application/json: add the header 'Content-Type: application/json'"
        )
        return json_response(415, {"error": hint})

    try:
        options = json.loads(await request.body())
        if not isinstance(options, dict):
            raise ValueError("The body must be a JSON object of options")
        return json_response(201, queue.add(**options).as_json())
    except (TypeError, ValueError) as error:  # the first where the kind of a fault is missing
        return json_response(400, {"error": str(error)})
