"""The messages of a package, as its source has them, and those that a page quotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from markdown_it.token import Token

__all__ = ["Message", "Quote", "Said", "find_messages", "find_quotes"]

# Stands for what is only known when the message is made: a value, or another message.
_HOLE = "\0"
_PERCENT_HOLE = re.compile(r"%(?:\.\d)?[sdrf]")

# More than a value: two words in lower case in a row.
_WORDS = re.compile(r"\b[a-z]+,? [a-z]+\b")

# What a quote has for a value: an ellipsis, a word in capitals, a number, or the name of an HTTP status.
_VALUE = re.compile(r"…|\b[A-Z][A-Z_]+\b|\b\d{3}(?: [A-Z][a-z]+)+|\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Message:
    """
    A line of a message, or a part of one.

    :param text: with a NUL character for each value that is only known when the message is made
    :param place: file and line
    """

    text: str
    place: str

    @property
    def is_distinct(self) -> bool:
        """Whether it has two words in a row, and can be recognized by them."""
        return bool(re.search(r"[\w.)'][,:;.]? [\w(]", self.text.replace(_HOLE, "")))

    @cached_property
    def longest(self) -> str:
        """The longest part that does not depend on a value."""
        return max((part.strip() for part in self.text.split(_HOLE)), key=len)

    @cached_property
    def lines(self) -> list[re.Pattern[str]]:
        """Match a whole line; the groups are the values. What may be empty at either end may be missing."""
        texts = {self.text.strip(), self.text.removeprefix(f"{_HOLE} "), self.text.removesuffix(f" {_HOLE}")}
        return [_line(text) for text in texts]

    @cached_property
    def appended(self) -> list[re.Pattern[str]]:
        """Match the end of a line, if it is appended to a value."""
        return [_line(self.text)] if self.text[0] in " ," else []

    def is_part_of(self, line: str) -> bool:
        """Return whether a line contains it."""
        return bool(self._part.search(line))

    @cached_property
    def _part(self) -> re.Pattern[str]:
        text = self.text.strip(f" {_HOLE}")
        pattern = ".*?".join(map(re.escape, text.split(_HOLE)))
        return re.compile(rf"{_boundary(text[:1])}{pattern}{_boundary(text[-1:])}")

    def __str__(self) -> str:
        return f"{self.place}: {self.text.replace(_HOLE, '…')}"


def _line(text: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, text.split(_HOLE))))


def _boundary(letter: str) -> str:
    return r"\b" if re.match(r"\w", letter) else ""


def find_messages(package: Path) -> list[Message]:
    """Return all strings in the source of a package that may be messages, line by line: with a space, or a value."""
    return [
        Message(line, f"{path.relative_to(package)}:{number}")
        for path in sorted(package.rglob("*.py"))
        for number, text in _strings(ast.parse(path.read_text(encoding="utf-8")))
        for line in text.split("\n")
        if line.strip(f" {_HOLE}") and (" " in line or _HOLE in line)
    ]


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Constant(value=str(text)):
            yield node.lineno, _PERCENT_HOLE.sub(_HOLE, text).replace("%%", "%")
        case ast.JoinedStr(values=values):
            yield (
                node.lineno,
                "".join(str(v.value) if isinstance(v, ast.Constant) else _HOLE for v in values),
            )
            for value in values:
                if isinstance(value, ast.FormattedValue):
                    yield from _strings(value.value)
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring
        case ast.Call(func=ast.Attribute(attr="debug")):
            pass  # not in a log, unless somebody asks for it
        case ast.Call(func=ast.Name(id="cast"), args=[_, value]):
            yield from _strings(value)
        case ast.arg():
            pass  # an annotation
        case ast.AnnAssign(value=value):
            yield from [] if value is None else _strings(value)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            for child in (node.args, *node.decorator_list, *node.body):
                yield from _strings(child)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _strings(child)


class Said:
    """What messages can say."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._lines = [(message.longest, message.lines) for message in messages]
        self._appended = [(message.longest, message.appended) for message in messages if message.appended]
        self._known: dict[str, bool] = {"": True}

    def __call__(self, line: str) -> bool:
        """
        Return whether a line is a message, or several, each with values or other messages in it.

        :param line: has an ellipsis or a word in capitals for a value
        """
        if line not in self._known:
            self._known[line] = False  # while it is looked at: what consists of itself is nothing
            self._known[line] = self._is_one_of(self._lines, line) or any(
                self(line[: end.start()]) and self(line[end.end() :])
                for end in re.finditer(r"(?<=\.) ", line)
            )
        return self._known[line]

    def _is_value(self, text: str) -> bool:
        if not _WORDS.search(text) or self(text) or self(text.removesuffix(".")):
            return True
        # A value and a message that is appended to it, such as " in 3 requests".
        starts = (found.start() for found in re.finditer(r",? ", text))
        return any(
            not _WORDS.search(text[:start]) and self._is_one_of(self._appended, text[start:])
            for start in starts
        )

    def _is_one_of(self, patterns: Sequence[tuple[str, Sequence[re.Pattern[str]]]], text: str) -> bool:
        # A regular expression takes much longer than a look for a part of it.
        return any(self._match(pattern, text) for part, some in patterns if part in text for pattern in some)

    def _match(self, pattern: re.Pattern[str], text: str) -> bool:
        match = pattern.fullmatch(text)
        return match is not None and all(map(self._is_value, match.groups()))


@dataclass(frozen=True)
class Quote:
    """
    Code in a page.

    :param column: heading of its column in a table, ``text`` for a line of such a block, otherwise empty
    :param line: number of its line
    """

    text: str
    column: str
    line: int

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches what it stands for, whatever the values."""
        return re.compile(".+?".join(map(re.escape, _VALUE.split(self.text))))

    @property
    def has_words(self) -> bool:
        """Whether it has more than values."""
        return bool(re.search("[A-Za-z]{2}", _VALUE.sub("", self.text)))

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


def find_quotes(markdown: str) -> list[Quote]:
    """Return the code of a page: in tables, in the lines of ``text`` blocks, and elsewhere."""
    return list(_quotes(MarkdownIt("commonmark").enable("table").parse(markdown)))


def _quotes(tokens: Sequence[Token]) -> Iterator[Quote]:
    headings: list[str] = []
    cell = line = 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        line = token.map[0] + 1 if token.map else line
        match token.type:
            case "fence" if token.info.strip() == "text":
                for number, text in enumerate(token.content.splitlines(), line + 1):
                    yield Quote(text, "text", number)
            case "table_open" | "table_close":
                headings = []
            case "tr_open":
                cell = -1
            case "th_open" | "td_open":
                cell += 1
            case "inline" if before and before.type == "th_open":
                headings.append(token.content)
            case "inline":
                for child in token.children or ():
                    if child.type == "code_inline":
                        yield Quote(child.content, headings[cell] if headings else "", line)
