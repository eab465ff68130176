"""Run Airflow's UI with the example DAGs, the connection and a local service, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
from local_airflow import AIRFLOW_VERSION, CONN_ID, SIGNALS, LocalAirflow, begin, shown, tail

from workflow_automation_provider.testing import DEMO_FLOW_ID, DEMO_KEY, JournalError, LocalService

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

USER = PASSWORD = "admin"
START_TIMEOUT = 180
STOP_TIMEOUT = 5


class Ui:
    """
    The running Airflow.

    :param port: where the UI listens.
    :param execution_port: where the tasks report to. With SQLite, one process for both now and then blocks
        itself: the UI waits for the database while it keeps a task's transaction from ending.
    """

    def __init__(self, port: int, execution_port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._execution_url = f"http://127.0.0.1:{execution_port}/execution/"
        self._ports = (port, execution_port)
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.airflow = LocalAirflow(
            "ui",
            {
                "AIRFLOW__API__BASE_URL": self.url,
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__CORE__AUTH_MANAGER": (
                    "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
                ),
                "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": self._execution_url,
                "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
                "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
                "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            },
        )
        passwords = self.airflow.home / "passwords.json"
        self.airflow.env["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] = str(passwords)
        self.airflow.prepare()
        passwords.write_text(json.dumps({USER: PASSWORD}))

    def start(self, service_url: str) -> None:
        """
        Start Airflow; when this returns, it can run DAGs.

        :param service_url: the address for the connection.
        :raises SystemExit: if it does not start.
        """
        for name, app, port in zip(("ui", "execution-api"), ("core", "execution"), self._ports, strict=True):
            self._start(name, ["api-server", "--apps", app, "--port", str(port)])
        self._start("dag-processor", ["dag-processor"])
        # It would serve logs on a fixed port; the UI reads them from the disk. Likewise the scheduler.
        self._start("triggerer", ["triggerer", "--skip-serve-logs"])
        self._wait_for(lambda: bool(self._call("GET", f"{self.url}/api/v2/version")))
        self._set_connection(service_url)
        # Only now, because an example with a schedule runs at once.
        self._start("scheduler", ["scheduler", "--skip-serve-logs"])
        self._wait_for(self._healthy)

    def _start(self, name: str, command: list[str]) -> None:
        self._processes[name] = self.airflow.start(command, self.log(name))

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError):
                if ready():
                    return
            self.check()
            if time.monotonic() > deadline:
                sys.exit(f"Airflow did not start within {START_TIMEOUT} s. Logs: {shown(self.airflow.logs)}")
            time.sleep(0.5)

    def check(self) -> None:
        """
        Check that all parts of Airflow still run.

        :raises SystemExit: if one has ended.
        """
        for name, process in self._processes.items():
            if process.poll() is not None:
                sys.exit(f"Airflow's {name} ended:\n{tail(self.log(name))}\nLog: {shown(self.log(name))}")

    def stop(self) -> None:
        """Stop all that was started, and all that those have started."""
        # Looked up before anything ends: orphans could no longer be found.
        family = with_children(process.pid for process in self._processes.values())
        for process in self._processes.values():
            process.terminate()
        _, alive = psutil.wait_procs(family, STOP_TIMEOUT)
        alive = with_children(process.pid for process in alive)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, STOP_TIMEOUT)

    def log(self, name: str) -> Path:
        """Return the path of a component's log."""
        return self.airflow.logs / f"{name}.log"

    def _healthy(self) -> bool:
        health = self._call("GET", f"{self.url}/api/v2/monitor/health")
        # Built when first asked for, which takes longer than the first task would wait.
        self._call("GET", f"{self._execution_url}health")
        parts = ("scheduler", "dag_processor", "triggerer")
        return all(health[part]["status"] == "healthy" for part in parts)

    def _set_connection(self, service_url: str) -> None:
        """Make the connection, or point the one of an earlier start at the service."""
        login = self._call("POST", f"{self.url}/auth/token", {"username": USER, "password": PASSWORD})
        self._token = login["access_token"]
        connections = f"{self.url}/api/v2/connections"
        try:
            self._call("PATCH", f"{connections}/{CONN_ID}?update_mask=host", connection(service_url))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            self._call("POST", connections, connection(service_url))

    def _call(self, method: str, url: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        with self._direct.open(request, timeout=30) as response:
            return json.load(response)


def connection(base_url: str) -> dict[str, str]:
    """Return the connection to the local service, as Airflow's API takes it."""
    return {
        "connection_id": CONN_ID,
        "conn_type": "workflow_automation",
        "description": "The local service of make ui",
        "host": base_url,
        "password": DEMO_KEY.value,
        "extra": json.dumps({"flow_id": DEMO_FLOW_ID}),
    }


def with_children(pids: Iterable[int]) -> list[Any]:
    """Return processes, and all that those have started."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def free_port(variable: str, default: int) -> int:
    """
    Return the port that an environment variable names.

    :raises SystemExit: if it is no port, or taken.
    """
    text = os.environ.get(variable) or str(default)
    if not (text.isdecimal() and 0 < int(text) < 65536):
        sys.exit(f"{variable}={text} is not a port.")
    if not is_free(int(text)):
        sys.exit(f"Port {text} is taken. Choose another: make ui {variable}=…")
    return int(text)


def is_free(port: int) -> bool:
    """Tell whether one can listen on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def main() -> None:
    """Run until interrupted."""
    begin()
    if AIRFLOW_VERSION.startswith("2."):
        sys.exit("make ui needs Airflow 3.")
    ui_port, service_port = free_port("UI_PORT", 8080), free_port("SERVICE_PORT", 8090)
    if ui_port == service_port:
        sys.exit("UI_PORT and SERVICE_PORT are the same.")
    taken = {ui_port, service_port}
    execution_port = next(port for port in range(ui_port, 65536) if port not in taken and is_free(port))
    ui = Ui(ui_port, execution_port)
    with LocalService(port=service_port, journal=ui.airflow.home / "service.jsonl") as service:
        try:
            print(f"Starting Airflow {AIRFLOW_VERSION} (about 30 s) …")
            ui.start(service.base_url)
            print(f"""
Airflow   {ui.url}   user {USER}, password {PASSWORD}
Service   {service.url}   shows the runs it started
Logs      {shown(ui.airflow.logs)}

Under Dags, choose an example and press Trigger; the connection is under Admin → Connections.
Ctrl-C stops everything.""")
            while True:
                ui.check()
                time.sleep(1)
        finally:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            print("\nStopping Airflow …")
            ui.stop()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
    except JournalError:
        sys.exit("make ui runs already, on other ports.")
