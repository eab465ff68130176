"""
Renew what pages of the documentation take from code, so that they can be read without a build.

A comment before a code block names the part of an example DAG that is between ``# [START name]``
and ``# [END name]``; one before a table names the docstrings that it is made of: those of methods
of a class, or of classes of a module::

    <!-- cut: example_dags/workflow_automation_trigger.py howto_operator_trigger_flow --> <!--
    table: workflow_automation_provider.hooks.workflow_automation.WorkflowAutomationHook close -->
    <!-- table: workflow_automation_provider.testing.journal Run Upload -->
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

PROJECT = Path(__file__).parent.parent

_CUT = re.compile(r"^(<!-- cut: (\S+) (\S+) -->\n+```python\n).*?^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^(<!-- table: (\S+) (.+) -->\n)(?:\n(?:\|.*\n)+)?", re.MULTILINE)


def cut(path: str, name: str) -> str:
    """
    Return what is between two markers, without its indentation, formatted as a file of its own.

    :raises ValueError: if the markers are not there, once each
    """
    text = (PROJECT / path).read_text(encoding="utf-8")
    found = re.findall(
        rf"^ *# \[START {name}\]\n(.*?)^ *# \[END {name}\]$", text, re.MULTILINE | re.DOTALL
    )
    if len(found) != 1:
        raise ValueError(
            f"{path} has {len(found)} parts from [START {name}] to [END {name}], expected one."
        )
    code = textwrap.dedent(found[0]).strip("\n") + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "snippet.py", "-"]
    return subprocess.run(
        command, input=code, capture_output=True, check=True, text=True, cwd=PROJECT
    ).stdout


def first_sentence(documented: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def rows(path: str, names: list[str]) -> Iterator[list[str]]:
    """
    Return a row for each method of a class, or class of a module.

    How it is called, and what its docstring says.
    """
    yield ["Name", "Meaning"]
    for name in names:
        found = getattr(resolve_name(path), name)
        parameters = [*inspect.signature(found).parameters.values()]
        arguments = [
            one.name for one in parameters if one.kind != one.KEYWORD_ONLY and one.name != "self"
        ]
        meaning = [first_sentence(found)]
        if inspect.isfunction(found):
            said = re.findall(
                r"^:param (\w+): (.+?)(?=^:|\Z)",
                inspect.getdoc(found) or "",
                re.MULTILINE | re.DOTALL,
            )
            meaning += (f"``{one}``: {' '.join(text.split())}." for one, text in said)
        yield [f"``{name}({', '.join(arguments)})``", " ".join(meaning)]


def as_markdown(table: Iterator[list[str]]) -> str:
    """Return a table."""
    head, *others = (
        [
            re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", cell)
            .replace("``", "`")
            .replace("|", r"\|")
            for cell in row
        ]
        for row in table
    )
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *others))


def renewed(text: str) -> str:
    """Return a page with all its snippets cut again, and its tables made again."""
    text = _CUT.sub(lambda match: f"{match[1]}{cut(match[2], match[3])}```", text)
    return _TABLE.sub(
        lambda match: f"{match[1]}\n{as_markdown(rows(match[2], match[3].split()))}", text
    )


def main() -> None:
    """Renew the pages whose snippets or tables have changed."""
    for page in (PROJECT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"Renewed {page.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
