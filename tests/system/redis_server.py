"""Redis, started from Debian's package on a free port."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from airflow_launcher.ports import free_port
from airflow_launcher.processes import Program
from airflow_launcher.waiting import wait_for


class Redis:
    """
    A Redis server of our own, that keeps its data over a restart.

    :param home: the folder for its data and its output
    """

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--loglevel", "debug"]
        self.program = Program("redis", command, home, os.environ)

    @property
    def url(self) -> str:
        """The address for Celery."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it."""
        self.program.start()
        wait_for("Redis", self._ready)

    def stop(self) -> None:
        """Stop it: every connection breaks."""
        self.program.stop()

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(5) == b"+PONG"
        except OSError:
            return False
