"""
Renew the snippets of the documentation that are cut from the example DAGs.

A page names what is cut in a comment before the code block, so that the block can be read without a build::

    <!-- cut: example_dags/workflow_automation_trigger.py howto_operator_trigger_flow -->

The name is that of the example's markers: ``# [START name]`` and ``# [END name]``.
"""

from __future__ import annotations

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


def renewed(text: str) -> str:
    """Return a page with all its snippets cut again."""

    def again(match: re.Match[str]) -> str:
        return match[0].replace(
            f"```python\n{match['code']}", f"```python\n{cut(match['path'], match['name'])}"
        )

    return _CUT.sub(again, text)


def main() -> None:
    """Renew the pages whose snippets have changed."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"Renewed the snippets of {page.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
