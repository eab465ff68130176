"""
The control endpoints, for tests in another process, via :class:`~..control_client.ControlClient` or curl.

They require no key: every program that can reach the service may use them, which is why the service listens
on a loopback address by default. Web pages may not: see :mod:`.guard`.

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

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from workflow_automation_provider.testing._server.calls import says_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from workflow_automation_provider.testing.callbacks import Callbacks, ScriptedCallback
    from workflow_automation_provider.testing.faults import Faults, ScriptedFault
    from workflow_automation_provider.testing.journal import Journal

__all__ = ["Control"]


class Control:
    """The control endpoints of a service."""

    def __init__(self, faults: Faults, callbacks: Callbacks, journal: Journal) -> None:
        self._faults = faults
        self._callbacks = callbacks
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
                "callbacks": [vars(callback) for callback in self._journal.callbacks()],
                "worked": [vars(work) for work in self._journal.worked()],
            },
        )

    async def list_faults(self, _: Request) -> Response:
        """Return the faults."""
        return _json(200, {"faults": [scripted.as_json() for scripted in self._faults.all()]})

    async def add_fault(self, request: Request) -> Response:
        """Queue the fault that the request describes."""
        return await self._add(request, self._add_fault)

    def _add_fault(self, options: dict[str, Any]) -> ScriptedFault:
        if not isinstance(options.get("kind"), str):
            raise ValueError('The body must be a JSON object with a "kind", such as {"kind": "busy"}')
        return self._faults.add(**options)

    async def clear_faults(self, _: Request) -> Response:
        """Remove all faults."""
        self._faults.clear()
        return _json(200, {"faults": []})

    async def list_callbacks(self, _: Request) -> Response:
        """Return the callbacks."""
        return _json(200, {"callbacks": [scripted.as_json() for scripted in self._callbacks.all()]})

    async def add_callback(self, request: Request) -> Response:
        """Queue the callback that the request describes."""
        return await self._add(request, lambda options: self._callbacks.add(**options))

    async def clear_callbacks(self, _: Request) -> Response:
        """Remove all callbacks."""
        self._callbacks.clear()
        return _json(200, {"callbacks": []})

    async def _add(
        self, request: Request, add: Callable[[dict[str, Any]], ScriptedFault | ScriptedCallback]
    ) -> Response:
        if not says_json(request.headers.get("content-type", "")):
            return _json(
                415,
                {
                    "error": "Content-Type must be application/json: add the header 'Content-Type: application/json'"
                },
            )
        try:
            options = json.loads(await request.body())
            if not isinstance(options, dict):
                raise ValueError("The body must be a JSON object of options")
            scripted = add(options)
        except ValueError as error:
            return _json(400, {"error": str(error)})
        return _json(201, scripted.as_json())


def _json(status: int, value: object) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")
