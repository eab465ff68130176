"""
How the site looks in a browser.

Nothing is cut, nothing scrolls sideways, and the search finds.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from doc_pages import ROOT

SITE = ROOT / "docs" / "_build" / "html"
PAGES = [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html"))]
WIDTHS = [390, 1024, 1366, 1920]

# Each page in a frame of each width: what is wider than the place that it has.
MEASURE = """<!doctype html><body><script>
const frame = document.body.appendChild(document.createElement("iframe"));
frame.height = 900;
const load = (url) => new Promise((loaded) => { frame.onload = loaded; frame.src = "/site/" + url; });
const name = (element) => element.tagName + " " + element.textContent.trim().slice(0, 40);
const isWide = (element, width) => {
    const box = element.getBoundingClientRect(), style = frame.contentWindow.getComputedStyle(element);
    if (!box.width || style.position === "absolute" || element.closest("button, .headerlink")) return false;
    const scrolls = element.scrollWidth > element.clientWidth + 1 && style.overflowX !== "visible";
    return scrolls || box.right > width + 1;
};
(async () => {
    const wrong = [], found = {};
    for (const page of %s) {
        await load(page);
        const inside = frame.contentDocument, root = inside.documentElement;
        for (const width of %s) {
            frame.width = width;
            if (root.scrollWidth > root.clientWidth) wrong.push([page, width, "the page scrolls"]);
            for (const element of inside.querySelectorAll(".content, article *"))
                if (isWide(element, width)) wrong.push([page, width, name(element)]);
        }
    }
    for (const term of ["503", "MWAA"]) {
        await load("search.html?q=" + term);
        for (let i = 0; i < 200 && !/Search (finished|Results)/.test(
            frame.contentDocument.querySelector("#search-results p.search-summary")?.textContent ?? ""); i++)
            await new Promise((resolve) => setTimeout(resolve, 50));
        const links = frame.contentDocument.querySelectorAll("#search-results li a");
        found[term] = [...links].map((link) => new URL(link.href).pathname);
    }
    document.body.innerHTML = "<pre></pre>";
    document.body.firstChild.textContent = JSON.stringify([wrong, found]);
})();
</script>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_in_a_browser(tmp_path):
    read = [page for page in PAGES if page.startswith(("docs/", "SECURITY"))]
    (tmp_path / "site").symlink_to(SITE)
    (tmp_path / "measure.html").write_text(MEASURE % (json.dumps(read), json.dumps(WIDTHS)))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-proxy-server",
    ]
    options += [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--virtual-time-budget=600000",
    ]
    options += [f"--user-data-dir={tmp_path}/chromium", "--dump-dom"]
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = ["chromium", *options, f"http://127.0.0.1:{server.server_port}/measure.html"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        server.shutdown()
    output = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert output, done.stdout[-2000:] + done.stderr[-2000:]
    wrong, found = json.loads(html.unescape(output[1]))
    assert wrong == []
    assert {"/site/docs/promises.html", "/site/docs/if-it-fails.html"} <= {*found["503"]}
    assert found["MWAA"][0] == "/site/docs/install.html"
