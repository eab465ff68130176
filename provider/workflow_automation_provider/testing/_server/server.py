"""uvicorn in a background thread, quick to start and quick to stop."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from workflow_automation_provider.testing._server.responses import ClientConnection

if TYPE_CHECKING:
    from starlette.types import ASGIApp

# A pooled connection of a client must only become stale through a fault.
_KEEP_ALIVE = 300
_LAST_TASKS = 2.0
_PATIENCE = 0.1


def listen(host: str, port: int) -> socket.socket:
    """
    Open the listening socket.

    :param port: 0 for any free port
    :raises OSError: if the port is in use
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server((host, port), family=family, backlog=512)
    # What it accepts inherits it. Otherwise, each response on a kept connection takes 40 ms
    # (Nagle's algorithm).
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


class BackgroundServer:
    """
    Serve an application in its own thread until stopped.

    :param sock: the listening socket; :meth:`stop` closes it
    :param stopping: set by :meth:`stop`, so that the application ends its waits
    :param certfile: the certificate, to serve HTTPS
    :param keyfile: the certificate's private key, unless it is in ``certfile``
    :raises OSError: if one of these files cannot be used, with its name
    """

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        stopping: asyncio.Event,
        certfile: str | os.PathLike[str] | None = None,
        keyfile: str | os.PathLike[str] | None = None,
    ) -> None:
        self._sock = sock
        self._stopping = stopping
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._config = uvicorn.Config(
            app,
            http=ClientConnection,
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
        # Here rather than in the thread, so that an invalid certificate raises in the caller.
        _load(self._config, certfile, keyfile)
        self._thread = threading.Thread(
            target=self._run, name="workflow-automation-service", daemon=True
        )

    def start(self) -> None:
        """Start serving; once this returns, requests are served."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Stop serving; open connections are closed, including those of hanging requests."""
        self._ready.result().call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            # Raised in start(), which waits for it.
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        server = uvicorn.Server(self._config)
        server.lifespan = self._config.lifespan_class(self._config)
        await server.startup(sockets=[self._sock])
        self._ready.set_result(asyncio.get_running_loop())
        await self._stopping.wait()

        # uvicorn's own shutdown is slow, and waits for hanging requests.
        for listener in server.servers:
            listener.close()

        for connection in list(server.server_state.connections):
            connection.transport.abort()

        tasks = set(server.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_TASKS)

        await _end_all_tasks()


def _load(config: uvicorn.Config, *files: str | os.PathLike[str] | None) -> None:
    """
    Load a configuration.

    :param files: its certificate and private key
    :raises OSError: if one of them cannot be used, with its name
    """
    # The error of the ssl module names no file.
    for file in files:
        if file:
            Path(file).open("rb").close()

    try:
        config.load()
    except ssl.SSLError as error:
        error.filename = files[0]
        raise


async def _end_all_tasks() -> None:
    """Cancel what the application began in the background."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    while tasks:
        # More than once: a connection that is being opened may miss the first.
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_PATIENCE)
