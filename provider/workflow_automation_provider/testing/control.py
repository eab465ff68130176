"""
The control endpoints, for a test in another process; :class:`.control_client.ControlClient` speaks to them.

They ask for no key: every program that reaches the service may script it, which is made to listen on a loopback
address. Web pages may not: :mod:`.guard`.

====================  ========  ======================================================================
Path                  Method    What it does
====================  ========  ======================================================================
``/_control/health``  GET       answers ``{"status": "ok"}``
``/_control/journal`` GET       answers ``runs``, ``uploads`` and ``requests``
``/_control/faults``  GET       answers ``faults``, with how many more requests each will strike
``/_control/faults``  POST      queues a fault: a JSON object with the fields of :class:`.faults.Fault`, sent as
                                ``application/json``
``/_control/faults``  DELETE    forgets all the faults
====================  ========  ======================================================================
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from workflow_automation_provider.testing.calls import says_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from workflow_automation_provider.testing.faults import Faults
    from workflow_automation_provider.testing.journal import Journal

__all__ = ["Control"]


class Control:
    """
    The control endpoints of a service.

    :param faults: the service's faults.
    :param journal: the service's journal.
    """

    def __init__(self, faults: Faults, journal: Journal) -> None:
        self._faults = faults
        self._journal = journal

    async def health(self, _: Request) -> Response:
        """Answer that the service is up."""
        return _answer(200, {"status": "ok"})

    async def journal(self, _: Request) -> Response:
        """Answer what is in the journal."""
        return _answer(
            200,
            {
                "runs": [vars(run) for run in self._journal.runs()],
                "uploads": [vars(upload) for upload in self._journal.uploads()],
                "requests": [vars(request) for request in self._journal.requests()],
            },
        )

    async def list_faults(self, _: Request) -> Response:
        """Answer the faults."""
        return _answer(200, {"faults": [scripted.as_json() for scripted in self._faults.all()]})

    async def add_fault(self, request: Request) -> Response:
        """
        Queue a fault.

        :param request: the request, a fault as JSON.
        """
        if not says_json(request.headers.get("content-type", "")):
            return _answer(415, {"error": "send a fault with the Content-Type application/json"})
        try:
            options = json.loads(await request.body())
            if not isinstance(options, dict) or not isinstance(options.get("kind"), str):
                raise ValueError("a fault is a JSON object with a kind")
            scripted = self._faults.add(**options)
        except ValueError as error:
            return _answer(400, {"error": str(error)})
        return _answer(201, scripted.as_json())

    async def clear_faults(self, _: Request) -> Response:
        """Forget all the faults."""
        self._faults.clear()
        return _answer(200, {"faults": []})


def _answer(status: int, value: object) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
