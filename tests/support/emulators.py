"""Emulators of object stores, as processes; npm installs that of Azure beside the environment."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from airflow_launcher.processes import free_port, wait_for

AZURE_ACCOUNT = "devstoreaccount1"
# The one that is documented for the emulator.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

_AZURITE = Path(sys.prefix) / "azurite" / "node_modules" / ".bin"
AZURITE = shutil.which("azurite-blob", path=str(_AZURITE))
NO_AZURITE = "Azurite is not installed, for which make needs npm"


@contextlib.contextmanager
def running(command: Sequence[str | Path], port: int) -> Iterator[None]:
    """Run an emulator that listens on a port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"{command[0]}", lambda: _is_open(port), seconds=60)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def azurite() -> Iterator[int]:
    """Run the emulator of Azure, and yield its port."""
    assert AZURITE, NO_AZURITE
    port = free_port()
    address = ["--blobHost=127.0.0.1", f"--blobPort={port}"]
    options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
    with running([AZURITE, *address, *options], port):
        yield port


def azure_connection(port: int, container: str) -> dict[str, Any]:
    """Make a container, and return the fields of an Airflow connection to its account."""
    from azure.storage.blob import BlobServiceClient

    host = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    BlobServiceClient(host, credential=AZURE_KEY).create_container(container)
    return {"conn_type": "wasb", "host": host, "login": AZURE_ACCOUNT, "password": AZURE_KEY}


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
