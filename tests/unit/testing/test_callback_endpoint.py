"""The callback endpoint without Airflow's API server. What it responds is tested in tests/unit/plugins."""

from __future__ import annotations

import logging
from uuid import uuid4

import httpx
import pytest

from workflow_automation_provider.execution.callback import PATH, new_token
from workflow_automation_provider.testing import CallbackEndpoint


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_serves_the_endpoint_and_logs_no_token(caplog, monkeypatch, host):
    caplog.set_level(logging.DEBUG, logger="")
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("httpx"), "disabled", True)  # the test's own
    token = new_token(uuid4())
    with CallbackEndpoint(host=host) as endpoint, httpx.Client(trust_env=False, timeout=60) as http:
        assert endpoint.url == f"http://{f'[{host}]' if ':' in host else host}:{endpoint.port}"
        assert http.put(f"{endpoint.url}{PATH}?token={token}").status_code == 405
    assert token not in caplog.text
