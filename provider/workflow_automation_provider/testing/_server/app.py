"""The whole service as one ASGI application: the operations, the pages and the control endpoints."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from workflow_automation_provider.testing._server.bodies import ClientLeftError, receive_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from workflow_automation_provider.testing._server.api import Api
    from workflow_automation_provider.testing._server.guard import Guard
    from workflow_automation_provider.testing._server.pages import Pages
    from workflow_automation_provider.testing._server.rules import Rejection

__all__ = ["make_app"]


def make_app(api: Api, pages: Pages, control: list[Route], guard: Guard) -> ASGIApp:
    """Combine the parts of the service."""
    site = Starlette(
        routes=[
            Route("/", pages.index),
            Route("/runs/{run_id}", pages.run),
            *control,
        ]
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        rejection = guard.judge(scope)
        if rejection is not None:
            await _reject(rejection, scope, receive, send)
            return
        raw_path: bytes = scope["raw_path"]
        of_site = raw_path == b"/" or raw_path.startswith((b"/runs/", b"/_control/"))
        # Everything else is treated as an operation, so that a request to a wrong path appears in the
        # journal.
        await (site if of_site else api)(scope, receive, send)

    return app


async def _reject(rejection: Rejection, scope: Scope, receive: Receive, send: Send) -> None:
    # The body is read first, because a client that is still sending may not read the response.
    with contextlib.suppress(ClientLeftError):
        await receive_body(receive, limit=0)
        await JSONResponse({"error": rejection.error}, rejection.status)(scope, receive, send)
