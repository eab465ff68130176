"""
The control endpoints, for tests in another process, via :class:`~..control_client.ControlClient` or curl.

They require no key: every program that can reach the service may use them, which is why the service listens
on a loopback address by default. Web pages may not: see :mod:`.app`.

=======================  ========  ===================================================================
Path                     Method    Action
=======================  ========  ===================================================================
``/_control/health``     GET       returns ``{"status": "ok"}``
``/_control/journal``    GET       returns ``runs``, ``uploads``, ``requests``, ``callbacks`` and ``worked``
``/_control/faults``     GET       returns ``faults``, each with the number of requests it will still strike
``/_control/faults``     POST      queues a fault: a JSON object with the fields of :class:`~..faults.Fault`,
                                   sent as ``application/json``
``/_control/faults``     DELETE    removes all faults
``/_control/callbacks``  GET       returns ``callbacks``, each with the number of runs it will still apply to
``/_control/callbacks``  POST      queues a callback: a JSON object with the fields of
                                   :class:`~..callbacks.Callback`, sent as ``application/json``
``/_control/callbacks``  DELETE    removes all callbacks
=======================  ========  ===================================================================
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from workflow_automation_provider.testing._server.calls import says_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from workflow_automation_provider.testing.callbacks import Callbacks
    from workflow_automation_provider.testing.faults import Faults
    from workflow_automation_provider.testing.journal import Journal

__all__ = ["control_routes"]


def control_routes(faults: Faults, callbacks: Callbacks, journal: Journal) -> list[Route]:
    """Return the control endpoints of a service."""
    queues: dict[str, Faults | Callbacks] = {"faults": faults, "callbacks": callbacks}
    return [
        Route("/_control/health", _health),
        Route("/_control/journal", functools.partial(_journal, journal)),
        *(
            Route(
                f"/_control/{name}", functools.partial(_queue, name, queue), methods=["GET", "POST", "DELETE"]
            )
            for name, queue in queues.items()
        ),
    ]


async def _health(_: Request) -> Response:
    return _json(200, {"status": "ok"})


async def _journal(journal: Journal, _: Request) -> Response:
    kinds = ("runs", "uploads", "requests", "callbacks", "worked")
    return _json(200, {kind: [vars(record) for record in getattr(journal, kind)()] for kind in kinds})


async def _queue(name: str, queue: Faults | Callbacks, request: Request) -> Response:
    if request.method == "POST":
        return await _add(queue, request)
    if request.method == "DELETE":
        queue.clear()
    return _json(200, {name: [scripted.as_json() for scripted in queue.all()]})


async def _add(queue: Faults | Callbacks, request: Request) -> Response:
    if not says_json(request.headers.get("content-type", "")):
        hint = "Content-Type must be application/json: add the header 'Content-Type: application/json'"
        return _json(415, {"error": hint})
    try:
        options = json.loads(await request.body())
        if not isinstance(options, dict):
            raise ValueError("The body must be a JSON object of options")
        return _json(201, queue.add(**options).as_json())
    except (TypeError, ValueError) as error:  # the first where the kind of a fault is missing
        return _json(400, {"error": str(error)})


def _json(status: int, value: object) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
