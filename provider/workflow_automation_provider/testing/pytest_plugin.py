"""
pytest fixtures for DAG authors.

Load them from a ``conftest.py``:

.. code-block:: python

    pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from workflow_automation_provider.testing import DEMO_KEY, LocalService

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["CONNECTION_ID", "workflow_automation_connection", "workflow_automation_service"]

CONNECTION_ID = "workflow_automation_default"
"""The connection that is pointed at the service."""


@pytest.fixture
def workflow_automation_service(tmp_path: Path) -> Iterator[LocalService]:
    """
    Run a fresh local service with one key, for the flow ``demo-flow``.

    :param tmp_path: where its journal is kept.
    """
    with LocalService(keys=[DEMO_KEY], journal=tmp_path / "workflow-automation-journal.jsonl") as service:
        yield service


@pytest.fixture
def workflow_automation_connection(
    workflow_automation_service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> str:
    """
    Point the default connection at the local service, and return the connection's id.

    :param workflow_automation_service: the service.
    :param monkeypatch: sets the environment variable.
    """
    connection = {
        "conn_type": "workflow_automation",
        "host": workflow_automation_service.base_url,
        "password": workflow_automation_service.keys[0].value,
        "extra": {"flow_id": workflow_automation_service.keys[0].flow_id},
    }
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION_ID.upper()}", json.dumps(connection))
    return CONNECTION_ID
