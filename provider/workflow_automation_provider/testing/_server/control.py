"""
The control endpoints, for tests in another process, via :class:`~..control_client.ControlClient` or curl.

They require no key: every program that can reach the service may use them, which is why the service listens
on a loopback address by default. Web pages may not: see :mod:`.guard`.

====================  ========  ======================================================================
Path                  Method    Action
====================  ========  ======================================================================
``/_control/health``  GET       returns ``{"status": "ok"}``
``/_control/journal`` GET       returns ``runs``, ``uploads`` and ``requests``
``/_control/faults``  GET       returns ``faults``, each with the number of requests it will still strike
``/_control/faults``  POST      queues a fault: a JSON object with the fields of :class:`~..faults.Fault`,
                                sent as ``application/json``
``/_control/faults``  DELETE    removes all faults
====================  ========  ======================================================================
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from workflow_automation_provider.testing._server.calls import says_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from workflow_automation_provider.testing.faults import Faults
    from workflow_automation_provider.testing.journal import Journal

__all__ = ["Control"]


class Control:
    """The control endpoints of a service."""

    def __init__(self, faults: Faults, journal: Journal) -> None:
        self._faults = faults
        self._journal = journal

    async def health(self, _: Request) -> Response:
        """Report that the service is up."""
        return _json(200, {"status": "ok"})

    async def journal(self, _: Request) -> Response:
        """Return the contents of the journal."""
        return _json(
            200,
            {
                "runs": [vars(run) for run in self._journal.runs()],
                "uploads": [vars(upload) for upload in self._journal.uploads()],
                "requests": [vars(request) for request in self._journal.requests()],
            },
        )

    async def list_faults(self, _: Request) -> Response:
        """Return the faults."""
        return _json(200, {"faults": [scripted.as_json() for scripted in self._faults.all()]})

    async def add_fault(self, request: Request) -> Response:
        """Queue the fault that the request describes."""
        if not says_json(request.headers.get("content-type", "")):
            return _json(
                415,
                {
                    "error": "Content-Type must be application/json: add the header 'Content-Type: application/json'"
                },
            )
        try:
            options = json.loads(await request.body())
            if not isinstance(options, dict) or not isinstance(options.get("kind"), str):
                raise ValueError('The body must be a JSON object with a "kind", such as {"kind": "busy"}')
            scripted = self._faults.add(**options)
        except ValueError as error:
            return _json(400, {"error": str(error)})
        return _json(201, scripted.as_json())

    async def clear_faults(self, _: Request) -> Response:
        """Remove all faults."""
        self._faults.clear()
        return _json(200, {"faults": []})


def _json(status: int, value: object) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
