"""
Renew what pages of the documentation take from code, so that they can be read without a build.

A comment before a code block names the part of an example DAG that is between ``# [START name]`` and ``# [END name]``; one before
a table names the docstrings that it is made of: those of methods of a class, or of dataclasses::

    <!-- cut: example_dags/workflow_automation_trigger.py howto_operator_trigger_flow -->
    <!-- methods: workflow_automation_provider.hooks.workflow_automation.WorkflowAutomationHook close -->
    <!-- fields: workflow_automation_provider.testing.journal Run Upload -->
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parent.parent

_CUT = re.compile(
    r"^<!-- cut: (?P<path>\S+) (?P<name>\S+) -->\n+```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_TABLE = re.compile(
    r"^<!-- (?P<kind>methods|fields): (?P<path>\S+) (?P<names>.+) -->\n(?P<rows>(?:\n(?:\|.*\n)+)?)",
    re.MULTILINE,
)
_MARKER = re.compile(r"^ *# \[(?:START|END) \w+\]\n", re.MULTILINE)


def pages() -> Iterator[Path]:
    """Return the pages of the documentation that are written by hand: all of them."""
    for path in sorted((PROJECT / "docs").rglob("*.md")):
        if "_build" not in path.parts:
            yield path


def cut(path: str, name: str) -> str:
    """
    Return what is between two markers, without its indentation, formatted as a file of its own.

    :raises ValueError: if the markers are not there, once each
    """
    text = (PROJECT / path).read_text(encoding="utf-8")
    found = re.findall(
        rf"^ *# \[START {re.escape(name)}\]\n(.*?)^ *# \[END {re.escape(name)}\]$",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if len(found) != 1:
        raise ValueError(
            f"{path} has {len(found)} parts between [START {name}] and [END {name}], expected one."
        )
    code = textwrap.dedent(_MARKER.sub("", found[0])).strip("\n") + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "snippet.py", "-"]
    return subprocess.run(command, input=code, capture_output=True, check=True, text=True, cwd=PROJECT).stdout


def parsed(module: str) -> ast.Module:
    """Return the code of a module of the package."""
    path = (PROJECT / "provider").joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def sentence(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return the first sentence of a docstring, and what it says of the arguments of a function."""
    text = ast.get_docstring(node) or ""
    parts = [" ".join(text.partition("\n\n")[0].split())]
    if isinstance(node, ast.FunctionDef):
        for name, said in re.findall(r"^:param (\w+): (.+?)(?=^:|\Z)", text, re.MULTILINE | re.DOTALL):
            parts.append(f"``{name}``: {' '.join(said.split())}.")
    return " ".join(parts)


def rows_of_methods(path: str, names: list[str]) -> list[list[str]]:
    """Return a row for each of these methods of a class: how it is called, and what its docstring says."""
    module, _, name = path.rpartition(".")
    (found,) = (node for node in parsed(module).body if isinstance(node, ast.ClassDef) and node.name == name)
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    rows = [["Method", "Meaning"]]
    for method in names:
        arguments = [argument.arg for argument in methods[method].args.args[1:]]
        rows.append([f"``{method}({', '.join(arguments)})``", sentence(methods[method])])
    return rows


def rows_of_fields(module: str, names: list[str]) -> list[list[str]]:
    """Return a row for each of these dataclasses: what it is, and its fields."""
    classes = {node.name: node for node in parsed(module).body if isinstance(node, ast.ClassDef)}
    rows = [["Class", "Meaning", "Fields"]]
    for name in names:
        fields = [
            f"``{node.target.id}``"
            for node in classes[name].body
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and "ClassVar" not in ast.unparse(node.annotation)
        ]
        rows.append([f"``{name}``", sentence(classes[name]), ", ".join(fields)])
    return rows


def as_markdown(rows: list[list[str]]) -> str:
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

    def again(match: re.Match[str]) -> str:
        return match[0].replace(
            f"```python\n{match['code']}", f"```python\n{cut(match['path'], match['name'])}"
        )

    def made(match: re.Match[str]) -> str:
        path, names = match["path"], match["names"].split()
        rows = {
            "methods": lambda: rows_of_methods(path, names),
            "fields": lambda: rows_of_fields(path, names),
        }
        return f"{match[0].removesuffix(match['rows'])}\n{as_markdown(rows[match['kind']]())}"

    return _TABLE.sub(made, _CUT.sub(again, text))


def main() -> None:
    """Renew the pages whose snippets or tables have changed."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"Renewed {page.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
