"""uvicorn in a background thread, quick to start and quick to stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import uvicorn

from workflow_automation_provider.testing.connection import Connection

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["BackgroundServer", "listen"]

# A client's pooled connection must go stale by a fault, not by chance.
_KEEP_ALIVE = 300
_LAST_TASKS = 2.0


class _Server(uvicorn.Server):
    """
    Tells when it has started.

    :param config: as uvicorn takes it.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """
        Start listening.

        :param sockets: where to listen.
        """
        await super().startup(sockets)
        self.ready.set()


def listen(host: str, port: int) -> socket.socket:
    """
    Open the listening socket.

    :param host: the address to listen on.
    :param port: the port, 0 for any free one.
    :raises OSError: if the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)


class BackgroundServer:
    """
    Serves an application from a thread of its own until stopped.

    :param app: the application.
    :param sock: the listening socket; closed by :meth:`stop`.
    :param stopping: the event the application is told by that the service stops.
    :param certfile: the certificate for HTTPS.
    :param keyfile: its private key.
    """

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        stopping: asyncio.Event,
        certfile: str | None = None,
        keyfile: str | None = None,
    ) -> None:
        self._sock = sock
        self._stopping = stopping
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            ssl_certfile=certfile,
            ssl_keyfile=keyfile,
        )
        # Here rather than in the thread, so that a bad certificate is the caller's error.
        self._config.load()
        self._thread = threading.Thread(target=self._run, name="workflow-automation-service", daemon=True)

    def start(self) -> None:
        """Start serving; when this returns, requests are answered."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Stop serving; open connections are closed, also those of hanging requests."""
        self._ready.result().call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            # Handed to whoever waits in start().
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        server = _Server(self._config)
        serving = asyncio.ensure_future(server.serve(sockets=[self._sock]))
        starting = asyncio.ensure_future(server.ready.wait())
        await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not server.ready.is_set():
            starting.cancel()
            await serving
        self._ready.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
        # uvicorn's own shutdown takes its time and waits for requests that hang; this does neither.
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        tasks = set(server.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_TASKS)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
