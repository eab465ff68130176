"""
Uploads from Google Cloud Storage and Azure, against their emulators behind a proxy.

``make test-stores``.

Skipped where they are not installed: they bring more packages than all the rest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.io import attach

from airflow_launcher.processes import free_port
from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import FileUnavailableError
from workflow_automation_provider.hooks.files.sources import resolve

from ..conftest import sent, sha256

MIB = 1024 * 1024
# The one that is documented for the emulator.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


# What each emulator is: a scheme, the command that starts it on a port, and what makes a file
# system of a port.


def google(port):
    # Otherwise gcsfs, which reads it as it is imported, asks by gRPC what kind of bucket it is,
    # which the emulator does not know.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    gcsfs = pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")

    def connect(port):
        endpoint = f"http://127.0.0.1:{port}"
        return gcsfs.GCSFileSystem(
            endpoint_url=endpoint, token="anon", project="p", skip_instance_cache=True
        )

    program = Path(sys.executable).with_name("gcp-storage-emulator")
    return "gs", [program, "start", f"--port={port}", "--host=127.0.0.1", "--in-memory"], connect


def azure(port):
    adlfs = pytest.importorskip("adlfs")
    program = shutil.which(
        "azurite-blob", path=f"{os.environ.get('AZURITE', '')}:{os.environ['PATH']}"
    )
    if not program:
        pytest.skip("Azurite is not installed")
    logging.getLogger("azure").setLevel(logging.ERROR)

    def connect(port):
        account = f"AccountName=devstoreaccount1;AccountKey={AZURE_KEY}"
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1"
        return adlfs.AzureBlobFileSystem(
            account_name="devstoreaccount1",
            connection_string=f"DefaultEndpointsProtocol=http;{account};{endpoint};",
            skip_instance_cache=True,
        )

    address = ["--blobHost=127.0.0.1", f"--blobPort={port}"]
    return (
        "abfs",
        [program, *address, "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"],
        connect,
    )


@pytest.fixture(scope="module", params=[google, azure])
def emulator(request):
    port = free_port()
    scheme, command, connect = request.param(port)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        with StoreProxy(port).running() as proxy:
            attach(scheme, fs=connect(proxy.port))  # once: Airflow keeps the first
            yield scheme, connect(port), proxy
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def store(emulator):
    """A container with objects below ``p``, and the proxy through which they are read."""
    scheme, direct, proxy = emulator
    container = f"c{random.randrange(10**9)}"
    direct.mkdir(container)
    contents = {"a": b"1", "b": random.Random(1).randbytes(5 * MIB), "empty": b""}
    for name, content in contents.items():
        direct.pipe(f"{container}/p/{name}", content)
    proxy.seen.clear()
    proxy.faults.clear()

    def put(name, content):
        direct.pipe(
            f"{container}/p/{name}", content, **({"overwrite": True} if scheme == "abfs" else {})
        )

    return SimpleNamespace(
        url=f"{scheme}://{container}/p/", put=put, proxy=proxy, contents=contents
    )


def of(name):
    """
    Return what decides whether a request is for the content of an object.

    For Google's emulator, there are others.
    """
    return lambda seen: (
        seen.method == "GET"
        and seen.target.partition("?")[0].endswith(name)
        and ("alt=media" in seen.target or "devstoreaccount1" in seen.target)
    )


@pytest.mark.parametrize("breaks", [False, True])
def test_an_object_is_read_in_blocks_and_continued(store, hook, run_id, service, breaks):
    if breaks:
        store.proxy.faults.append(Fault(of("b"), break_after=MIB))
    hook.upload_files(run_id, store.url, "demo-flow")
    assert dict(sent(service)) == {
        name: sha256(content) for name, content in store.contents.items()
    }
    assert breaks or [sum(map(of(name), store.proxy.seen)) for name in ("a", "b")] == [1, 2]


@pytest.mark.parametrize("content", [b"2", b"22"])
def test_one_that_changed_is_noticed(store, hook, run_id, service, content):
    (request,) = hook.prepare_uploads(run_id, resolve(store.url), "demo-flow")
    store.put("a", content)
    with pytest.raises(FileUnavailableError, match=r"/p/a' changed"):
        hook.get_conn().upload(request)
    assert service.uploads == []
