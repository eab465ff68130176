"""Programs that run in the background, each with its output in a file."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

Found = TypeVar("Found")

STOP_TIMEOUT = 15


def wait_for(what: str, look: Callable[[], Found], seconds: float = 60) -> Found:
    """Look until something is found, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {seconds:g} s for {what}")
        time.sleep(0.1)
    return found


def free_port() -> int:
    """Return a port that nobody listens on."""
    # Below the ports that the system gives to clients: a poll for readiness could else connect to itself.
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("No port is free")


class Program:
    """
    One program.

    :param name: names the output's file.
    :param command: the command line.
    :param home: where it works, and its output goes.
    :param env: its environment.
    """

    def __init__(self, name: str, command: Sequence[str], home: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.output = home / "outputs" / f"{name}.out"
        self._command = list(command)
        self._home = home
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again: its output is added to."""
        self.output.parent.mkdir(exist_ok=True)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._home,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def family(self) -> list[psutil.Process]:
        """Return its process and all that this has started."""
        if self._process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self) -> None:
        """Kill it and all that it has started with SIGKILL."""
        process = self._process  # whoever starts it again puts another there
        end(self.family())
        if process:
            process.wait(STOP_TIMEOUT)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and see to it that nothing of it is left."""
        family = self.family()
        if self._process and self.runs:
            self._process.send_signal(by)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)
        end(family)

    def tail(self) -> str:
        """Return the end of its output."""
        return self.output.read_text(errors="replace")[-3000:] if self.output.exists() else ""


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; they are gone when this returns."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, STOP_TIMEOUT)


def inhabitants(home: Path) -> list[psutil.Process]:
    """Return all processes that work below a folder: orphans have another parent, and rewrite their names."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(home):
                found.append(process)
    return found
