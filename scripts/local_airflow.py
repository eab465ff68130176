"""An Airflow of its own under .airflow/, with SQLite and the example DAGs: what the demo and the UI share."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

PROJECT = Path(__file__).resolve().parent.parent
CONN_ID = "workflow_automation_default"
AIRFLOW_VERSION = version("apache-airflow")
RUN_TIMEOUT = 180
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalAirflow:
    """
    An Airflow whose home is a folder of the project.

    :param name: the folder's name.
    :param settings: more environment variables for Airflow's processes.
    """

    def __init__(self, name: str, settings: dict[str, str]) -> None:
        self.home = PROJECT / ".airflow" / name
        self.logs = self.home / "logs"
        self.env = {
            **_clean_environment(),
            "AIRFLOW_HOME": str(self.home),
            # Nobody wants to watch a failing example wait for five minutes.
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "2",
            "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "example_dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            **settings,
        }

    def prepare(self) -> None:
        """
        Make the database, unless this Airflow already did.

        :raises SystemExit: if that fails.
        """
        stamp = self.home / "database-made-by"
        if not (stamp.is_file() and stamp.read_text() == AIRFLOW_VERSION):
            print(f"Setting up Airflow's database in {shown(self.home)} (about 10 s, first time only) …")
            # Another Airflow's database cannot always be migrated, and nothing in it is worth keeping.
            shutil.rmtree(self.home, ignore_errors=True)
            self.logs.mkdir(parents=True)
            log = self.logs / "migrate.log"
            if not self.run(["db", "migrate"], log):
                sys.exit(f"Airflow could not set up its database:\n{tail(log)}\nThe whole log: {shown(log)}")
            stamp.write_text(AIRFLOW_VERSION)

    def run(self, command: list[str], log: Path) -> bool:
        """
        Run an ``airflow`` command to its end, and tell whether it succeeded.

        :param command: what follows ``airflow``.
        :param log: the file that its output goes to.
        """
        process = self.start(command, log)
        try:
            return process.wait(RUN_TIMEOUT) == 0
        except subprocess.TimeoutExpired:
            print(f"No end after {RUN_TIMEOUT} s: stopped.")
            return False
        finally:
            # Whatever it has left behind, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        """
        Start an ``airflow`` command, in a process group of its own.

        :param command: what follows ``airflow``.
        :param log: the file that its output goes to.
        """
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "airflow", *command],
                cwd=PROJECT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal is for us; we stop what we started.
                start_new_session=True,
            )


def _clean_environment() -> dict[str, str]:
    """Return the environment without what would make this Airflow behave otherwise."""
    dropped = ("AIRFLOW", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    # Both spellings are in use, and whoever finds one may not look at the other.
    direct = {
        "127.0.0.1",
        "localhost",
        *env.get("NO_PROXY", "").split(","),
        *env.get("no_proxy", "").split(","),
    }
    env["NO_PROXY"] = env["no_proxy"] = ",".join(sorted(direct - {""}))
    return env


def begin() -> None:
    """Prepare this process: any signal to end it is a KeyboardInterrupt, and output is shown at once."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def shown(path: Path) -> str:
    """Return a path of the project as people want to read it."""
    return str(path.relative_to(PROJECT))


def tail(path: Path, lines: int = 20, width: int = 400) -> str:
    """Return the last lines of a log, without those that only tell of waiting."""
    text = path.read_text(errors="replace").splitlines()
    told = [
        line if len(line) <= width else f"{line[:width]} …" for line in text if "No tasks to run" not in line
    ]
    return "\n".join(told[-lines:])
