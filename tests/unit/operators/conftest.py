"""Fixtures of the operators."""

from __future__ import annotations

import contextlib
import json

import pytest

from raw_server import Server


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
