from __future__ import annotations

import base64
import hashlib

from ..conftest import KEY


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
    assert "Too large" in http.get("/runs/1001").text


def test_large_upload_with_files_first_is_taken_for_the_flow_of_the_key(service, http):
    body = b'{"files": ["' + b"x" * 1_000_000 + b'"], "run_id": "1"}'
    headers = {"X-API-Key": KEY.value, "Content-Type": "application/json"}
    assert http.post("/api/public/upload", content=body, headers=headers).status_code == 200
    assert service.uploads[0].run_id is None


def test_inputs_too_large_to_parse(service, call):
    assert call.by_path({"a": "x" * 200_000}).status_code == 413
    assert service.runs == []
