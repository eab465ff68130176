"""
What whoever carries the project on relies on.

The distributions, the hooks, and the list of targets.
"""

from __future__ import annotations

import email.policy
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

PROJECT = Path(__file__).parents[2]
MAKEFILE = (PROJECT / "Makefile").read_text()


def run(*command):
    # Within a git hook these variables name another repository or index.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        command, cwd=PROJECT, env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(folder))
    return folder


@pytest.fixture(scope="module")
def git_files():
    """The names of all files that git has, also of those that are not added yet."""
    if not (PROJECT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("There is no git to compare with")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {name for name in listed if name and (PROJECT / name).exists()}


def test_sdist_has_what_git_has(dist, git_files):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert packed - {"PKG-INFO"} == git_files


def test_wheel_has_the_package_and_the_examples_alone(dist, git_files):
    (path,) = dist.glob("*.whl")
    package = {name.removeprefix("provider/") for name in git_files if name.startswith("provider/")}
    package |= {
        f"workflow_automation_provider/{name}"
        for name in git_files
        if name.startswith("example_dags/")
    }
    with zipfile.ZipFile(path) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == package
    assert "workflow_automation_provider/py.typed" in packed


def links(markdown):
    """The targets of all links and images."""
    for block in MarkdownIt().enable("table").parse(markdown):
        for token in block.children or ():
            if target := token.attrs.get("href") or token.attrs.get("src"):
                yield str(target)


def test_readme_of_the_distributions_has_no_relative_links(dist):
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name), policy=email.policy.default)
    readme, shown = (PROJECT / "README.md").read_text(), metadata.get_content()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert not [target for target in links(shown) if not target.startswith("https://")]
    # All else is there, with the files by their names.
    relative = {
        target.partition("#")[0] for target in links(readme) if not target.startswith("https://")
    }
    assert relative
    for target in relative:
        assert (f"`{target}`" in shown) is not target.endswith(".png")
    assert re.findall("^#+ .+", shown, re.MULTILINE) == re.findall("^#+ .+", readme, re.MULTILINE)
    # An index draws no diagrams.
    assert "mermaid" not in shown
    assert shown.count("```") == readme.count("```") - 2 * readme.count("```mermaid")


def test_hooks_are_targets_of_make():
    config = PROJECT / ".pre-commit-config.yaml"
    run(sys.executable, "-m", "pre_commit", "validate-config", str(config))
    assert re.findall(r"repo: (.+)", config.read_text()) == ["local"]
    targets = re.findall(r"entry: make --no-print-directory (.+)", config.read_text())
    (linters,) = re.findall(r"^lint: (.+?) ##", MAKEFILE, re.MULTILINE)
    assert targets == linters.split()


def test_the_smoke_set_of_the_matrix_is_there():
    paths = (PROJECT / "tests" / "smoke.txt").read_text().split()
    assert [path for path in paths if not (PROJECT / path).exists()] == []
