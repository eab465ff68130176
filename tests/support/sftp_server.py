"""
An SFTP server over a folder of this machine.

Nobody needs a password, and each read is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh

# Airflow keeps its stores, whose connections are closed as the process ends: after its log is.
logging.getLogger("asyncssh").setLevel(logging.ERROR)


class SFTPServer:
    """
    A server on a port of its own, in a thread.

    :param folder: what its root is
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.reads: list[int] = []
        """The sizes of what it sent, in bytes."""
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.room: int | None = None
        """How many more bytes fit on its disk, None if there is no limit."""

    @property
    def conn_id(self) -> str:
        """Name the connection to it: Airflow keeps the first store of each."""
        return f"sftp_{self.port}"

    def url(self, path: str) -> str:
        return f"sftp://{self.conn_id}@/{path}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self._listen(), loop).result(30)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._close(server), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)
            loop.close()

    async def _listen(self) -> asyncssh.SSHAcceptor:
        counting = self

        class Login(asyncssh.SSHServer):
            def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
                counting.connections.append(connection)

            def begin_auth(self, username: str) -> bool:
                return False

        class Counting(asyncssh.SFTPServer):
            def __init__(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
                super().__init__(channel, chroot=str(counting.folder).encode())

            def read(self, file_obj: object, offset: int, size: int) -> bytes:
                content: bytes = super().read(file_obj, offset, size)  # type: ignore[assignment]
                counting.reads.append(len(content))
                return content

            def write(self, file_obj: object, offset: int, data: bytes) -> int:
                if counting.room is not None:
                    counting.room -= len(data)
                    if counting.room < 0:
                        raise asyncssh.SFTPFailure("No space left on device")
                return super().write(file_obj, offset, data)  # type: ignore[return-value]

        key = asyncssh.generate_private_key("ssh-ed25519")
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=Login, server_host_keys=[key], sftp_factory=Counting
        )
        self.port = server.get_port()
        return server

    async def _close(self, server: asyncssh.SSHAcceptor) -> None:
        server.close()
        for connection in self.connections:  # or a client would wait for ever
            connection.abort()
        await server.wait_closed()
