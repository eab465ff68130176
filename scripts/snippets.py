"""
Renew what pages of the documentation take from code, so that they can be read without a build.

A comment before a code block names the part of an example DAG that is between ``# [START name]``
and ``# [END name]``; one before a table names what it is made of: the arguments of a class (or the
named ones, or all ``but`` those), the statuses, what versions keep (:mod:`public_face`), or the
fields of what is stored::

    <!-- cut: example_dags/workflow_automation_trigger.py howto_operator_trigger_flow -->
    <!-- arguments: workflow_automation_provider.operators.uploads.UploadFilesOperator -->
    <!-- statuses: workflow_automation_provider.client.responses.statuses ROWS -->
    <!-- public: names -->
    <!-- stored: workflow_automation_provider.execution.record.entries Start Outcome -->
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import public_face
from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import Code, OutcomeUnknownError

if TYPE_CHECKING:
    from workflow_automation_provider.client.responses.statuses import Row, Trait

PROJECT = Path(__file__).parent.parent

RECORD = PROJECT / "provider/workflow_automation_provider/execution/record/README.md"
"""What is stored, for maintainers."""

PAGES = (*(PROJECT / "docs").rglob("*.md"), RECORD)

_CUT = re.compile(r"^(<!-- cut: (\S+) (\S+) -->\n+```python\n).*?^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(
    r"^(<!-- (arguments|statuses|public|stored): (\S+)(?: (.+))? -->\n)(?:\n(?:\|.*\n)+)?",
    re.MULTILINE,
)

SUCCESS = "success"


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


def arguments(path: str, *chosen: str) -> Iterator[list[str]]:
    """Return a row for each argument of a class, as its docstring has it."""
    yield ["Argument", "Default", "Meaning"]
    owner = resolve_name(path)
    said = parameters_of(owner)
    known = inspect.signature(owner.__init__).parameters
    for name, text in said.items():
        is_named = name in chosen
        if chosen and is_named is (chosen[0] == "but"):
            continue
        yield [f"``{name}``", default_of(known[name]), text]


def default_of(parameter: inspect.Parameter) -> str:
    """Return how a page writes the default, empty where the docstring says what holds then."""
    default = parameter.default
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, timedelta):
        return "1 day" if default == timedelta(days=1) else f"{default.total_seconds():.0f} s"
    if isinstance(default, str | bool | int | float):
        return f"``{default!r}``".replace("'", '"')
    return ""


def stored(path: str, *names: str) -> Iterator[list[str]]:
    """
    Return rows for what is stored: each type as its docstring says, and each of its fields.

    :raises KeyError: if a docstring says nothing of a field
    """
    yield ["Type, field", "Kind", "Meaning"]
    for name in names:
        found = getattr(resolve_name(path), name)
        text = re.split(r"^:param ", inspect.getdoc(found) or "", flags=re.MULTILINE)[0]
        yield [f"**``{name}``**", "", " ".join(text.split())]
        said = parameters_of(found)
        kinds = found.__annotations__ or found.__init__.__annotations__
        for field in inspect.signature(found).parameters:
            if field != "unknown":
                kind = re.sub(r"Annotated\[(\w+), .*?\)\]", r"\1", kinds[field])
                yield [f"``{field}``", f"``{kind}``", said[field]]


def parameters_of(documented: Any) -> dict[str, str]:
    """Return what a docstring says of each parameter."""
    found = re.findall(
        r"^:param (\w+): (.+?)(?=^:|\Z)",
        inspect.getdoc(documented) or "",
        re.MULTILINE | re.DOTALL,
    )
    return {name: " ".join(text.split()) for name, text in found}


def statuses(path: str, name: str) -> Iterator[list[str]]:
    """Return a row for each status, or kind of status, that means something of its own."""
    yield ["Status", "A start", "An upload"]
    rows: tuple[Row, ...] = getattr(resolve_name(path), name)
    yield ["the connection's ``busy_statuses``", *meaning(rows, 599, "declared")]

    numbers = sorted({one for row in rows for one in row.statuses.split() if one.isdecimal()})
    of_class = {f"{first}xx": meaning(rows, first * 100 + 99) for first in (2, 3, 4, 5)}
    same: dict[tuple[str, str], list[str]] = {}
    for number in numbers:
        what = meaning(rows, int(number))
        if what != of_class[f"{number[0]}xx"]:
            same.setdefault(what, []).append(number)

    for what, found in same.items():
        yield [", ".join(found), *what]
    for title, what in of_class.items():
        has_others = any(number[0] == title[0] for found in same.values() for number in found)
        yield [f"other {title}" if has_others else title, *what]


def meaning(rows: tuple[Row, ...], status: int, *traits: Trait) -> tuple[str, str]:
    """Return what a status means for a start and for an upload."""
    start = code_of(rows, status, Operation.TRIGGER_BY_KEY, *traits)
    if code_of(rows, status, Operation.TRIGGER_BY_KEY, *traits, "run") == SUCCESS:
        start = f"{SUCCESS}, or {start} if it cannot be used"
    return start, code_of(rows, status, Operation.UPLOAD, *traits)


def code_of(rows: tuple[Row, ...], status: int, operation: Operation, *traits: Trait) -> str:
    """Return the code of the error, or that there is none."""
    row = next(row for row in rows if row.fits(status, operation, traits))
    if row.outcome is None:
        return SUCCESS
    code = row.code or row.outcome("").code
    if row.outcome is OutcomeUnknownError and operation is Operation.UPLOAD:
        code = Code.UPLOAD_UNKNOWN
    return f"``{code}``"


_MADE_BY: dict[str, Callable[..., Iterator[list[str]]]] = {
    "arguments": arguments,
    "statuses": statuses,
    "stored": stored,
    "public": lambda name: public_face.TABLES[name](),
}


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
    return _TABLE.sub(made, text)


def made(match: re.Match[str]) -> str:
    """Return a comment, and the table that it asks for."""
    comment, kind, path, names = match.groups()
    return f"{comment}\n{as_markdown(_MADE_BY[kind](path, *(names or '').split()))}"


def main() -> None:
    """Renew the pages whose snippets or tables have changed."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"Renewed {page.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
