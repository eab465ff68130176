"""One Airflow: prepared, started, found to be healthy, and stopped without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from airflow_launcher.api import AirflowApi
from airflow_launcher.processes import Program, end, free_port, inhabitants, wait_for

if TYPE_CHECKING:
    from airflow_launcher.databases import PostgreSQL

VERSION = version("apache-airflow")
USER = PASSWORD = "admin"
START_TIMEOUT = 300
SLOW = (
    "300"  # seconds, for what Airflow gives up after half a minute, which a loaded machine may need
)


class Component(NamedTuple):
    """
    A component, running as a process of its own.

    Its name, and what follows ``airflow`` on the command line.
    """

    name: str
    command: Sequence[str]


API_SERVER = Component("api-server", ["api-server"])
DAG_PROCESSOR = Component("dag-processor", ["dag-processor"])
# These two would serve logs on fixed ports; the api-server reads them from the disk.
SCHEDULER = Component("scheduler", ["scheduler", "--skip-serve-logs"])
TRIGGERER = Component("triggerer", ["triggerer", "--skip-serve-logs"])
# Airflow's health speaks of them; that the api-server is healthy is seen by its answer.
_MONITORED = (SCHEDULER, DAG_PROCESSOR, TRIGGERER)


class Airflow:
    """
    An Airflow of its own. As a context manager it is started, and stopped at the end.

    :param home: the folder for all that it writes
    :param dags: the folder of its DAG files
    :param components: what runs, started in this order
    :param database: by default ``airflow.db`` in the home, of SQLite
    :param connections: Airflow connections as JSON values, by connection id
    :param settings: more of Airflow's settings, by the names of their variables without
        ``AIRFLOW__``
    :param port: the api-server's port on this machine; a free one by default
    :param url: where the api-server is reached, if not at its port
    :param users: further users and their roles; their passwords are their names
    """

    python = sys.executable
    """The Python of the environment in which it is installed."""

    def __init__(
        self,
        home: Path,
        dags: Path,
        *,
        components: Sequence[Component] = (API_SERVER, SCHEDULER, DAG_PROCESSOR),
        database: PostgreSQL | None = None,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        url: str = "",
        users: Mapping[str, str] | None = None,
    ) -> None:
        port = port or free_port()
        self.home = home
        self.dags = dags
        self.url = url or f"http://127.0.0.1:{port}"
        self.api = AirflowApi(self.url)
        self.programs: dict[str, Program] = {}
        self.components = components
        self._database = database
        sqlite = f"sqlite:///{home / 'airflow.db'}?timeout=30"
        self._passwords = home / "passwords.json"
        self._users = users or {}
        roles = {USER: "admin", **self._users}
        self._made_by = home / "database-made-by"
        self.env = airflow_environment(
            home,
            {
                "API__BASE_URL": self.url,
                "API__HOST": "127.0.0.1",
                "API__PORT": str(port),
                "API__WORKERS": "1",
                "CORE__DAGBAG_IMPORT_TIMEOUT": SLOW,
                "CORE__DAGS_FOLDER": str(dags),
                "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
                "CORE__LOAD_EXAMPLES": "False",
                "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
                "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                    f"{name}:{role}" for name, role in roles.items()
                ),
                "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": SLOW,
                "DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
                "DATABASE__SQL_ALCHEMY_CONN": database.url if database else sqlite,
                "WORKERS__EXECUTION_API_TIMEOUT": "60",
                **(settings or {}),
            },
            connections or {},
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def prepared(self) -> bool:
        """Whether this version of Airflow has made the database in the home."""
        return self._made_by.is_file() and self._made_by.read_text() == VERSION

    def prepare(self) -> None:
        """
        Make the home and the database in it, unless that is done.

        :raises RuntimeError: if Airflow cannot make its database
        :raises TimeoutError: if it does not in time
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self._passwords.write_text(
            json.dumps({USER: PASSWORD, **{name: name for name in self._users}})
        )
        if self._database:
            self._database.start()
        if not self.prepared:
            migration = self.program("migrate", "db", "migrate")
            process = migration.start()
            wait_for(
                f"the database; its log: {migration.output}",
                lambda: process.poll() is not None,
                START_TIMEOUT,
            )
            if process.returncode:
                raise RuntimeError(f"Airflow could not make its database:\n{_end_of(migration)}")
            self._made_by.write_text(VERSION)

    def start(self) -> None:
        """
        Start everything; when this returns, DAG runs can be triggered.

        :raises RuntimeError: if a component ends
        :raises TimeoutError: if Airflow is not healthy in time
        """
        self.prepare()
        self.launch(*self.components)

    def launch(self, *components: Component) -> None:
        """Start components, and wait until Airflow is healthy with them."""
        for component in components:
            program = self.program(component.name, *component.command)
            program.start()
            self.programs[component.name] = program
        wait_for(
            f"a healthy Airflow; its logs: {self.home / 'outputs'}",
            self._healthy,
            START_TIMEOUT,
            pause=0.3,
        )
        self.api.log_in(USER, PASSWORD)

    def check(self) -> None:
        """
        Check that all components still run.

        :raises RuntimeError: if one has ended
        """
        for program in self.programs.values():
            if not program.runs:
                raise RuntimeError(f"Airflow's {program.name} ended:\n{_end_of(program)}")

    def stop(self) -> None:
        """Kill everything that was started, and what that has started, orphans too."""
        while leftovers := inhabitants(self.home):
            end(leftovers)
        if self._database:
            self._database.stop()
        self.api.close()

    def program(self, name: str, *command: str) -> Program:
        """
        Return an ``airflow`` command of this Airflow, to be started.

        :param name: names its output file
        :param command: what follows ``airflow`` on the command line
        """
        return Program(name, [self.python, "-m", "airflow", *command], self.home, self.env)

    def _healthy(self) -> bool:
        self.check()
        monitored = [
            part.name.replace("-", "_") for part in _MONITORED if part.name in self.programs
        ]
        # The execution API is built at its first request, and takes longer than a task would wait
        # for it.
        execution_api = self.env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
        return self.api.answers(f"{execution_api}health") and self.api.healthy(monitored)


def airflow_environment(
    home: Path, settings: Mapping[str, str], connections: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """
    Return this process's environment, with one Airflow's settings in place of any other's.

    :param home: the ``AIRFLOW_HOME``
    :param settings: Airflow's settings, by the names of their variables without ``AIRFLOW__``
    :param connections: Airflow connections as JSON values, by connection id
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")
    }
    # Both spellings are in use, and whoever finds one may not look at the other.
    listed = ",".join(inherited.get(name, "") for name in ("NO_PROXY", "no_proxy")).split(",")
    direct = ",".join(sorted({"127.0.0.1", "localhost", *listed} - {""}))
    return {
        **inherited,
        "NO_PROXY": direct,
        "no_proxy": direct,
        "AIRFLOW_HOME": str(home),
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        **{
            f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps(value)
            for conn_id, value in connections.items()
        },
    }


@contextlib.contextmanager
def temporary_home(name: str) -> Iterator[Path]:
    """
    Make a folder, and remove it in the end, unless the environment variable ``KEEP`` is set.

    :param name: what it is for; part of its name
    """
    home = Path(tempfile.mkdtemp(prefix=f"workflow-automation-{name}-"))
    home.chmod(0o755)  # PostgreSQL's user has to pass
    try:
        yield home
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(home, ignore_errors=True)


def _end_of(program: Program) -> str:
    return f"{program.tail()}\nThe whole log: {program.output}"
