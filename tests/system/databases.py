"""PostgreSQL and Redis, started from Debian's packages on free ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from processes import Program, free_port, wait_for


class PostgreSQL:
    """
    A PostgreSQL server of our own, that logs every statement.

    :param home: the folder for its data and its log; others must be able to pass through it.
    """

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.data = home / "postgresql"
        self._home = home
        self._bin = _folder_of("initdb")
        server = [
            *self._as_its_user(),
            str(self._bin / "postgres"),
            "-D",
            str(self.data),
            "-p",
            str(self.port),
        ]
        server += ["-h", "127.0.0.1", "-k", "", "-c", "log_statement=all", "-c", "max_connections=200"]
        self.program = Program("postgresql", server, home, os.environ)

    @property
    def url(self) -> str:
        """The address for SQLAlchemy."""
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self.port}/airflow"

    def create(self) -> None:
        """Make the database, and start the server."""
        self.data.mkdir(mode=0o700)
        if os.getuid() == 0:
            shutil.chown(self.data, "postgres", "postgres")
        options = [
            "-D",
            str(self.data),
            "-U",
            "airflow",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale",
            "C.UTF-8",
            "-N",
        ]
        self._run([*self._as_its_user(), str(self._bin / "initdb"), *options])
        self.start()
        self._run([str(self._bin / "createdb"), *self._where(), "airflow"])

    def start(self) -> None:
        """Start the server."""
        self.program.start()
        wait_for("PostgreSQL", self._ready, 60)

    def stop(self) -> None:
        """Stop the server: every connection breaks."""
        # SIGINT is its fast shutdown; on SIGTERM it would wait for its clients.
        self.program.stop(signal.SIGINT)

    def dump(self) -> str:
        """Return a full dump."""
        return self._run(
            [str(self._bin / "pg_dump"), *self._where(), "--inserts", "--column-inserts", "airflow"]
        )

    def _ready(self) -> bool:
        command = [str(self._bin / "pg_isready"), *self._where(), "-d", "postgres"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _where(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", "airflow"]

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=self._home, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    @staticmethod
    def _as_its_user() -> list[str]:
        """PostgreSQL refuses to run as root."""
        return [] if os.getuid() else ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


class Redis:
    """
    A Redis server of our own, that keeps its data over a restart.

    :param home: the folder for its data and its output.
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
        wait_for("Redis", self._ready, 30)

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


def _folder_of(program: str) -> Path:
    """Return the folder of one of PostgreSQL's programs; Debian's are in no PATH."""
    if found := shutil.which(program):
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob(f"*/bin/{program}")).parent
