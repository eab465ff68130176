"""Sources on this machine: which files they name, what an error says of those that name none, and how they are read."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from airflow.sdk import Asset, ObjectStoragePath

from workflow_automation_provider.client.files import File, read_whole
from workflow_automation_provider.exceptions import BusyError, FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.sources import resolve

from .conftest import resolved


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("b.csv", "a.csv", "c.txt", ".hidden.csv", "[x].csv", "x.csv", "sub/d.csv", "sub/deep/e.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(files):
    return [
        element.open().read().decode() if isinstance(element, File) else element for element in resolve(files)
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("a.csv", ["a.csv"]),
        (["b.csv", "a.csv"], ["b.csv", "a.csv"]),
        (("b.csv", Path("a.csv")), ["b.csv", "a.csv"]),
        (Path("sub/d.csv"), ["sub/d.csv"]),
        ("?.csv", ["a.csv", "b.csv", "x.csv"]),
        ("*.csv", ["[x].csv", "a.csv", "b.csv", "x.csv"]),
        ("[ab].csv", ["a.csv", "b.csv"]),
        ("[x].csv", ["[x].csv"]),
        ("**/*.csv", ["[x].csv", "a.csv", "b.csv", "sub/d.csv", "sub/deep/e.csv", "x.csv"]),
        ("sub/**", ["sub/d.csv", "sub/deep/e.csv"]),
        ("*/", ["sub/d.csv", "sub/deep/e.csv"]),
        ("sub/*/", ["sub/deep/e.csv"]),
        ([{"any": ["*"]}, "a.csv"], [{"any": ["*"]}, "a.csv"]),
        ({"a.csv"}, ["a.csv"]),
        (iter(("b.csv", "a.csv")), ["b.csv", "a.csv"]),
    ],
)
def test_sources(folder, files, expected):
    assert contents(files) == expected


class _PathLike(ObjectStoragePath):
    """As one is before universal-pathlib 0.3."""

    def __fspath__(self) -> str:
        return str(self)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("file://HERE/a.csv", ["a.csv"]),
        ("file://HERE/c*.txt", ["c.txt"]),
        ("file://HERE/sub/**", ["sub/d.csv", "sub/deep/e.csv"]),
        ("file://HERE/to_sub/**", ["sub/d.csv", "sub/deep/e.csv"]),
        ("file://HERE/link.*", ["c.txt"]),
        ("file://HERE/link.txt", ["c.txt"]),
        ("link.*", ["c.txt"]),
        (lambda here: ObjectStoragePath(f"file://{here}/a.csv"), ["a.csv"]),
        (lambda here: ObjectStoragePath(f"file://any@{here}/a.csv"), ["a.csv"]),
        (lambda here: _PathLike(f"file://{here}/a.csv"), ["a.csv"]),
        (lambda here: ObjectStoragePath(f"file://{here}/sub/") / "**", ["sub/d.csv", "sub/deep/e.csv"]),
        (lambda here: Asset(f"file://{here}/a.csv"), ["a.csv"]),
    ],
)
def test_urls_and_links(folder, files, expected):
    Path("link.txt").symlink_to("c.txt")
    Path("to_sub").symlink_to("sub")
    source = files(folder) if callable(files) else files.replace("HERE", str(folder))
    assert sorted(contents(source)) == expected


@pytest.mark.parametrize("pattern", ["*/**", "*/", "?*/", "**/*/", "**/*.csv"])
def test_a_file_is_found_once(folder, pattern):
    Path("to_deep").symlink_to("sub/deep")
    assert [text for text in contents(pattern) if text.endswith("e.csv")] == ["sub/deep/e.csv"]


def test_what_a_file_is_told_as(folder):
    (file,) = resolved(folder / "sub" / "d.csv")
    assert (file.name, file.size, file.content_type) == ("d.csv", 9, "text/csv")
    (folder / "no_ending").touch()
    assert resolved("no_ending")[0].content_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["a.csv", "missing/x"], "'missing/x' cannot be read"),
        (["a.csv", "nothing/*"], r"files\[1\]: the glob"),
        *((files, "dangling' cannot be read") for files in ("dangling", "d*", "links/**", "*/dangling")),
        ("file://HERE/*.nothing", "matches no file"),
        (Asset("my-asset"), "'my-asset' cannot be read"),
    ],
)
def test_files_that_may_be_there_later(folder, files, words):
    Path("dangling").symlink_to("nowhere")
    Path("links").mkdir()
    Path("links/dangling").symlink_to("nowhere")
    if isinstance(files, str):
        files = files.replace("HERE", str(folder))
    with pytest.raises(FileUnavailableError, match=words):
        resolve(files)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["a.csv", "sub"], "'sub' is a directory"),
        ("s*", "'sub' is a directory"),
        ("li*", "'link' is a directory"),
        ("file://HERE/link", "link' is a directory"),
        ("file://HERE/sub/", "/sub/' is a directory"),
        ("nothing://bucket/key", "not a URL"),
        (lambda here: ObjectStoragePath(f"file://{here}/sub/"), "/sub' is a directory"),
        (lambda here: Asset(f"file://{here}/sub/"), "/sub' is a directory"),
        ("a.csv/b", "'a.csv/b' .*: Not a directory"),
        ("a" * 300, ": File name too long"),
        (f"*/{'a' * 300}/*.csv", "cannot be listed: File name too long"),
        ("a\0b", "embedded null"),
        (["a.csv", None], r"files\[1\] is None"),
        (["a.csv", ["b.csv"]], r"files\[1\] is a list"),
    ],
)
def test_sources_that_never_name_a_file(folder, files, words):
    """No retry can help, so Airflow must not try one."""
    Path("link").symlink_to("sub")
    if callable(files):
        files = files(folder)
    elif isinstance(files, str):
        files = files.replace("HERE", str(folder))
    with pytest.raises(InvalidRequestError, match=words):
        resolve(files)


REWRITE = """
import os, sys
path, size = sys.argv[1], int(sys.argv[2])
fd = os.open(path, os.O_WRONLY)
while os.getppid() == int(sys.argv[3]):
    for letter in (b"a", b"b"):
        os.pwrite(fd, letter * size, 0)
"""


def test_file_that_is_rewritten_in_place_is_read_whole_or_not_at_all(tmp_path):
    """All of one writing, or an error: times alone do not tell a change that is under way."""
    path = tmp_path / "data.bin"
    size = 190_000
    path.write_bytes(b"a" * size)
    (file,) = resolved(str(path))
    writer = subprocess.Popen([sys.executable, "-c", REWRITE, str(path), str(size), str(os.getpid())])
    torn = 0
    try:
        # Long enough for thousands of reads, were each of them at once.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            with contextlib.suppress(FileUnavailableError):
                torn += len(set(b"".join(read_whole(file)))) > 1
    finally:
        writer.kill()
        writer.wait()
    assert torn == 0


def test_a_file_may_have_an_odd_name(folder):
    names = ["{{ ds }}.csv", "~backup.csv"]
    for name in names:
        Path(name).touch()
    assert [file.name for file in resolved(names)] == names


@pytest.mark.parametrize("path", ["data", "data/*.csv"])
def test_of_a_relative_path_the_folder_is_told(folder, path):
    with pytest.raises(FileUnavailableError, match=f"current directory, '{folder}'"):
        resolve(path)


def test_a_request_can_be_sent_again(service, hook, folder, run_id):
    (request,) = hook.prepare_uploads(run_id, resolve("a.csv"), "demo-flow")
    service.faults.add("busy", operation="upload")
    with pytest.raises(BusyError):
        hook.get_conn().send(request)
    assert hook.get_conn().send(request) == "1 file received"
    assert service.uploads[0].files[0]["content"] == base64.b64encode(b"a.csv").decode()


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(hook, folder, run_id):
    (request,) = hook.prepare_uploads(run_id, resolve("a.csv"), "demo-flow")
    Path("a.csv").unlink()
    os.mkfifo("a.csv")
    errors = []

    def send():
        try:
            hook.get_conn().send(request)
        except FileUnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=send, daemon=True)  # it would not end
    thread.start()
    thread.join(60)
    assert [error.code for error in errors] == ["file-unavailable"]
