"""Airflow's callback endpoint, for tests that run without Airflow's API server."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from workflow_automation_provider.testing._server.server import BackgroundServer, listen

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["CallbackEndpoint"]

# Imported only when it starts, and by its name: it is not part of the local service, and imports Airflow.
_MODULE = "workflow_automation_provider.plugins.callback_endpoint"


class CallbackEndpoint:
    """
    The endpoint that flows call back to, on a local address; a context manager.

    It is the one that Airflow's API server mounts, and writes to the metadata database of this process.

    :param host: the address to listen on
    :param port: 0 for any free port
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self._server: BackgroundServer | None = None

    @property
    def url(self) -> str:
        """The base URL for the connection's ``callback_base_url``; it has a port once the endpoint was started."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """
        Start serving; once this returns, requests are served.

        :raises OSError: if the port is in use
        :raises RuntimeError: if the endpoint is running already
        """
        if self._server is not None:
            raise RuntimeError("The endpoint is running already: stop it before starting it again")
        app = importlib.import_module(_MODULE).app
        sock = listen(self.host, self.port)
        self.port = sock.getsockname()[1]
        server = BackgroundServer(app, sock, asyncio.Event())
        server.start()
        self._server = server

    def stop(self) -> None:
        """Stop serving; does nothing if the endpoint is not running."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
