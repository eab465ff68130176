"""
The three operations.

Which requests are accepted, with which response, and what the journal and the pages have of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.testing._server import calls
from workflow_automation_provider.testing._server.calls import decode_segment, find_operation

from ..conftest import JSON, KEY, only_request

BY_PATH, BY_KEY, UPLOAD = "/api/flows/f/trigger", "/api/trigger", "/api/public/upload"
WITH_KEY = {**JSON, "X-API-Key": KEY.value}


@pytest.mark.parametrize("operation", ["trigger_by_path", "trigger_by_key"])
def test_trigger(service, http, operation):
    """By path, no key is looked at; the content type may be of any case, with parameters."""
    by_path = operation == "trigger_by_path"
    headers = {
        "X-API-Key": "x" if by_path else "other",
        "Content-Type": "Application/JSON; charset=utf-8",
    }
    response = http.post(
        BY_PATH if by_path else BY_KEY, json={"inputs": {"a": [1, "é"]}}, headers=headers
    )
    assert response.status_code == 201
    assert response.json() == {"run_id": "1001", "run_link": f"{service.url}/runs/1001"}
    (run,) = service.runs
    flow_id, by, key = ("f", "path", None) if by_path else ("other-flow", "key", "other")
    assert (run.run_id, run.flow_id, run.inputs) == ("1001", flow_id, {"a": [1, "é"]})
    assert (run.by, run.key) == (by, key)
    request = only_request(service)
    assert (request.operation, request.status, request.run_id) == (operation, 201, "1001")
    assert (request.outcome, request.flow_id, request.key_sent) == ("responded", flow_id, True)


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
    assert plain["long_string"] == {
        "length": 600,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def test_too_large_to_be_parsed(service, http, call, monkeypatch):
    """An upload is counted and hashed; inputs are rejected."""
    monkeypatch.setattr(calls, "MAX_PARSED", 100_000)
    body = b'{"flow_id": "demo-flow", "run_id": "1001", "files": ["' + b"x" * 1_000_000 + b'"]}'
    response = http.post(UPLOAD, content=body, headers=WITH_KEY)
    assert (response.status_code, response.json()) == (200, "files received")
    (upload,) = service.uploads
    assert (upload.flow_id, upload.run_id, upload.files) == (None, None, None)
    assert (upload.size, upload.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert call.by_path({"a": "x" * 200_000}).status_code == 413
    assert service.runs == []


GOOD = b'{"inputs": {}}'
BAD_INPUTS = [
    *(b"", b"[]", b"{}", b'{"inputs": []}', b'{"inputs": {}, "more": 1}'),
    *(b'{"inputs": {"a": NaN}}', b'{"inputs": {"a": "\xff"}}', '{"inputs": {}}'.encode("utf-16")),
    b'{"inputs": ' + b"[" * 90_000,
]
BAD_FILES: list[dict[str, Any]] = [{"run_id": 1001}, {"flow_id": 1}, {"files": {}}, {"more": 1}]
FILES: dict[str, Any] = {"flow_id": "demo-flow", "run_id": "1001", "files": []}

REJECTED = [
    *((400, path, {"content": body}) for path in (BY_PATH, BY_KEY) for body in BAD_INPUTS),
    *((400, UPLOAD, {"json": {**FILES, **changes}}) for changes in BAD_FILES),
    (400, UPLOAD, {"json": {"flow_id": "demo-flow", "run_id": "1001"}}),
    *(
        (401, BY_KEY, {"content": GOOD, "headers": headers})
        for headers in (JSON, {**JSON, "X-API-Key": "x"})
    ),
    (401, UPLOAD, {"json": FILES, "headers": {"X-API-Key": ""}}),
    (403, UPLOAD, {"json": FILES, "headers": {"X-API-Key": "other"}}),
    (404, UPLOAD, {"json": FILES}),
    *(
        (404, path, {"content": GOOD})
        for path in ("/flows/f/trigger", "/api", "/api/flows/f", "/api/trigger/")
    ),
    *((405, path, {"method": "GET"}) for path in (BY_PATH, BY_KEY, UPLOAD)),
    *((405, BY_KEY, {"method": method}) for method in ("PUT", "DELETE", "HEAD")),
    *(
        (415, BY_PATH, {"content": GOOD, "headers": {"Content-Type": type_}})
        for type_ in ("", "text/plain")
    ),
    (415, BY_PATH, {"content": GOOD, "headers": {"Content-Type": "application/jsonp"}}),
]


@pytest.mark.parametrize(("status", "path", "options"), REJECTED)
def test_what_is_rejected(service, http, status, path, options):
    response = http.request(**{"method": "POST", "url": path, "headers": WITH_KEY, **options})
    assert response.status_code == status
    assert response.headers.get("allow") == ("POST" if status == 405 else None)
    assert (service.runs, service.uploads) == ([], [])
    request = only_request(service)
    assert (request.path, request.status, request.run_id) == (path, status, None)
    assert request.key_sent is ("X-API-Key" in options.get("headers", WITH_KEY))


def test_deep_inputs_are_accepted_or_rejected_but_never_break_the_service(service, http):
    statuses = []
    for depth in (100, 500, 900, 2000, 12_000):
        body = b'{"inputs": ' + b'{"a":' * depth + b"1" + b"}" * (depth + 1)
        statuses.append(http.post(BY_PATH, content=body, headers=JSON).status_code)
    assert statuses[0] == 201
    # How deep is too deep depends on the Python.
    assert set(statuses) <= {201, 400}
    for run in service.runs:
        assert http.get(f"/runs/{run.run_id}").status_code == 200


def test_upload_needs_a_run_of_the_flow_of_the_key(service, call):
    call.by_path(flow_id="other-flow")
    assert call.upload("1001").status_code == 403
    files = [{"name": "a"}, 7, None]
    response = call.upload("1001", files, key="other", flow_id="other-flow")
    assert (response.status_code, response.json()) == (200, "3 files received")
    (upload,) = service.uploads
    assert (upload.run_id, upload.flow_id, upload.files, upload.key) == (
        "1001",
        "other-flow",
        files,
        "other",
    )


def test_each_line_of_the_journal_is_an_event_with_its_fields(service, call):
    """The value of a key is nowhere."""
    call.by_key({"a": "b"})
    run, request = map(json.loads, service.journal.path.read_text().splitlines())
    fields = {
        "run_id": "1001",
        "flow_id": "demo-flow",
        "inputs": {"a": "b"},
        "by": "key",
        "key": "demo",
    }
    assert {**run, "at": ""} == {"event": "run", **fields, "at": ""}
    assert (request["event"], request["status"]) == ("request", 201)
    assert "s3cret" not in repr(KEY) + service.journal.path.read_text()


# Paths --------------------------------------------------------------------------------------------


def test_flow_id_is_one_segment(service, http):
    segment, flow_id = "..%2F%E6%97%A5%20c%252Fb", "../日 c%2Fb"
    http.headers["Content-Type"] = "application/json"
    request = http.build_request("POST", "/", content=b'{"inputs": {}}')
    # Past httpx's own encoding, byte by byte.
    request.url = request.url.copy_with(raw_path=f"/api/flows/{segment}/trigger?q=1".encode())
    assert http.send(request).status_code == 201
    assert service.runs[0].flow_id == flow_id
    assert service.journal.requests()[0].path == f"/api/flows/{segment}/trigger"
    assert [http.get(path).status_code for path in ("/runs/1001", "/")] == [200, 200]


@pytest.mark.parametrize("segment", ["", "a/b", "%FF", "%zz", "%", "a%2", ".", ".."])
def test_segments_that_are_no_identifier(segment):
    assert find_operation(f"/api/flows/{segment}/trigger".encode()) == (None, None)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
        lambda text: text not in {".", ".."}
    )
)
def test_any_text_comes_back_as_it_was_encoded(flow_id):
    segment = quote(flow_id, safe="").encode()
    assert find_operation(b"/api/flows/" + segment + b"/trigger") == ("trigger_by_path", flow_id)


@given(st.binary())
def test_decoding_never_fails_and_never_yields_an_empty_identifier(segment):
    assert decode_segment(segment) != ""


@given(
    st.lists(
        st.sampled_from([b"api", b"flows", b"trigger", b"public", b"upload", b"", b"x"]), max_size=6
    )
)
def test_only_the_three_paths_are_operations(segments):
    operation, flow_id = find_operation(b"/" + b"/".join(segments))
    known = {(b"api", b"trigger"): "trigger_by_key", (b"api", b"public", b"upload"): "upload"}
    if operation == "trigger_by_path":
        assert flow_id
        assert segments == [b"api", b"flows", flow_id.encode(), b"trigger"]
    else:
        assert operation == known.get(tuple(segments))


# Pages --------------------------------------------------------------------------------------------


def test_run_link_leads_to_a_page_on_which_everything_is_escaped(http, call):
    evil = "<script>alert(1)</script>"
    link = call.by_key({"who": evil}).json()["run_link"]
    call.upload("1001", [{"name": "report.csv", evil: evil}])
    call.by_path(flow_id="%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    page = http.get(link)
    assert page.headers["content-type"].startswith("text/html")
    for text in ("Run 1001", "demo-flow", "who", "report.csv", "key “demo”"):
        assert text in page.text
    assert "Callbacks" not in page.text
    for shown in (page.text, http.get("/").text, http.get("/runs/1002").text):
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown


def test_index_lists_runs_newest_first(service, http, call):
    """Lone surrogates do not break a page, and pages are no requests of the journal."""
    assert "No run" in http.get("/").text
    call.by_path(flow_id="first")
    http.post("/api/flows/second/trigger", content=b'{"inputs": {"a": "\\ud800"}}', headers=JSON)
    page = http.get("/").text
    assert page.index("second") < page.index("first")
    assert 'href="/runs/1001"' in page
    assert service.runs[1].inputs == {"a": "\ud800"}
    assert [http.get(f"/runs/{run_id}").status_code for run_id in ("1002", "9")] == [200, 404]
    assert len(service.journal.requests()) == 2
