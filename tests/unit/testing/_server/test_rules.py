from __future__ import annotations

import pytest

from workflow_automation_provider.testing import Key

from ..conftest import KEY, only_request

BAD_TRIGGERS = [
    b"",
    b"[]",
    b'"inputs"',
    b"{}",
    b"{",
    b'{"inputs": []}',
    b'{"inputs": null}',
    b'{"inputs": "x"}',
    b'{"inputs": {}, "more": 1}',
    b'{"inputs": {"a": NaN}}',
    b'{"inputs": {"a": "\xff"}}',
    '{"inputs": {}}'.encode("utf-16"),
    b'\xef\xbb\xbf{"inputs": {}}',
    b'{"inputs": ' + b"[" * 90_000,
]


@pytest.mark.parametrize("path", ["/api/flows/f/trigger", "/api/trigger"])
@pytest.mark.parametrize("body", BAD_TRIGGERS, ids=lambda body: repr(body[:30]))
def test_bad_trigger_bodies(service, http, path, body):
    headers = {"Content-Type": "application/json", "X-API-Key": KEY.value}
    assert http.post(path, content=body, headers=headers).status_code == 400
    assert service.runs == []
    assert only_request(service).status == 400


def test_deep_inputs_are_accepted_or_rejected_but_never_break_the_service(service, http):
    headers = {"Content-Type": "application/json"}
    statuses = []
    for depth in (100, 500, 900, 2000, 12_000):
        body = b'{"inputs": ' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)
        statuses.append(http.post("/api/flows/f/trigger", content=body, headers=headers).status_code)
    assert statuses[0] == 201
    # How deep is too deep depends on the Python.
    assert set(statuses) <= {201, 400}
    for run in service.runs:
        assert http.get(f"/runs/{run.run_id}").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"flow_id": "demo-flow", "run_id": "1001"},
        {"flow_id": "demo-flow", "run_id": 1001, "files": []},
        {"flow_id": 1, "run_id": "1001", "files": []},
        {"flow_id": "demo-flow", "run_id": "1001", "files": {}},
        {"flow_id": "demo-flow", "run_id": "1001", "files": [], "more": 1},
    ],
)
def test_bad_upload_bodies(service, http, call, body):
    call.by_path()
    response = http.post("/api/public/upload", json=body, headers={"X-API-Key": KEY.value})
    assert response.status_code == 400
    assert service.uploads == []


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 201),
        ("Application/JSON; charset=utf-8", 201),
        ("text/plain", 415),
        ("application/jsonp", 415),
        ("application/x-www-form-urlencoded", 415),
        (None, 415),
    ],
)
def test_content_type(service, http, content_type, status):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = http.post("/api/flows/f/trigger", content=b'{"inputs": {}}', headers=headers)
    assert response.status_code == status
    assert len(service.runs) == (status == 201)


@pytest.mark.parametrize("path", ["/api/flows/f/trigger", "/api/trigger", "/api/public/upload"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_only_post(service, http, path, method):
    response = http.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert only_request(service).method == method


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


def test_strict_flows(serve):
    _, call = serve(keys=[Key("k", "keyed")], flows=["known"])
    found = [call.by_path(flow_id=flow_id).status_code for flow_id in ("known", "keyed", "unknown")]
    assert found == [201, 201, 404]
