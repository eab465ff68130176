"""Fixtures for batches."""

from __future__ import annotations

import contextlib
import json

import pytest

from raw_server import Server

from ..batches import Batches


@pytest.fixture
def batch(workflow_automation_context, workflow_automation_connection):
    return Batches(workflow_automation_context)


@pytest.fixture
def raw_server(monkeypatch):
    """Return what makes a server of which a test decides every byte, and the connection to it."""
    with contextlib.ExitStack() as stack:

        def make(respond):
            server = Server(respond)
            stack.callback(server.close)
            connection = {
                "conn_type": "workflow_automation",
                "host": server.url,
                "password": "a-key-of-the-tests",
            }
            monkeypatch.setenv("AIRFLOW_CONN_RAW", json.dumps(connection))
            return server

        yield make
