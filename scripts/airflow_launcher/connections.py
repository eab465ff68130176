"""Connections to a local service."""

from __future__ import annotations

from typing import Any

from workflow_automation_provider.testing import DEMO_KEY, Key


def connection_to(base_url: str, key: Key = DEMO_KEY, **extra: Any) -> dict[str, Any]:
    """
    Return an Airflow connection to a local service.

    :param base_url: where its API is
    :param key: one of its keys
    :param extra: more fields for the connection's extra
    """
    return {
        "conn_type": "workflow_automation",
        "host": base_url,
        "password": key.value,
        "extra": {"flow_id": key.flow_id, **extra},
    }
