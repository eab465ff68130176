"""The site that `make docs` has built: run by it, after the build."""

from __future__ import annotations

import importlib
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import is_typeddict
from urllib.parse import unquote, urlsplit

import pytest

import public_face
from doc_pages import PAGES, ROOT

SITE = ROOT / "docs" / "_build" / "html"
PACKAGE = "workflow_automation_provider"


class Page(HTMLParser):
    """The anchors of a page, and where its links, pictures and styles lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


READ = {path: Page(path) for path in sorted(SITE.rglob("*.html"))}


def test_each_page_of_the_project_is_built():
    # The README is the beginning of the first page.
    pages = {*PAGES} - {ROOT / "README.md"}
    assert {SITE / page.relative_to(ROOT).with_suffix(".html") for page in pages} <= READ.keys()
    assert 'id="first-dags"' in (SITE / "docs" / "index.html").read_text(encoding="utf-8")


def test_the_footer_names_no_owner_and_signatures_no_sentinel():
    text = "".join(path.read_text(encoding="utf-8") for path in READ)
    assert "Copyright" not in text
    assert "UNSET" not in re.sub(r"<[^>]+>", "", text)


@pytest.mark.parametrize("path", READ, ids=lambda path: path.relative_to(SITE).as_posix())
def test_links_lead_somewhere(path):
    broken = []
    for target in READ[path].targets:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        known = READ[found].anchors if found in READ else set()
        if not found.exists() or (
            parts.fragment and known and unquote(parts.fragment) not in known
        ):
            broken.append(target)
    assert broken == []


def inventory():
    """Return the names that the reference describes, with their pages."""
    content = (SITE / "objects.inv").read_bytes()
    _, _, rest = content.partition(b"using zlib.\n")
    lines = zlib.decompress(rest).decode().splitlines()
    found = [re.fullmatch(r"(.+?) py:\w+ -?\d+ (\S+) .*", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def test_the_reference_has_each_public_name():
    # Not those members that only Airflow reads, such as template_fields: the tables of arguments
    # say it better.
    named = {
        f"{PACKAGE}.{module}.{name}"
        for module, names in public_face.surface().items()
        for name, is_what in names.items()
        if "." not in name or re.match(r"\((?!')|property", is_what)
    }
    assert sorted(named - {*inventory()}) == []


def test_the_reference_has_each_key_of_a_result():
    results = {
        f"{PACKAGE}.{module}.{name}": found.__annotations__.keys()
        for module, names in public_face.surface().items()
        for name in names
        if is_typeddict(
            found := getattr(importlib.import_module(f"{PACKAGE}.{module}"), name, None)
        )
    }
    assert len(results) >= 6
    known = {*inventory()}
    # A key that is inherited is that of the base.
    missing = [
        f"{path}.{key}"
        for path, keys in results.items()
        for key in keys
        if not any(f"{base}.{key}" in known for base, of_base in results.items() if of_base <= keys)
    ]
    assert missing == []
