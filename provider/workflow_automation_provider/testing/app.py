"""The whole service as one ASGI application: the operations, the pages and the control endpoints."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from workflow_automation_provider.testing.bodies import ClientLeftError, receive_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from workflow_automation_provider.testing.api import Api
    from workflow_automation_provider.testing.control import Control
    from workflow_automation_provider.testing.guard import Guard
    from workflow_automation_provider.testing.pages import Pages
    from workflow_automation_provider.testing.rules import Refusal

__all__ = ["make_app"]


def make_app(api: Api, pages: Pages, control: Control, guard: Guard) -> ASGIApp:
    """
    Put the parts of the service together.

    :param api: the operations.
    :param pages: the pages.
    :param control: the control endpoints.
    :param guard: who is answered.
    """
    site = Starlette(
        routes=[
            Route("/", pages.index),
            Route("/runs/{run_id}", pages.run),
            Route("/_control/health", control.health),
            Route("/_control/journal", control.journal),
            Route("/_control/faults", control.list_faults, methods=["GET"]),
            Route("/_control/faults", control.add_fault, methods=["POST"]),
            Route("/_control/faults", control.clear_faults, methods=["DELETE"]),
        ]
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        refusal = guard.judge(scope)
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
            return
        raw_path: bytes = scope["raw_path"]
        of_site = raw_path == b"/" or raw_path.startswith((b"/runs/", b"/_control/"))
        # All else counts as meant for the operations, so that a call to a wrong address is in the journal.
        await (site if of_site else api)(scope, receive, send)

    return app


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    # The body is read first, for a client that is still sending may not look at the answer.
    with contextlib.suppress(ClientLeftError):
        await receive_body(receive, limit=0)
        await JSONResponse({"error": refusal.error}, refusal.status)(scope, receive, send)
