"""The callback endpoint without Airflow's API server. What it responds is tested in tests/unit/plugins."""

from __future__ import annotations

import logging
from uuid import uuid4

import httpx
import pytest

from workflow_automation_provider.execution.callback import PATH, new_token
from workflow_automation_provider.testing import CallbackEndpoint


def status_of(url, method="PUT"):
    with httpx.Client(trust_env=False, timeout=60) as http:
        return http.request(method, f"{url}{PATH}").status_code


def test_serves_the_endpoint_until_stopped():
    with CallbackEndpoint() as endpoint:
        assert endpoint.url == f"http://127.0.0.1:{endpoint.port}"
        assert status_of(endpoint.url) == 405
        with pytest.raises(RuntimeError, match="running already"):
            endpoint.start()
    with pytest.raises(httpx.ConnectError):
        status_of(endpoint.url)
    endpoint.stop()
    port = endpoint.port
    with endpoint:
        assert endpoint.port == port
        assert status_of(endpoint.url) == 405


def test_taken_port():
    with CallbackEndpoint() as endpoint, pytest.raises(OSError, match="in use"):
        CallbackEndpoint(port=endpoint.port).start()


def test_ipv6():
    with CallbackEndpoint(host="::1") as endpoint:
        assert endpoint.url == f"http://[::1]:{endpoint.port}"
        assert status_of(endpoint.url) == 405


def test_its_log_has_no_token(caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, logger="")
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("httpx"), "disabled", True)  # the test's own
    token = new_token(uuid4())
    with CallbackEndpoint() as endpoint, httpx.Client(trust_env=False, timeout=60) as http:
        http.post(f"{endpoint.url}{PATH}?token={token}", json={"status": "started"})
    assert token not in caplog.text
