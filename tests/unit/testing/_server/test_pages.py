from __future__ import annotations

from ..conftest import JSON


def test_run_link_leads_to_a_page_with_inputs_and_files(http, call):
    link = call.by_key({"who": "world"}).json()["run_link"]
    call.upload("1001", [{"name": "report.csv"}])
    page = http.get(link)
    assert page.headers["content-type"].startswith("text/html")
    for text in ("Run 1001", "demo-flow", "world", "report.csv", "key “demo”"):
        assert text in page.text
    assert "Callbacks" not in page.text


def test_everything_is_escaped(http, call):
    evil = "<script>alert(1)</script>"
    call.by_path({evil: evil}, flow_id="%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    call.upload("1001", [evil], flow_id="demo-flow")
    for path in ("/", "/runs/1001"):
        page = http.get(path).text
        assert "<script" not in page
        assert "&lt;script&gt;" in page


def test_lone_surrogates_do_not_break_a_page(service, http):
    http.post("/api/flows/f/trigger", content=b'{"inputs": {"a": "\\ud800"}}', headers=JSON)
    assert service.runs[0].inputs == {"a": "\ud800"}
    assert http.get("/runs/1001").status_code == 200


def test_index_lists_runs_newest_first(http, call):
    assert "No run" in http.get("/").text
    call.by_path(flow_id="first")
    call.by_path(flow_id="second")
    page = http.get("/").text
    assert page.index("second") < page.index("first")
    assert 'href="/runs/1001"' in page
    assert http.get("/runs/9").status_code == 404
