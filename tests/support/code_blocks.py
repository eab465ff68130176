"""The code blocks of a Markdown document, so that tests can run what the documentation shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

__all__ = ["CodeBlock", "read_code_blocks"]


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


def read_code_blocks(path: Path, language: str | None = None, heading: str = "") -> list[CodeBlock]:
    """
    Return the fenced code blocks of a Markdown file, in order.

    :param language: only blocks in this language, by default all
    :param heading: only blocks under a heading that contains this text, by default all
    """
    blocks = []
    headings: dict[int, str] = {0: ""}
    tokens = MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8"))
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            level = int(token.tag.removeprefix("h"))
            headings = {upper: text for upper, text in headings.items() if upper < level}
            # The text of a heading is a token of its own, the next one.
            headings[level] = tokens[number + 1].content
        elif token.type == "fence" and any(heading in found for found in headings.values()):
            found_language = token.info.partition(" ")[0]
            line = token.map[0] + 1 if token.map else 0
            if language in (None, found_language):
                blocks.append(
                    CodeBlock(found_language, token.content, tuple(headings.values())[1:], line)
                )
    return blocks
