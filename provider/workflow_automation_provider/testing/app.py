"""The whole service as one ASGI application: the operations, the pages and the control endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from workflow_automation_provider.testing.api import Api
    from workflow_automation_provider.testing.control import Control
    from workflow_automation_provider.testing.pages import Pages


def make_app(api: Api, pages: Pages, control: Control) -> ASGIApp:
    """
    Put the parts of the service together.

    :param api: the operations.
    :param pages: the pages.
    :param control: the control endpoints.
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
        raw_path: bytes = scope["raw_path"]
        of_site = raw_path == b"/" or raw_path.startswith((b"/runs/", b"/_control/"))
        # All else counts as meant for the operations, so that a call to a wrong address is in the journal.
        await (site if of_site else api)(scope, receive, send)

    return app
