"""The code blocks of a Markdown document, so that tests can run what the documentation shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

__all__ = ["CodeBlock", "find_code_blocks", "read_code_blocks"]

_FILE_NAME = re.compile(r"#\s+(\S+\.\w+)\s*(?:$|[\s,:(])")


@dataclass(frozen=True)
class CodeBlock:
    """
    A fenced code block.

    :param language: the first word after the fence, empty if there is none
    :param headings: the headings that the block is under, outermost first
    :param line: the number of the fence's line
    """

    language: str
    text: str
    headings: tuple[str, ...]
    line: int

    @property
    def file_name(self) -> str | None:
        """The file that the block is to be saved as: its first line, if that is a comment with a path."""
        match = _FILE_NAME.match(self.text)
        return match[1] if match else None

    def is_under(self, heading: str) -> bool:
        """Return whether a heading above the block contains a text, in any case."""
        return any(heading.lower() in found.lower() for found in self.headings)


def find_code_blocks(markdown: str) -> list[CodeBlock]:
    """Return the fenced code blocks of a Markdown text, in order."""
    blocks = []
    headings: dict[int, str] = {}
    tokens = MarkdownIt("commonmark").parse(markdown)
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            level = int(token.tag.removeprefix("h"))
            headings = {upper: text for upper, text in headings.items() if upper < level}
            # The text of a heading is a token of its own, the next one.
            headings[level] = tokens[number + 1].content
        elif token.type == "fence":
            language = token.info.split()[0] if token.info.strip() else ""
            line = token.map[0] + 1 if token.map else 0
            blocks.append(CodeBlock(language, token.content, tuple(headings.values()), line))
    return blocks


def read_code_blocks(path: Path, language: str | None = None, heading: str | None = None) -> list[CodeBlock]:
    """
    Return the fenced code blocks of a Markdown file, in order.

    :param language: only blocks in this language, by default all
    :param heading: only blocks under a heading that contains this text, by default all
    """
    return [
        block
        for block in find_code_blocks(path.read_text(encoding="utf-8"))
        if (language is None or block.language == language) and (heading is None or block.is_under(heading))
    ]
