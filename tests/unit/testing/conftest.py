from __future__ import annotations

import httpx
import pytest

from airflow_launcher import processes
from certificates import issue_certificate
from workflow_automation_provider.testing import Key, LocalService

KEY = Key("s3cret/+ key", "demo-flow", name="demo")
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def service(tmp_path):
    keys = [KEY, Key("other", "other-flow", name="other")]
    with LocalService(keys=keys, journal=tmp_path / "journal.jsonl") as running:
        yield running


@pytest.fixture
def http(service):
    with httpx.Client(base_url=service.url, trust_env=False, timeout=10) as client:
        yield client


def only_request(service):
    (request,) = service.journal.requests()
    return request


def wait_for(condition):
    return processes.wait_for("what a test expects", condition, pause=0.005)


class Caller:
    """Sends well-formed requests for the three operations."""

    def __init__(self, http):
        self.http = http

    def by_path(self, inputs=None, flow_id="demo-flow"):
        return self.http.post(f"/api/flows/{flow_id}/trigger", json={"inputs": inputs or {}})

    def by_key(self, inputs=None, key=KEY.value):
        return self.http.post(
            "/api/trigger", json={"inputs": inputs or {}}, headers={"X-API-Key": key}
        )

    def upload(self, run_id, files=(), key=KEY.value, flow_id="demo-flow"):
        body = {"flow_id": flow_id, "run_id": run_id, "files": list(files)}
        return self.http.post("/api/public/upload", json=body, headers={"X-API-Key": key})


@pytest.fixture
def call(http):
    return Caller(http)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    return issue_certificate("127.0.0.1", tmp_path_factory.mktemp("certificate"))
