"""
What all unit tests share: a task instance without a database, and fixtures that start something.

It imports no Airflow: the process that hands out the tests loads it as well.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from types import SimpleNamespace
from uuid import uuid4

import certifi
import pytest

from workflow_automation_provider.client.network import CA_VARIABLES


@pytest.fixture(autouse=True)
def _no_network_settings(monkeypatch):
    """Leave the proxies and the certificates of the machine out of it."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in CA_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collected(monkeypatch):
    """What Airflow's hook lineage collector got, as it is where something reads it."""
    from airflow.providers.common.compat.lineage import hook as compat
    from airflow.sdk.lineage import HookLineageCollector

    from workflow_automation_provider import lineage

    collector = HookLineageCollector()
    monkeypatch.setattr(compat, "get_hook_lineage_collector", lambda: collector)
    monkeypatch.setattr(lineage, "_is_read", lambda: True)

    def read():
        found = collector.collected_assets
        return [info.asset.uri for info in found.inputs], [info.asset.uri for info in found.outputs]

    return read


class TaskInstance(SimpleNamespace):
    """A task instance that keeps what is pushed."""

    def xcom_push(self, key, value):
        if self.push_error:
            raise self.push_error
        self.pushed[key] = value


@pytest.fixture
def service(workflow_automation_service, workflow_automation_connection):
    return workflow_automation_service


@pytest.fixture
def full_connection(monkeypatch):
    """Point a connection at a server whose backlog is full: who connects waits."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        connection = {
            "conn_type": "workflow_automation",
            "host": f"http://127.0.0.1:{listener.getsockname()[1]}",
        }
        monkeypatch.setenv("AIRFLOW_CONN_FULL", json.dumps(connection))
        yield "full"


@pytest.fixture(scope="session")
def s3_port():
    """Start a stand-in for S3."""
    pytest.importorskip("moto.server")
    from s3_bucket import s3_server

    with s3_server() as port:
        yield port


@pytest.fixture
def bucket(s3_port, monkeypatch):
    """Make a bucket of S3, and a connection to it."""
    from s3_bucket import Bucket

    bucket = Bucket(f"b-{uuid4().hex[:12]}")
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{bucket.conn_id.upper()}", json.dumps(bucket.connection(s3_port))
    )
    monkeypatch.setenv(
        "AWS_CA_BUNDLE", certifi.where()
    )  # else each client reads the usual hundreds
    return bucket


@pytest.fixture
def sftp(tmp_path, monkeypatch):
    """Start an SFTP server over a folder, and define a connection to it."""
    pytest.importorskip("sshfs")
    from sftp_server import SFTPServer

    server = SFTPServer(tmp_path / "sftp")
    server.folder.mkdir()
    with server.running():
        connection = {
            "conn_type": "sftp",
            "host": "127.0.0.1",
            "port": server.port,
            "login": "anyone",
        }
        monkeypatch.setenv(f"AIRFLOW_CONN_{server.conn_id.upper()}", json.dumps(connection))
        yield server


@pytest.fixture
def store():
    from state_store import StateStore

    return StateStore()


@pytest.fixture
def batch(workflow_automation_context, workflow_automation_connection):
    from .batches import Batches

    return Batches(workflow_automation_context)


@pytest.fixture
def context():
    """Make the context of a try; each try of a task instance has an id of its own."""

    def make(store=None, *, retries=3, **more):
        given = {"task_id": "trigger", "try_number": 1, "max_tries": 3, "push_error": None, **more}
        ti = TaskInstance(id=uuid4(), pushed={}, **given)
        task = SimpleNamespace(retries=retries, do_xcom_push=True, multiple_outputs=True)
        found = {"ti": ti, "dag_run": SimpleNamespace(), "task": task}
        return found if store is None else {**found, "task_state_store": store}

    return make


@pytest.fixture
def log(caplog, capfd):
    """
    All that was logged so far.

    A task's log, which Airflow writes to standard output, and that of others.
    """
    caplog.set_level(logging.INFO)
    written = []

    def text():
        written.append(capfd.readouterr().out)
        return "".join(written) + caplog.text

    return text


@pytest.fixture
def world(airflow_home):
    """What makes a task instance in a real metadata database, with its runs: see ``world``."""
    from world import World, airflow

    with airflow(airflow_home):
        yield World
