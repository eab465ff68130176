"""
The documentation without a build.

Links, the navigation, snippets, code blocks, and the pages of the reference.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import public_face
import snippets
from code_blocks import read_code_blocks
from doc_pages import PAGES, ROOT, anchors, is_from_example, links

PACKAGE = "workflow_automation_provider"
EXAMPLES = sorted((ROOT / "example_dags").glob("*.py"))
BLOCKS = [(page, block) for page in PAGES for block in read_code_blocks(page)]
PYTHON = [(page, block) for page, block in BLOCKS if block.language == "python"]


def name_of(page):
    return str(page.relative_to(ROOT))


# Sentences ----------------------------------------------------------------------------------------

# Of Airflow's own.
AIRFLOWS = {
    "Task is not able to be run",
    "state mismatch",
    "Task received SIGTERM",
    "heartbeat timeout",
    "The conn_id … isn't defined",
    "Out of range float values are not JSON compliant",
}


def quoted_sentences():
    """Return what the table of what is searched for in a log quotes."""
    _, _, after = (ROOT / "docs" / "if-it-fails.md").read_text().partition("\n## Without a code\n")
    rows = re.findall(r"^\|(.*)\|$", after.partition("\n## ")[0], re.MULTILINE)
    for row in rows[2:]:
        yield from re.findall(r"`([^`]+ [^`]+)`", row.split("|")[0])
    yield from re.findall(r'"(If the log [^"]+)"', (ROOT / "docs" / "promises.md").read_text())


def test_quoted_sentences_are_in_the_code():
    modules = (ROOT / "provider").rglob("*.py")
    nodes = [node for module in modules for node in ast.walk(ast.parse(module.read_text()))]
    texts = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    quoted = {*quoted_sentences()} - AIRFLOWS
    assert len(quoted) >= 5
    for sentence in quoted:
        for part in map(str.strip, re.split(r"\[?…\]?", sentence)):
            assert any(part in text for text in texts), (sentence, part)


# Links and the navigation -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "benchmarks" / "README.md", snippets.RECORD], ids=name_of
)
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def navigation(page):
    """The pages that the tables of a page list: the site's navigation is made of these."""
    listed = re.findall(r"^\| .*\| \[[^]]+\]\(([^)#]+\.md)\) \|$", page.read_text(), re.MULTILINE)
    return [(page.parent / path).resolve() for path in listed]


def test_each_page_is_in_the_navigation_once():
    index = ROOT / "docs" / "index.md"
    listed = navigation(index)
    assert len(listed) == len({*listed})
    # The README is the first page of the repository, index.md that of the site.
    assert {*listed} == {*PAGES} - {ROOT / "README.md", index}


# Snippets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", snippets.PAGES, ids=name_of)
def test_snippets_are_those_of_the_examples(page):
    text = page.read_text()
    patterns = (snippets._CUT, snippets._TABLE)
    assert text.count("<!-- ") == sum(len(pattern.findall(text)) for pattern in patterns)
    assert snippets.renewed(text) == text, "make docs renews them"


def test_each_stored_type_is_on_the_page_of_the_record():
    """Each of its fields is then as well: of one without a meaning, the page cannot be made."""
    text = snippets.RECORD.read_text()
    modules = [*(ROOT / "provider" / PACKAGE).rglob("*.py")]
    stored = {
        name
        for module in modules
        for name in re.findall(
            r"^class (\w+)\((?:msgspec\.Struct|_StoreTrigger)\b", module.read_text(), re.MULTILINE
        )
    }
    assert len(stored) >= 11
    assert {name for name in stored if f"| **`{name}`** |" not in text} == set()


def test_each_example_is_shown_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    assert [
        example.name for example in EXAMPLES if f"example_dags/{example.name}" not in text
    ] == []


# Code blocks --------------------------------------------------------------------------------------


def imports(text):
    found = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return "".join(f"{ast.unparse(node)}\n" for node in found)


def test_the_names_of_python_blocks_exist(tmp_path):
    """In the block, in what the page showed before, in this package, or in the standard library."""
    (tmp_path / "unknown.py").write_text("import datetime\nprint(datetime.date, nowhere)")
    before: dict[Path, str] = {}
    for page, block in PYTHON:
        if not is_from_example(block):
            (tmp_path / f"{page.stem}-{block.line}.py").write_text(
                before.get(page, "") + block.text
            )
        before[page] = before.get(page, "") + imports(block.text)
    options = ("--isolated", "--select", "F821", "--output-format", "json")
    command = [sys.executable, "-m", "ruff", "check", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    known = {name for names in public_face.surface().values() for name in names} | {
        *sys.stdlib_module_names
    }
    found = [
        (Path(said["filename"]).name, name)
        for said in json.loads(done.stdout)
        if (name := re.findall(r"`(.+?)`", said["message"])[0]) not in known
    ]
    assert found == [("unknown.py", "nowhere")]


def test_json_blocks_are_json():
    for text in (block.text for _, block in BLOCKS if block.language == "json"):
        for one in [text] if text.startswith(("{\n", "[")) else text.splitlines():
            assert json.loads(one) is not None


def test_each_command_of_make_exists_and_is_in_contributing():
    rules = re.findall(r"^([a-z -]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {*" ".join(rules).split()}
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert targets >= {"demo", "ui", "test", "docs"}
    assert {(page, name) for page, name in named if name not in targets} == set()
    assert {name for page, name in named if page == "CONTRIBUTING.md"} >= targets - {"help"}


def test_the_files_that_contributing_names_exist():
    package = ROOT / "provider" / PACKAGE
    folders = [ROOT, ROOT / "docs", package, *(path for path in package.iterdir() if path.is_dir())]
    named = {*re.findall(r"`([\w./-]+\.(?:py|md))`", (ROOT / "CONTRIBUTING.md").read_text())}
    assert len(named) > 20
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


# Figures ------------------------------------------------------------------------------------------


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = (
        (ROOT / "docs" / "install.md")
        .read_text()
        .partition("| Extra | For |")[2]
        .partition("\n\n")[0]
    )
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(
        project["optional-dependencies"]
    )


@pytest.mark.parametrize("page", ["README.md", "docs/install.md", "CHANGELOG.md"])
def test_the_versions_are_those_of_the_package(page):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = re.findall(r":: Python :: (3\.\d+)'", str(project["classifiers"]))
    text = " ".join((ROOT / page).read_text().split())
    (airflow,) = re.findall(r"'apache-airflow>=([\d.]+)'", str(project["dependencies"]))
    assert re.search(rf"Airflow {re.escape(airflow)} (or later|to) ", text)
    assert {*re.findall(r"Airflow ([\d.]+) or later \(", text)} <= {airflow}
    for first, last in re.findall(r"Python (3\.\d+)(?: to (3\.\d+))?", text):
        assert first == pythons[0]
        assert last in ("", pythons[-1])


def test_the_changelog_begins_with_the_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert first == project["version"]
