"""The messages of the package, as its source has them, and those that a page quotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["Message", "find_messages", "find_quotes", "is_said"]

# Stands for what is only known when the message is made: a value, or another message.
_HOLE = "\0"
_PERCENT_HOLE = re.compile(r"%(?:\.\d)?[sdrf]")

# A value, not text: at most one word in lower case in a row.
_WORDS = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b")


@dataclass(frozen=True)
class Message:
    """
    A line of a message, or a part of one.

    :param text: what it says, with a NUL character for each value that is only known when it is said
    :param place: file and line
    """

    text: str
    place: str

    @cached_property
    def as_line(self) -> re.Pattern[str]:
        """Matches a whole line; its groups are the values."""
        return re.compile("(.*?)".join(map(re.escape, self.text.split(_HOLE))))

    @cached_property
    def as_part(self) -> re.Pattern[str]:
        """Matches anywhere in a line."""
        return re.compile(rf"(?<!\w){'.*?'.join(map(re.escape, self.text.strip().split(_HOLE)))}(?!\w)")

    def __str__(self) -> str:
        return f"{self.place}: {self.text.replace(_HOLE, '…')}"


def find_messages(package: Path) -> list[Message]:
    """Return every string of a package's source that has at least two words in a row, but for those that say nothing."""
    return [
        Message(line, f"{path.relative_to(package)}:{number}")
        for path in sorted(package.rglob("*.py"))
        for number, text in _strings(ast.parse(path.read_text(encoding="utf-8")))
        for line in text.split("\n")
        if re.search(r"[\w.)][,:;]? [\w(]", line.replace(_HOLE, ""))
    ]


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Constant(value=str(text)):
            yield node.lineno, _PERCENT_HOLE.sub(_HOLE, text).replace("%%", "%")
            return
        case ast.JoinedStr(values=values):
            yield node.lineno, "".join(v.value if isinstance(v, ast.Constant) else _HOLE for v in values)
            for value in values:
                if isinstance(value, ast.FormattedValue):
                    yield from _strings(value.value)
            return
        case ast.Expr(value=ast.Constant()) | ast.Call(func=ast.Attribute(attr="debug")):
            return  # a docstring; not in a log unless it is asked for
        case ast.Call(func=ast.Name(id="cast"), args=[_, value]):
            yield from _strings(value)
            return
        case ast.AnnAssign(value=value):
            if value is not None:
                yield from _strings(value)
            return
        case ast.arg():
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            node.returns = None
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def find_quotes(markdown: str) -> list[tuple[int, str]]:
    """
    Return the messages that a page quotes, with the numbers of their lines.

    Quotes are the code in a table's column **Message**, and the lines of a ``text`` block.
    """
    quotes: list[tuple[int, str]] = []
    for row in _rows(MarkdownIt("commonmark").enable("table").parse(markdown)):
        quotes += row
    return sorted(quotes)


def _rows(tokens: list[Token]) -> Iterator[list[tuple[int, str]]]:
    column, quoted = -1, -1
    for number, token in enumerate(tokens):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "fence" and token.info.strip() == "text":
            yield [
                (line + offset, text) for offset, text in enumerate(token.content.splitlines(), 1) if text.strip()
            ]
        elif token.type in ("thead_open", "tr_open"):
            quoted = -1 if token.type == "thead_open" else quoted
            column = -1
        elif token.type in ("th_open", "td_open"):
            column += 1
            cell = tokens[number + 1]
            if token.type == "th_open" and cell.content == "Message":
                quoted = column
            elif token.type == "td_open" and column == quoted:
                line = cell.map[0] + 1 if cell.map else 0
                yield [(line, code.content) for code in cell.children or () if code.type == "code_inline"]


def is_said(quote: str, messages: list[Message]) -> bool:
    """
    Return whether a quote is one of the messages, whose values are values or other messages.

    A quote has ``…`` or a word in upper case for a value.
    """
    if not quote.strip():
        return True
    for message in messages:
        match = message.as_line.fullmatch(quote)
        if match and all(
            not _WORDS.search(value) or (value != quote and is_said(value, messages)) for value in match.groups()
        ):
            return True
    return False
