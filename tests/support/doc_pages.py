"""The pages of the documentation, and what of them is proven elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from code_blocks import CodeBlock

__all__ = ["DOCS", "PAGES", "ROOT", "anchors", "is_from_example", "links", "table"]

ROOT = Path(__file__).parents[2]
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
TOP = ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md")
PAGES = [ROOT / name for name in TOP] + DOCS

_FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"^ *# \[(?:START|END) \w+\]\n", re.MULTILINE)


def _without_code(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Return where the links and pictures of a page lead."""
    return re.findall(r"\]\(([^)\s]+)\)", _without_code(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors that a code host makes of a page's headings."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", _without_code(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        number, anchor = 0, slug
        while anchor in found:
            number += 1
            anchor = f"{slug}-{number}"
        found.add(anchor)
    return found


def table(page: Path, first_columns: str) -> list[list[str]]:
    """
    Return the rows of the first table with these first columns, as cells.

    The first is without the marks of code.
    """
    text = page.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"| {first_columns} |")
    assert found, f"{page.name} has no table of {first_columns}"
    rows = (line.strip("|").split(" | ") for line in rest.partition("\n\n")[0].splitlines()[2:])
    return [[first.strip(" `"), *(cell.strip() for cell in others)] for first, *others in rows]


def is_from_example(block: CodeBlock) -> bool:
    """
    Return whether a block is a part of an example DAG, or of a DAG file of the tests.

    They are run as a whole.
    """
    examples = [*ROOT.glob("example_dags/*.py"), *ROOT.glob("tests/*/dags/*.py")]
    return any(
        _bare(block.text) in _bare(example.read_text(encoding="utf-8")) for example in examples
    )


def _bare(code: str) -> str:
    """Return code without what a formatter changes, since it has another indentation on a page."""
    return re.sub(r",(?=[)\]}])", "", "".join(_MARKER.sub("", code).split()))
