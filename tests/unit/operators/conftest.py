"""Fixtures of the operators."""

from __future__ import annotations

import json

import pytest

from raw_server import Server


@pytest.fixture
def raw_server(request, monkeypatch):
    """Return what makes a server of which a test decides every byte, and the connection to it."""

    def make(respond, **fields):
        server = Server(respond)
        request.addfinalizer(server.close)
        connection = {
            "conn_type": "workflow_automation",
            "host": server.url,
            "password": "a-key-of-the-tests",
            **fields,
        }
        monkeypatch.setenv("AIRFLOW_CONN_RAW", json.dumps(connection))
        return server

    return make
