"""
Renew what pages of the documentation take from code, so that they can be read without a build.

A comment before a code block names the part of an example DAG that is between ``# [START name]`` and ``# [END name]``; one before
a table names the docstrings that it is made of: those of methods of a class, or of dataclasses::

    <!-- cut: example_dags/workflow_automation_trigger.py howto_operator_trigger_flow -->
    <!-- methods: workflow_automation_provider.hooks.workflow_automation.WorkflowAutomationHook close -->
    <!-- fields: workflow_automation_provider.testing.journal Run Upload -->
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent

_CUT = re.compile(r"^(<!-- cut: (\S+) (\S+) -->\n+```python\n).*?^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(
    r"^(<!-- (methods|fields): (\S+) (.+) -->\n)(?:\n(?:\|.*\n)+)?",
    re.MULTILINE,
)
_MARKER = re.compile(r"^ *# \[(?:START|END) \w+\]\n", re.MULTILINE)


def cut(path: str, name: str) -> str:
    """
    Return what is between two markers, without its indentation, formatted as a file of its own.

    :raises ValueError: if the markers are not there, once each
    """
    text = (PROJECT / path).read_text(encoding="utf-8")
    found = re.findall(rf"^ *# \[START {name}\]\n(.*?)^ *# \[END {name}\]$", text, re.MULTILINE | re.DOTALL)
    if len(found) != 1:
        raise ValueError(
            f"{path} has {len(found)} parts between [START {name}] and [END {name}], expected one."
        )
    code = textwrap.dedent(_MARKER.sub("", found[0])).strip("\n") + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "snippet.py", "-"]
    return subprocess.run(command, input=code, capture_output=True, check=True, text=True, cwd=PROJECT).stdout


def first_sentence(documented: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def rows_of_methods(path: str, names: list[str]) -> Iterator[list[str]]:
    """Return a row for each of these methods of a class: how it is called, and what its docstring says."""
    module, _, name = path.rpartition(".")
    yield ["Method", "Meaning"]
    for method in names:
        function = getattr(getattr(import_module(module), name), method)
        parameters = [*inspect.signature(function).parameters.values()][1:]
        arguments = [one.name for one in parameters if one.kind != one.KEYWORD_ONLY]
        said = re.findall(
            r"^:param (\w+): (.+?)(?=^:|\Z)", inspect.getdoc(function) or "", re.MULTILINE | re.DOTALL
        )
        meaning = [first_sentence(function), *(f"``{one}``: {' '.join(text.split())}." for one, text in said)]
        yield [f"``{method}({', '.join(arguments)})``", " ".join(meaning)]


def rows_of_fields(module: str, names: list[str]) -> Iterator[list[str]]:
    """Return a row for each of these dataclasses: what it is, and its fields."""
    yield ["Class", "Meaning", "Fields"]
    for name in names:
        found = getattr(import_module(module), name)
        fields = [one for one, kind in inspect.get_annotations(found).items() if "ClassVar" not in str(kind)]
        yield [f"``{name}``", first_sentence(found), ", ".join(f"``{field}``" for field in fields)]


def as_markdown(rows: Iterator[list[str]]) -> str:
    """Return a table."""
    head, *others = (
        [
            re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", cell).replace("``", "`").replace("|", r"\|")
            for cell in row
        ]
        for row in rows
    )
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *others))


def renewed(text: str) -> str:
    """Return a page with all its snippets cut again, and its tables made again."""

    def made(match: re.Match[str]) -> str:
        comment, kind, path, names = match.groups()
        rows = rows_of_methods if kind == "methods" else rows_of_fields
        return f"{comment}\n{as_markdown(rows(path, names.split()))}"

    return _TABLE.sub(made, _CUT.sub(lambda match: f"{match[1]}{cut(match[2], match[3])}```", text))


def main() -> None:
    """Renew the pages whose snippets or tables have changed."""
    for page in (PROJECT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"Renewed {page.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
