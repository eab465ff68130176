from __future__ import annotations

from ..conftest import JSON


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
    """Lone surrogates do not break a page."""
    assert "No run" in http.get("/").text
    call.by_path(flow_id="first")
    http.post("/api/flows/second/trigger", content=b'{"inputs": {"a": "\\ud800"}}', headers=JSON)
    page = http.get("/").text
    assert page.index("second") < page.index("first")
    assert 'href="/runs/1001"' in page
    assert service.runs[1].inputs == {"a": "\ud800"}
    assert [http.get(f"/runs/{run_id}").status_code for run_id in ("1002", "9")] == [200, 404]
