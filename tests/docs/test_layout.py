"""How the site looks in a browser: at each width, nothing is cut, nothing scrolls sideways, and the search finds."""

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
BUILT = [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html"))]
READ = [page for page in BUILT if page.startswith(("docs/", "README", "SECURITY"))]
WIDTHS = (390, 1024, 1100, 1366, 1920)
CHROMIUM = shutil.which("chromium")

# Each page in a frame of each width: what is wider than the place that it has.
MEASURE = """
const [pages, widths] = %s;
const frame = document.createElement("iframe");
frame.height = 900;
document.body.append(frame);
const loaded = (url) => new Promise((resolve) => { frame.onload = resolve; frame.src = url; });
const name = (element) => element.tagName.toLowerCase() + " " + element.textContent.trim().slice(0, 40);
(async () => {
    const wrong = [];
    for (const page of pages) {
        frame.width = 1366;
        await loaded("/" + page);
        const inside = frame.contentDocument, view = frame.contentWindow;
        for (const width of widths) {
            frame.width = width;
            const root = inside.documentElement;
            if (root.scrollWidth > root.clientWidth) wrong.push([page, width, "the page scrolls"]);
            const content = inside.querySelector(".content").getBoundingClientRect();
            if (content.right > width) wrong.push([page, width, "the text is cut"]);
            for (const element of inside.querySelectorAll("article *")) {
                const box = element.getBoundingClientRect();
                const style = view.getComputedStyle(element);
                const scrolls = element.scrollWidth > element.clientWidth + 1 && style.overflowX !== "visible";
                if (!box.width || style.position === "absolute" || element.closest("button, .headerlink")) continue;
                if (scrolls || box.right > width + 1) wrong.push([page, width, name(element)]);
            }
        }
    }
    const found = {};
    for (const term of %s) {
        await loaded("/search.html?q=" + term);
        for (let i = 0; i < 200 && !/Search (finished|Results)/.test(
            frame.contentDocument.querySelector("#search-results p.search-summary")?.textContent ?? ""); i++)
            await new Promise((resolve) => setTimeout(resolve, 50));
        found[term] = [...frame.contentDocument.querySelectorAll("#search-results li a")].map(
            (link) => new URL(link.href).pathname.slice(1));
    }
    document.body.textContent = "";
    const output = document.createElement("pre");
    output.id = "output";
    output.textContent = JSON.stringify({wrong, found});
    document.body.append(output);
})();
"""


class Quiet(SimpleHTTPRequestHandler):
    """The site, and the page that measures it."""

    def do_GET(self):
        if self.path != "/measure":
            super().do_GET()
            return
        script = MEASURE % (json.dumps([READ, WIDTHS]), json.dumps(["503", "MWAA"]))
        body = f"<!doctype html><body><script>{script}</script>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return what Chromium finds."""
    if not CHROMIUM:
        pytest.skip("needs Chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=600000"]
    options += [f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "--dump-dom"]
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [CHROMIUM, *options, f"http://127.0.0.1:{server.server_port}/measure"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        server.shutdown()
    output = re.search(r'<pre id="output">(.*?)</pre>', done.stdout, re.DOTALL)
    assert output, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(output[1]))


def test_nothing_is_cut_and_nothing_scrolls_sideways(measured):
    assert measured["wrong"] == [], "\n".join(str(w) for w in measured["wrong"])


def test_the_search_finds(measured):
    assert {"docs/promises.html", "docs/if-it-fails.html"} <= {*measured["found"]["503"]}
    assert measured["found"]["MWAA"][0] == "docs/install.html"
