"""A way to the service that stops halfway, so that a kill finds an upload there."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK = 64 * 1024


class SlowLane:
    """
    Forwards connections to the service.

    :param port: the service's port
    :param limit: how many bytes go towards the service before it is opened
    """

    def __init__(self, port: int, limit: int) -> None:
        self.opened = threading.Event()
        self.sent = 0
        self._limit = limit
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Take no more connections."""
        self.opened.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(_CHUNK):
                sink.sendall(data)
                if counted:
                    self.sent += len(data)
                    if self.sent >= self._limit:
                        self.opened.wait()
        except OSError:
            pass
        finally:
            for sock in (source, sink):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
