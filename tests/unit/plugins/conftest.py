"""Real task instances in a real metadata database, and the endpoint on a real server."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import uvicorn

from waiting_tasks import WaitingTask, make_dag


@pytest.fixture(scope="session")
def dag(request):
    return make_dag(request.getfixturevalue("airflow_home"))


@pytest.fixture
def waiting(dag):
    """Make a task instance that is suspended for an hour."""

    def make(**values):
        timeout = datetime.now(UTC) + timedelta(hours=1)
        return WaitingTask(dag, **{"trigger_timeout": timeout, **values})

    return make


@contextlib.contextmanager
def serving():
    """Serve the endpoint, and shut the server down at the end."""
    from workflow_automation_provider.plugins import callback_endpoint

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            callback_endpoint.app, log_level="debug", lifespan="on", access_log=False
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def base_url():
    """Where the endpoint is served; it takes longer than for a flow, as a loaded machine wants."""
    from workflow_automation_provider.plugins import callback_endpoint

    with pytest.MonkeyPatch.context() as patch, serving() as url:
        patch.setattr(callback_endpoint, "_TIMEOUT", 120.0)
        yield url


@pytest.fixture
def http(base_url):
    with httpx.Client(base_url=base_url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture
def say(http):
    """Send what a run says; return the status of the response."""

    def call(url, status="running", **fields):
        response = http.post(url, json={"status": status, **fields})
        assert response.headers["content-type"] == "application/json"
        assert response.json().keys() - {"code"} == {"detail"}
        return response.status_code

    return call


@pytest.fixture
def locked_database(dag):
    """
    Return a context manager that holds SQLite's lock for writing.

    Or other databases' locks of all task instances.

    SQLite, too, waits for a lock only for a moment.
    """
    from airflow import settings
    from sqlalchemy import event, text

    def be_impatient(connection, *_):
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA busy_timeout = 100")

    @contextlib.contextmanager
    def lock():
        with engine.connect() as other:
            is_sqlite = other.dialect.name == "sqlite"
            other.execute(
                text("BEGIN IMMEDIATE" if is_sqlite else "SELECT id FROM task_instance FOR UPDATE")
            )
            yield
            other.rollback()

    engine = settings.get_engine()
    event.listen(engine, "checkout", be_impatient)
    yield lock
    event.remove(engine, "checkout", be_impatient)
    engine.dispose()
