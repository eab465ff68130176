"""Real task instances in a real metadata database, and the endpoint on a real server."""

from __future__ import annotations

import socket
import threading
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import uvicorn

from waiting_tasks import WaitingTask, make_dag
from workflow_automation_provider.plugins.callback_endpoint import app


@pytest.fixture(scope="session")
def dag(request):
    pytest.importorskip("airflow.models.task_state_store", reason="Before Airflow 3.3 no task can wait")
    return make_dag(request.getfixturevalue("airflow_home"))


@pytest.fixture
def waiting(dag):
    """Make a task instance that is parked for an hour, with a question under Required Actions."""

    def make(*, asked=True, **values):
        timeout = datetime.now(UTC) + timedelta(hours=1)
        found = WaitingTask(dag, **{"trigger_timeout": timeout, **values})
        if asked:
            found.ask()
        return found

    return make


@pytest.fixture(scope="session")
def base_url():
    """Where the endpoint is served."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="debug", lifespan="on", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def http(base_url):
    with httpx.Client(base_url=base_url, timeout=60, trust_env=False) as client:
        yield client
