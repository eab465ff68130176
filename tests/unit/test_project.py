"""What whoever carries the project on relies on: the source distribution, the hooks, and the list of targets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
MAKEFILE = (PROJECT / "Makefile").read_text()


def run(*command):
    # Within a git hook these variables name another repository or index.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, cwd=PROJECT, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(
    not (PROJECT / ".git").exists() or shutil.which("git") is None,
    reason="There is no git to compare with",
)
def test_sdist_has_what_git_has(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path))
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    # Also what is not added yet.
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    assert packed - {"PKG-INFO"} == {name for name in listed if name and (PROJECT / name).exists()}


def test_hooks_are_targets_of_make():
    config = PROJECT / ".pre-commit-config.yaml"
    run(sys.executable, "-m", "pre_commit", "validate-config", str(config))
    assert re.findall(r"repo: (.+)", config.read_text()) == ["local"]
    targets = re.findall(r"entry: make --no-print-directory (.+)", config.read_text())
    (linters,) = re.findall(r"^lint: (.+?) ##", MAKEFILE, re.MULTILINE)
    assert targets == linters.split()


def test_each_target_is_in_contributing():
    targets = {*re.findall(r"^([a-z-]+):.* ## ", MAKEFILE, re.MULTILINE)} - {"help"}
    assert {"setup", "test", "lint"} <= targets
    told = {*re.findall(r"`?make ([a-z-]+)", (PROJECT / "CONTRIBUTING.md").read_text())}
    assert targets - told == set()
