"""A way to the service that can be made slow, so that a kill finds an upload halfway."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_CHUNK = 64 * 1024


class SlowLane:
    """
    Forwards connections to the service.

    :param port: the service's port
    :param rate: bytes a second towards the service, None for as fast as it goes
    """

    def __init__(self, port: int, rate: float | None = None) -> None:
        self.rate = rate
        self.sent = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Take no more connections."""
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
                    if self.rate:
                        time.sleep(len(data) / self.rate)
        except OSError:
            pass
        finally:
            for sock in (source, sink):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
