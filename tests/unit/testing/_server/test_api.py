from __future__ import annotations

import pytest

from ..conftest import only_request


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
        "responded",
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


def test_pages_and_control_are_not_counted(service, http):
    for path in ("/", "/runs/1", "/_control/health", "/_control/journal"):
        http.get(path)
    assert service.journal.requests() == []
