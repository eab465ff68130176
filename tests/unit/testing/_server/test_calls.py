from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.testing._server.calls import decode_segment, find_operation


@pytest.mark.parametrize(
    ("segment", "flow_id"),
    [
        ("%2E%2E", ".."),
        ("%E6%97%A5+b%20c", "日+b c"),
        ("a%252Fb", "a%2Fb"),
        ("..%2F..%2Ftrigger", "../../trigger"),
    ],
)
def test_flow_id_is_one_segment(service, http, segment, flow_id):
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
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text not in {".", ".."})
)
def test_any_text_comes_back_as_it_was_encoded(flow_id):
    segment = quote(flow_id, safe="").encode()
    assert find_operation(b"/api/flows/" + segment + b"/trigger") == ("trigger_by_path", flow_id)


@given(st.binary())
def test_decoding_never_fails_and_never_yields_an_empty_identifier(segment):
    assert decode_segment(segment) != ""


@given(st.lists(st.sampled_from([b"api", b"flows", b"trigger", b"public", b"upload", b"", b"x"]), max_size=6))
def test_only_the_three_paths_are_operations(segments):
    operation, flow_id = find_operation(b"/" + b"/".join(segments))
    known = {(b"api", b"trigger"): "trigger_by_key", (b"api", b"public", b"upload"): "upload"}
    if operation == "trigger_by_path":
        assert flow_id
        assert segments == [b"api", b"flows", flow_id.encode(), b"trigger"]
    else:
        assert operation == known.get(tuple(segments))
