"""
Programs that run in the background, each with its output in a file.

Their ports, and waiting for them.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

STOP_TIMEOUT = 60

Found = TypeVar("Found")


def wait_for(
    what: str, look: Callable[[], Found | None], seconds: float = 300, pause: float = 0.1
) -> Found:
    """
    Look until something is found, and return it.

    :param what: names it in the error
    :param seconds: how long to look
    :param pause: seconds between two looks; a terminal shows meanwhile for how long
    :raises TimeoutError: if it is not found in time
    """
    begun = time.monotonic()
    shown = ""
    while not (found := look()):
        waited = time.monotonic() - begun
        if waited > seconds:
            raise TimeoutError(f"Waited {seconds:g} s for {what}")
        if sys.stdout.isatty():
            shown = f"  {waited:.0f} s: {what.partition(';')[0]}"
            print(f"\r\033[K{shown[:79]}", end="", flush=True)
        time.sleep(pause)

    if shown:
        print("\r\033[K", end="", flush=True)
    return found


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
    """Return a port that nobody listens on, and that was not returned before."""
    # Below the ports that the system gives to clients: a poll for readiness could else connect to
    # itself.
    port = random.choice([*{*range(20000, 32000)} - _given])
    _given.add(port)
    return port if is_free(port) else free_port()


class Program:
    """
    One program.

    :param name: names the output file
    :param command: the command line
    :param home: its output goes to ``outputs`` in this folder, and it works in ``cwd``
    :param env: its environment
    """

    def __init__(
        self, name: str, command: Sequence[str], home: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.output = home / "outputs" / f"{name}.out"
        self._command = list(command)
        self._cwd = _cwd(home)
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, or start it again: then its output is added to."""
        for folder in (self._cwd, self.output.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab" if self._process else "wb") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal is for us; we stop what we started.
                start_new_session=True,
            )
        return self._process

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
        end(self.family())

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ask it by a signal to end, and see to it that nothing of it is left."""
        # Looked up before anything ends: orphans could no longer be found.
        family = self.family()
        for process in family[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(by)
        psutil.wait_procs(family, STOP_TIMEOUT)
        end(family)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of its output."""
        written = self.output.read_text(errors="replace") if self.output.exists() else ""
        return "\n".join(written.splitlines()[-lines:])


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; they are gone when this returns."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, STOP_TIMEOUT)


def inhabitants(home: Path) -> list[psutil.Process]:
    """
    Return all processes that the programs of a home have started.

    However they have changed since.
    """
    # Airflow's children rewrite argv and environ, and orphans have another parent: but all work in
    # one folder, in which nobody opens a shell.
    cwd, found = _cwd(home), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(cwd):
                found.append(process)
    return found


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that only nobody has reaped does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def parent(pid: int) -> int:
    """Return the parent's pid, 0 if the process is gone."""
    try:
        return int(psutil.Process(pid).ppid())
    except psutil.NoSuchProcess:
        return 0


def _cwd(home: Path) -> Path:
    return home.resolve() / "cwd"
