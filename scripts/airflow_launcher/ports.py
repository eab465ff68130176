"""Ports of this machine."""

from __future__ import annotations

import random
import socket

# Between being chosen and being bound, a port looks free.
_given: set[int] = set()


def is_free(port: int) -> bool:
    """Tell whether one can listen on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """
    Return a port that nobody listens on, and that was not returned before.

    :raises RuntimeError: if there is none
    """
    # Below the ports that the system gives to clients: a poll for readiness could else connect to itself.
    for port in random.sample(range(20000, 32000), 100):
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise RuntimeError("No port is free")
