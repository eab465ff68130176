"""A database for Airflow, other than its own SQLite."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from airflow_launcher.processes import Program, free_port, wait_for


class PostgreSQL:
    """
    A PostgreSQL server from Debian's packages, on a free port, which logs every statement.

    :param home: the folder for its data and its output; others must be able to pass through it
    """

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.data = home / "postgresql"
        self._home = home
        self._bin = _folder_of("initdb")
        options = (
            f"-p {self.port} -h 127.0.0.1 -c log_statement=all -c max_connections=200 -k".split()
        )
        server = [
            *self._as_its_user(),
            str(self._bin / "postgres"),
            "-D",
            str(self.data),
            *options,
            "",
        ]
        self.program = Program("postgresql", server, home, os.environ)

    @property
    def url(self) -> str:
        """The address for SQLAlchemy."""
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self.port}/airflow"

    def start(self) -> None:
        """Start the server unless it runs, and make the database unless it is there."""
        new = not self.data.exists()
        if new:
            self._make_data()
        if not self.program.runs:
            self.program.start()
        wait_for("PostgreSQL", self._ready)
        if new:
            self._run([str(self._bin / "createdb"), *self._where(), "airflow"])

    def _make_data(self) -> None:
        self.data.mkdir(mode=0o700)
        if os.getuid() == 0:
            shutil.chown(self.data, "postgres", "postgres")
        options = [
            "--username=airflow",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]
        self._run([*self._as_its_user(), str(self._bin / "initdb"), "-D", str(self.data), *options])

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
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout

    @staticmethod
    def _as_its_user() -> list[str]:
        """Return what precedes a command that PostgreSQL does not let root run."""
        return (
            []
            if os.getuid()
            else ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        )


def _folder_of(program: str) -> Path:
    """Return the folder of one of PostgreSQL's programs; Debian's are in no PATH."""
    if found := shutil.which(program):
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob(f"*/bin/{program}")).parent
