"""The three operations: which requests are accepted, with which response, and what the journal has of them."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from workflow_automation_provider.testing._server import calls

from ..conftest import JSON, KEY, only_request

BAD_TRIGGERS = [
    b"",
    b"[]",
    b"{}",
    b'{"inputs": []}',
    b'{"inputs": {}, "more": 1}',
    b'{"inputs": {"a": NaN}}',
    b'{"inputs": {"a": "\xff"}}',
    '{"inputs": {}}'.encode("utf-16"),
    b'{"inputs": ' + b"[" * 90_000,
]


@pytest.mark.parametrize("operation", ["trigger_by_path", "trigger_by_key"])
def test_trigger(service, http, operation):
    """By path, no key is looked at."""
    by_path = operation == "trigger_by_path"
    headers = {"X-API-Key": "x" if by_path else "other"}
    path = "/api/flows/any-flow/trigger" if by_path else "/api/trigger"
    response = http.post(path, json={"inputs": {"a": [1, "é"]}}, headers=headers)
    assert response.status_code == 201
    assert response.json() == {"run_id": "1001", "run_link": f"{service.url}/runs/1001"}
    (run,) = service.runs
    flow_id, by, key = ("any-flow", "path", None) if by_path else ("other-flow", "key", "other")
    assert (run.run_id, run.flow_id, run.inputs) == ("1001", flow_id, {"a": [1, "é"]})
    assert (run.by, run.key) == (by, key)
    request = only_request(service)
    assert (request.operation, request.status, request.run_id) == (operation, 201, "1001")
    assert (request.outcome, request.flow_id, request.key_sent) == ("responded", flow_id, True)


@pytest.mark.parametrize(
    ("files", "words"),
    [([], "0 files received"), (["x"], "1 file received"), ([{"name": "a"}, 7, None], "3 files received")],
)
def test_upload_takes_elements_of_any_shape(service, call, files, words):
    call.by_path()
    response = call.upload("1001", files)
    assert (response.status_code, response.json()) == (200, words)
    (upload,) = service.uploads
    assert (upload.run_id, upload.flow_id, upload.files, upload.key) == ("1001", "demo-flow", files, "demo")


def test_upload_describes_long_strings(service, call):
    data = bytes(range(256)) * 4
    encoded = base64.b64encode(data).decode()
    text = "no base64: é" * 50
    call.by_path()
    call.upload("1001", [{"name": "a.bin", "content": encoded}, text])
    described, plain = service.uploads[0].files
    assert described["content"]["long_string"] == {
        "length": len(encoded),
        "sha256": hashlib.sha256(encoded.encode()).hexdigest(),
        "decoded": {"length": 1024, "sha256": hashlib.sha256(data).hexdigest()},
    }
    assert plain["long_string"] == {"length": 600, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def test_too_large_to_be_parsed(service, http, call, monkeypatch):
    """An upload is counted and hashed; inputs are rejected."""
    monkeypatch.setattr(calls, "MAX_PARSED", 100_000)
    body = b'{"flow_id": "demo-flow", "run_id": "1001", "files": ["' + b"x" * 1_000_000 + b'"]}'
    response = http.post("/api/public/upload", content=body, headers={**JSON, "X-API-Key": KEY.value})
    assert (response.status_code, response.json()) == (200, "files received")
    (upload,) = service.uploads
    assert (upload.flow_id, upload.run_id, upload.files) == (None, None, None)
    assert (upload.size, upload.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert call.by_path({"a": "x" * 200_000}).status_code == 413
    assert service.runs == []


@pytest.mark.parametrize("path", ["/api/flows/f/trigger", "/api/trigger"])
@pytest.mark.parametrize("body", BAD_TRIGGERS, ids=lambda body: repr(body[:30]))
def test_bad_trigger_bodies(service, http, path, body):
    assert http.post(path, content=body, headers={**JSON, "X-API-Key": KEY.value}).status_code == 400
    assert service.runs == []
    assert only_request(service).status == 400


def test_deep_inputs_are_accepted_or_rejected_but_never_break_the_service(service, http):
    statuses = []
    for depth in (100, 500, 900, 2000, 12_000):
        body = b'{"inputs": ' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)
        statuses.append(http.post("/api/flows/f/trigger", content=body, headers=JSON).status_code)
    assert statuses[0] == 201
    # How deep is too deep depends on the Python.
    assert set(statuses) <= {201, 400}
    for run in service.runs:
        assert http.get(f"/runs/{run.run_id}").status_code == 200


@pytest.mark.parametrize(
    "changes", [{"files": ...}, {"run_id": 1001}, {"flow_id": 1}, {"files": {}}, {"more": 1}]
)
def test_bad_upload_bodies(service, http, call, changes):
    call.by_path()
    body = {"flow_id": "demo-flow", "run_id": "1001", "files": [], **changes}
    body = {name: value for name, value in body.items() if value is not ...}
    response = http.post("/api/public/upload", json=body, headers={"X-API-Key": KEY.value})
    assert (response.status_code, service.uploads) == (400, [])


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/jsonp", None, "Application/JSON; charset=utf-8"]
)
def test_content_type(service, http, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = http.post("/api/flows/f/trigger", content=b'{"inputs": {}}', headers=headers)
    assert response.status_code == (201 if "JSON" in str(content_type) else 415)
    assert len(service.runs) == (response.status_code == 201)


@pytest.mark.parametrize("path", ["/api/flows/f/trigger", "/api/trigger", "/api/public/upload"])
def test_only_post(service, http, path):
    methods = ["GET", "PUT", "DELETE", "HEAD"]
    responses = [http.request(method, path) for method in methods]
    assert {(response.status_code, response.headers["allow"]) for response in responses} == {(405, "POST")}
    assert [request.method for request in service.journal.requests()] == methods


@pytest.mark.parametrize("path", ["/flows/f/trigger", "/api", "/api/flows/f", "/api/trigger/", "/nowhere"])
def test_calls_to_wrong_paths_are_counted(service, http, path):
    assert http.post(path, json={"inputs": {}}).status_code == 404
    request = only_request(service)
    assert (request.path, request.operation, request.status) == (path, None, 404)


def test_upload_needs_a_run_of_the_flow_of_the_key(service, call):
    assert call.upload("1001").status_code == 404
    call.by_path(flow_id="other-flow")
    assert call.upload("1001").status_code == 403
    assert call.upload("1001", key="other").status_code == 403
    assert call.upload("1001", key="other", flow_id="other-flow").status_code == 200
    assert len(service.uploads) == 1


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "wrong"}, {"X-API-Key": ""}])
def test_missing_or_wrong_key(service, http, headers):
    assert http.post("/api/trigger", json={"inputs": {}}, headers=headers).status_code == 401
    body = {"flow_id": "demo-flow", "run_id": "1", "files": []}
    assert http.post("/api/public/upload", json=body, headers=headers).status_code == 401
    assert [request.key_sent for request in service.journal.requests()] == [bool(headers)] * 2


def test_key_values_are_neither_shown_nor_journalled(service, call):
    call.by_key()
    call.upload("1001")
    assert "s3cret" not in repr(KEY) + service.journal.path.read_text()


def test_pages_and_control_are_not_counted(service, http):
    for path in ("/", "/runs/1", "/_control/health", "/_control/journal"):
        http.get(path)
    assert service.journal.requests() == []


def test_each_line_of_the_journal_is_an_event_with_its_fields(service, call):
    call.by_key({"a": "b"})
    run, request = map(json.loads, service.journal.path.read_text().splitlines())
    assert {**run, "at": ""} == {
        "event": "run",
        "run_id": "1001",
        "flow_id": "demo-flow",
        "inputs": {"a": "b"},
        "by": "key",
        "key": "demo",
        "at": "",
    }
    assert (request["event"], request["status"]) == ("request", 201)
