"""The project of docs/testing.md works in a pytest of its own, without an activated environment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from code_blocks import read_code_blocks

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    """
    By pytest's own command, from anywhere, with an almost empty environment.

    Nothing is left behind.
    """
    project = tmp_path / "my project"
    for block in read_code_blocks(PAGE, "python"):
        named = re.match(r"# (\S+\.\w+)", block.text)
        assert named, f"The block in line {block.line} names no file"
        path = project / named[1]
        assert not path.exists(), f"Two blocks are {path}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    tests = [path.name for path in (project / "tests").glob("test_*.py")]
    assert len(tests) >= 3
    folders = {"HOME": tmp_path / "home", "TMPDIR": tmp_path / "temporary"}
    for folder in folders.values():
        folder.mkdir()

    pytest = str(Path(sys.executable).with_name("pytest"))
    command = [sys.executable, pytest, str(project), "-v", "-p", "no:cacheprovider"]
    environment = {name: str(folder) for name, folder in folders.items()}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    for name in tests:
        assert re.search(rf"{name}::\w+ PASSED", done.stdout), f"{name} has no test that passed"
    left = [path.name for folder in folders.values() for path in folder.iterdir()]
    assert [name for name in left if not name.startswith("pytest-of-")] == []
