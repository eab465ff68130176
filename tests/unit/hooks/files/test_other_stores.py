"""
Uploads from Google Cloud Storage and Azure, against their emulators behind a proxy.

``make test-stores``.

Skipped where they are not installed: they bring more packages than all the rest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from airflow.sdk.io import attach

from airflow_launcher.processes import free_port
from emulators import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    AZURITE,
    NO_AZURITE,
    azure_connection,
    azurite,
    running,
)
from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import FileUnavailableError
from workflow_automation_provider.hooks.files.sources import resolve
from workflow_automation_provider.hooks.mailbox import Mailbox

from ..conftest import sent, sha256

MIB = 1024 * 1024


# Each runs an emulator, and yields a scheme, its port, and what makes a file system of a port.


@contextlib.contextmanager
def google():
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

    port = free_port()
    program = Path(sys.executable).with_name("gcp-storage-emulator")
    command = [str(program), "start", f"--port={port}", "--host=127.0.0.1", "--in-memory"]
    with running(command, port):
        yield "gs", port, connect


@contextlib.contextmanager
def azure():
    adlfs = pytest.importorskip("adlfs")
    if not AZURITE:
        pytest.skip(NO_AZURITE)
    logging.getLogger("azure").setLevel(logging.ERROR)

    def connect(port):
        account = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY}"
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        return adlfs.AzureBlobFileSystem(
            account_name=AZURE_ACCOUNT,
            connection_string=f"DefaultEndpointsProtocol=http;{account};{endpoint};",
            skip_instance_cache=True,
        )

    with azurite() as port:
        yield "abfs", port, connect


@pytest.fixture(scope="module", params=[google, azure])
def emulator(request):
    with request.param() as (scheme, port, connect), StoreProxy(port).running() as proxy:
        yield scheme, connect(port), proxy, connect(proxy.port)


@pytest.fixture
def store(emulator, service):
    """A container with objects below ``p``, and the proxy through which they are read."""
    scheme, direct, proxy, proxied = emulator
    attach(scheme, fs=proxied)  # after the connection, with which a test begins without any
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


def test_a_run_writes_its_end_to_azurite_once(monkeypatch):
    pytest.importorskip("adlfs")
    if not AZURITE:
        pytest.skip(NO_AZURITE)
    with azurite() as port:
        connection = json.dumps(azure_connection(port, "box"))
        monkeypatch.setenv("AIRFLOW_CONN_AZURITE", connection)
        mailbox = Mailbox("abfs://azurite@box/callbacks/1.json")
        mailbox.check(timedelta(hours=1), "http://127.0.0.1:1/api")
        url = mailbox.sign(timedelta(hours=1))
        headers = {"x-ms-blob-type": "BlockBlob"}
        assert [httpx.put(url, content=b"1", headers=headers).status_code for _ in "ab"] == [
            201,
            403,
        ]
        assert [httpx.get(url).status_code, httpx.delete(url).status_code] == [403, 403]
        written = mailbox.read(9)
        assert written is not None
        assert written.body == b"1"
        assert Mailbox("abfs://azurite@box/callbacks").indexes() == {1}
