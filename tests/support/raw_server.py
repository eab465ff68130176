"""A server of which a test decides every byte."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield each connection to a listener, until that is shut down or closed."""
    with contextlib.suppress(OSError):
        while True:
            yield listener.accept()[0]


class Server:
    """
    Responds to requests as a test says, and counts connections and requests.

    :param respond: takes the number of the request on its connection; returns bytes to send, also
        in parts, None to close
    """

    def __init__(self, respond: Callable[[int], bytes | Iterable[bytes] | None]) -> None:
        self.respond = respond
        self.connections = self.requests = 0
        self.bodies: list[bytes] = []
        self.local = threading.local()
        """Has the ``body`` of the request that a thread responds to."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/api"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        for connection in accepted(self._listener):
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            for number in range(1000):
                received = b""
                while not received.endswith(b"}}"):
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    received += piece
                self.requests += 1
                self.local.body = received.partition(b"\r\n\r\n")[2]
                self.bodies.append(self.local.body)
                response = self.respond(number)
                if response is None:
                    return
                for part in (response,) if isinstance(response, bytes) else response:
                    connection.sendall(part)

    def close(self) -> None:
        # Closed alone, it would go on accepting, and then for whatever gets the same descriptor.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def response(run_id: object, *headers: str) -> bytes:
    body = json.dumps({"run_id": run_id}).encode()
    head = "\r\n".join(("HTTP/1.1 201 Created", f"Content-Length: {len(body)}", *headers))
    return f"{head}\r\n\r\n".encode() + body
