from __future__ import annotations

import base64
import hashlib
from datetime import UTC, date, datetime, timedelta

import httpx
import pytest

from workflow_automation_provider.testing import Key, LocalService

from .conftest import KEY, Caller


def only_request(service):
    (request,) = service.journal.requests()
    return request


def test_trigger_by_path_starts_a_run_without_looking_at_a_key(service, http):
    response = http.post(
        "/api/flows/any-flow/trigger", json={"inputs": {"a": [1, "é"]}}, headers={"X-API-Key": "x"}
    )
    assert response.status_code == 201
    assert response.json() == {"run_id": "1001", "run_link": f"{service.url}/runs/1001"}
    (run,) = service.runs
    assert (run.run_id, run.flow_id, run.inputs, run.by, run.key) == (
        "1001",
        "any-flow",
        {"a": [1, "é"]},
        "path",
        None,
    )
    assert only_request(service).key_sent


def test_trigger_by_key_starts_the_flow_of_the_key(service, call):
    response = call.by_key({"x": "1"}, key="other")
    assert response.status_code == 201
    (run,) = service.runs
    assert (run.flow_id, run.by, run.key) == ("other-flow", "key", "other")
    request = only_request(service)
    assert (request.operation, request.status, request.run_id, request.outcome) == (
        "trigger_by_key",
        201,
        "1001",
        "replied",
    )


@pytest.mark.parametrize(
    ("files", "answer"),
    [
        ([], "0 files received"),
        (["x"], "1 file received"),
        ([{"name": "a"}, 7, None], "3 files received"),
    ],
)
def test_upload_takes_elements_of_any_shape(service, call, files, answer):
    run_id = call.by_path().json()["run_id"]
    response = call.upload(run_id, files)
    assert (response.status_code, response.json()) == (200, answer)
    (upload,) = service.uploads
    assert (upload.run_id, upload.flow_id, upload.files, upload.key) == ("1001", "demo-flow", files, "demo")


def test_upload_describes_long_strings(service, call):
    data = bytes(range(256)) * 4
    encoded = base64.b64encode(data).decode()
    text = "no base64: é" * 50
    call.by_path()
    call.upload("1001", [{"name": "a.bin", "content": encoded}, text])
    described, plain = service.uploads[0].files
    assert described["name"] == "a.bin"
    assert described["content"]["long_string"] == {
        "length": len(encoded),
        "sha256": hashlib.sha256(encoded.encode()).hexdigest(),
        "decoded": {"length": 1024, "sha256": hashlib.sha256(data).hexdigest()},
    }
    assert plain["long_string"] == {"length": 600, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def test_large_upload_is_counted_and_hashed_only(service, http, call):
    call.by_path()
    body = b'{"flow_id": "demo-flow", "run_id": "1001", "files": ["' + b"x" * 1_000_000 + b'"]}'
    headers = {"X-API-Key": KEY.value, "Content-Type": "application/json"}
    assert http.post("/api/public/upload", content=body, headers=headers).status_code == 200
    (upload,) = service.uploads
    assert (upload.flow_id, upload.run_id, upload.files) == ("demo-flow", "1001", None)
    assert (upload.size, upload.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    wrong = body.replace(b"1001", b"1002")
    assert http.post("/api/public/upload", content=wrong, headers=headers).status_code == 404
    assert "Too large to be shown" in http.get("/runs/1001").text


def test_large_upload_with_files_first_is_taken_for_the_flow_of_the_key(service, http):
    body = b'{"files": ["' + b"x" * 1_000_000 + b'"], "run_id": "1"}'
    headers = {"X-API-Key": KEY.value, "Content-Type": "application/json"}
    assert http.post("/api/public/upload", content=body, headers=headers).status_code == 200
    assert service.uploads[0].run_id is None


def test_inputs_too_large_to_parse(service, call):
    assert call.by_path({"a": "x" * 200_000}).status_code == 413
    assert service.runs == []


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


def test_deep_inputs_are_taken_or_refused_but_never_break_the_service(service, http):
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


def test_pages_and_control_are_not_counted(service, http):
    for path in ("/", "/runs/1", "/_control/health", "/_control/journal"):
        http.get(path)
    assert service.journal.requests() == []


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


@pytest.fixture
def serve(tmp_path):
    services = []

    def start(**options):
        service = LocalService(**{"journal": tmp_path / "other.jsonl", **options})
        service.start()
        http = httpx.Client(base_url=service.url, trust_env=False)
        services.append((service, http))
        return service, Caller(http)

    yield start
    for service, http in services:
        http.close()
        service.stop()


def test_expired_key(serve):
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    service, call = serve(keys=[Key("k", "f", expires_on=yesterday)])
    assert call.by_key(key="k").status_code == 403
    call.by_path(flow_id="f")
    assert call.upload("1001", key="k", flow_id="f").status_code == 403
    assert len(service.runs) == 1


@pytest.mark.parametrize(
    ("expires_on", "expired"),
    [
        (None, False),
        (date(2024, 5, 1), False),
        (date(2024, 4, 30), True),
        (datetime(2024, 5, 1, 12, 1, tzinfo=UTC), False),
        (datetime(2024, 5, 1, 11, 59), True),  # noqa: DTZ001 - taken as UTC
    ],
)
def test_expiry(expires_on, expired):
    assert Key("k", "f", expires_on=expires_on).expired(datetime(2024, 5, 1, 12, tzinfo=UTC)) is expired


def test_exhausted_key_still_uploads_and_stays_exhausted_after_a_restart(serve):
    key = Key("k", "f", max_runs=2)
    service, call = serve(keys=[key])
    assert [call.by_key(key="k").status_code for _ in range(3)] == [201, 201, 403]
    assert call.by_path(flow_id="f").status_code == 201
    assert call.upload("1001", key="k", flow_id="f").status_code == 200
    service.stop()
    service.start()
    assert call.by_key(key="k").status_code == 403


def test_strict_flows(serve):
    _, call = serve(keys=[Key("k", "keyed")], flows=["known"])
    found = [call.by_path(flow_id=flow_id).status_code for flow_id in ("known", "keyed", "unknown")]
    assert found == [201, 201, 404]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["1001", "1002"]),
        ({"run_id_type": "number"}, [1001, 1002]),
        ({"run_id_type": "number", "first_run_id": 2**53 + 1}, [2**53 + 1, 2**53 + 2]),
        ({"first_run_id": 10**40}, [str(10**40), str(10**40 + 1)]),
    ],
)
def test_run_ids(serve, options, expected):
    service, call = serve(**options)
    assert [call.by_path().json()["run_id"] for _ in expected] == expected
    assert [run.run_id for run in service.runs] == expected
    assert call.upload(str(expected[0]), key="demo-key").status_code == 200


def test_run_links_under_a_public_url(serve):
    _, call = serve(public_url="http://example.test:99/")
    assert call.by_path().json()["run_link"] == "http://example.test:99/runs/1001"


@pytest.mark.parametrize(
    "keys",
    [
        [Key("same", "a"), Key("same", "b")],
        [Key("a", "same"), Key("b", "same")],
    ],
)
def test_keys_must_differ(keys):
    with pytest.raises(ValueError, match="Two keys"):
        LocalService(keys=keys)


def test_key_values_are_neither_shown_nor_journalled(service, call):
    call.by_key()
    call.upload("1001")
    assert "s3cret" not in repr(KEY)
    assert b"s3cret" not in service.journal.path.read_bytes()
