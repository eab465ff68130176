"""The style and the script of the page **Flow runs**, and the policy that allows these two and nothing else."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --text: light-dark(#18181b, #fafafa); --soft: light-dark(#52525b, #a1a1aa);
  --line: light-dark(#d4d4d8, #3f3f46); --back: light-dark(#fff, #111); --raised: light-dark(#f4f4f5, #27272a);
  --link: light-dark(#1d4ed8, #93c5fd); --bad: light-dark(#b91c1c, #fca5a5); --bar: light-dark(#2563eb, #60a5fa); }
:root[data-theme=light] { color-scheme: light; }
:root[data-theme=dark] { color-scheme: dark; }
* { box-sizing: border-box; }
body { margin: 0; padding: 1rem; background: var(--back); color: var(--text);
  font: .875rem/1.45 Inter, system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.25rem; margin: 0 0 .75rem; }
h2 { font-size: 1rem; margin: 1.25rem 0 .5rem; }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
small, .soft { color: var(--soft); font-size: .8125rem; }
form { display: flex; flex-wrap: wrap; gap: .75rem; align-items: end; margin-bottom: .75rem; }
label { display: grid; gap: .125rem; color: var(--soft); font-size: .8125rem; min-width: 0; }
select, button { font: inherit; color: var(--text); background: var(--raised); border: 1px solid var(--line);
  border-radius: .25rem; padding: .375rem .5rem; max-width: 16rem; }
nav ul, ol { list-style: none; margin: 0 0 .75rem; padding: 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .5rem; }
nav a { display: block; padding: .25rem .625rem; border: 1px solid var(--line); border-radius: 1rem;
  color: var(--text); text-decoration: none; }
nav a[aria-current] { background: var(--raised); font-weight: 600; }
.urgent, nav a.urgent { color: var(--bad); font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem; }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem .5rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
td > * { display: block; }
progress { appearance: none; width: 100%; max-width: 12rem; height: .5rem; border: 0; border-radius: .25rem;
  background: var(--line); overflow: hidden; }
progress::-webkit-progress-bar { background: var(--line); }
progress::-webkit-progress-value { background: var(--bar); }
progress::-moz-progress-bar { background: var(--bar); }
pre { margin: .25rem 0; padding: .5rem; background: var(--raised); border-radius: .25rem; white-space: pre-wrap;
  max-height: 20rem; overflow: auto; font-size: .8125rem; }
ol > li { border-left: 2px solid var(--line); padding: 0 0 .75rem .75rem; }
ol h3 { font-size: .875rem; margin: 0; display: inline; }
@media (max-width: 48rem) {
  thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table, caption, tbody, tr, td { display: block; }
  tr { border: 1px solid var(--line); border-radius: .375rem; padding: .5rem .75rem; margin-bottom: .75rem; }
  td { border: 0; padding: .25rem 0; }
  td:empty { display: none; }
  td::before { content: attr(data-label); display: block; color: var(--soft); font-size: .75rem; }
}
"""
"""Of both pages, inline: nothing is loaded from elsewhere."""

# The page is drawn in a frame that may open nothing: a link is followed by Airflow's own page, around it.
SCRIPT = """
"use strict";
const root = document.documentElement;
const theme = () => { root.dataset.theme = localStorage.getItem("theme") || "system"; };
theme();
addEventListener("storage", theme);
addEventListener("click", (event) => {
  const link = event.target.closest("a[target]");
  if (!link || parent === window) return;
  event.preventDefault();
  const twin = parent.document.createElement("a");
  twin.href = link.href;
  twin.rel = "noopener noreferrer";
  twin.target = link.target === "_top" && !event.ctrlKey && !event.metaKey ? "_self" : "_blank";
  twin.click();
});
const refresh = async () => {
  const live = document.getElementById("live");
  let seconds = Number(live.dataset.seconds);
  if (!document.hidden) {
    try {
      const response = await fetch(location.href, { cache: "no-store" });
      if (response.redirected) return location.reload();
      const text = await response.text();
      const page = new DOMParser().parseFromString(text, "text/html");
      const next = page.getElementById("live");
      if (next) {
        const focused = live.contains(document.activeElement) ? document.activeElement.href : null;
        live.replaceWith(next);
        seconds = Number(next.dataset.seconds);
        if (focused) [...next.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
        const status = document.getElementById("status"), said = page.getElementById("status").textContent;
        if (status.textContent !== said) status.textContent = said;
      }
    } catch { /* Airflow cannot be reached now: what is shown says of when it is. */ }
  }
  setTimeout(refresh, seconds * 1000);
};
addEventListener("DOMContentLoaded", () => {
  const live = document.getElementById("live");
  if (live) setTimeout(refresh, Number(live.dataset.seconds) * 1000);
});
"""
"""Follows Airflow's theme, and refreshes the page."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
"""Of every response."""
