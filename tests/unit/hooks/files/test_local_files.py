"""
Sources on this machine.

Which files they name, what an error says of those that name none, and how they are read.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import tempfile
import threading
import time
from io import StringIO
from pathlib import Path

import pytest
from airflow.sdk import Asset, ObjectStoragePath
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_automation_provider.client.files import File, media_type_of, read_whole
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.location import locate
from workflow_automation_provider.execution.batch.source import BatchSource
from workflow_automation_provider.hooks.files.sources import resolve

from ..conftest import globs, paths, resolved


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (
        "b.csv",
        "a.csv",
        "c.txt",
        ".hidden.csv",
        "[x].csv",
        "x.csv",
        "sub/d.csv",
        "sub/deep/e.csv",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(tmp_path)
    links = {
        "link.txt": "c.txt",
        "to_deep": "sub/deep",
        "to_sub": "sub",
        "sub/dangling": "nowhere",
        "loop": "loop",
    }
    for link, to in links.items():
        Path(link).symlink_to(to)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("b.csv", Path("a.csv")), ["b.csv", "a.csv"]),
        (iter(("b.csv", "a.csv")), ["b.csv", "a.csv"]),
        ([{"any": ["*"]}, "a.csv"], [{"any": ["*"]}, "a.csv"]),
        ("*.csv", ["[x].csv", "a.csv", "b.csv", "x.csv"]),
        ("[x].csv", ["[x].csv"]),
        ("**/*.csv", ["[x].csv", "a.csv", "b.csv", "sub/d.csv", "sub/deep/e.csv", "x.csv"]),
        ("*/*.csv", ["sub/d.csv", "sub/deep/e.csv", "sub/d.csv"]),
        ("**/to_deep/*.csv", ["sub/deep/e.csv"]),
        ("sub/d*/", ["sub/deep/e.csv"]),
        ("link.*", ["c.txt"]),
        (lambda here: f"file://{here}/a.csv", ["a.csv"]),
        (lambda here: f"file://{here}/to_deep/**", ["sub/deep/e.csv"]),
        (lambda here: ObjectStoragePath(f"file://{here}/a.csv"), ["a.csv"]),
        (lambda here: ObjectStoragePath(f"file://any@{here}/a.csv"), ["a.csv"]),
        (lambda here: ObjectStoragePath(f"file://{here}/to_deep/") / "**", ["sub/deep/e.csv"]),
        (lambda here: Asset(f"file://{here}/a.csv"), ["a.csv"]),
    ],
)
def test_sources(folder, files, expected):
    found = [
        element.open().read().decode() if isinstance(element, File) else element
        for element in resolve(files(folder) if callable(files) else files)
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        # Files that may be there later.
        (["a.csv", "nothing/*"], FileUnavailableError, r"files\[1\]: the glob"),
        ("missing/*.csv", FileUnavailableError, "current directory, '/"),
        ("sub/dangling", FileUnavailableError, "dangling' cannot be read"),
        ("sub/**", FileUnavailableError, "dangling' cannot be read"),
        ("a.csv/b", FileUnavailableError, "'a.csv/b' .*: Not a directory"),
        (f"{'a' * 300}/*.csv", FileUnavailableError, "cannot be listed: File name too long"),
        ("a\0b", FileUnavailableError, "embedded null"),
        # Sources that never name a file: no retry can help, so Airflow must not try one.
        ("s*", InvalidRequestError, "'sub' is a directory"),
        (
            lambda here: ObjectStoragePath(f"file://{here}/sub/"),
            InvalidRequestError,
            "/sub' is a directory",
        ),
        ("nothing://bucket/key", InvalidRequestError, "not a URL"),
    ],
)
def test_sources_that_name_no_file(folder, files, kind, words):
    with pytest.raises(kind, match=words):
        resolve(files(folder) if callable(files) else files)


@pytest.mark.parametrize("text", ["file://localhost/a.csv", "file://conn@/a.csv", "file://a.csv"])
def test_a_url_with_a_host_is_not_tried_again(folder, text):
    with pytest.raises(InvalidRequestError, match=r"^.invalid-request. files\[0\] is "):
        resolve(text)
    with pytest.raises(InvalidRequestError, match=r"^.invalid-request. batch is "):
        locate("batch", text)


@pytest.mark.parametrize("text", ["~/a.csv", "$HOME/a.csv", "{a,b}.csv", "a.csv,b.csv"])
def test_a_path_is_not_read_as_a_shell_does(folder, text):
    with pytest.raises(FileUnavailableError, match="cannot be read: No such file"):
        resolve(text)


@example("a.csv,b.csv")
@example("$HOME")
@example("C:\\a")
@example("a%20b")
@given(st.text("~$HOME{},.\\'\"%20:ab ", min_size=1, max_size=12))
def test_a_file_that_exists_is_meant_whatever_its_name(name):
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        path = Path(home).resolve() / name
        if name.strip() and not path.is_dir():
            path.write_text(name)
            for files in (name, f"file://{path}", [name]):
                assert [file.name for file in resolved(files)] == [name]
            if "{" not in name:  # or it may be the text of a dict
                BatchSource(name, None)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: b"a.csv", "a bytes"),
        (lambda: memoryview(b"a.csv"), "a memoryview"),
        (lambda: StringIO("a.csv"), "a _io.StringIO"),
        (tempfile.TemporaryFile, "a _io.BufferedRandom"),
    ],
)
def test_content_is_named_for_what_it_is(folder, make, kind):
    for files, name in ((make(), "files"), ([make()], r"files\[0\]")):
        with pytest.raises(InvalidRequestError, match=f"{name} is {kind}: "):
            resolve(files)


@pytest.mark.parametrize(
    "url", ["s3://c@b/report#2.csv", "s3://c@b/both/", "file:///data/a.csv?b=1&a=2"]
)
def test_an_asset_that_airflow_has_changed_is_refused(url):
    with pytest.raises(InvalidRequestError, match=r"files\[0\] is the asset ") as caught:
        resolve(Asset(url))
    assert repr(url.partition("?")[0])[:-1] in caught.value.message


def test_name_size_and_media_type(folder):
    names = [
        "sub/d.csv",
        "no_ending",
        "{{ ds }}.csv",
        "~backup.csv.gz",
        "A.Docx",
        "x.csv.br",
        "pdf",
    ]
    for name in names:
        Path(name).touch()
    assert [(file.name, file.size, media_type_of(file)) for file in resolved(names)] == [
        ("d.csv", 9, "text/csv"),
        ("no_ending", 0, "application/octet-stream"),
        ("{{ ds }}.csv", 0, "text/csv"),
        ("~backup.csv.gz", 0, "application/gzip"),
        ("A.Docx", 0, "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("x.csv.br", 0, "application/octet-stream"),
        ("pdf", 0, "application/octet-stream"),
    ]


# Globs --------------------------------------------------------------------------------------------


def write(root, files, links):
    """Write files and links, but for what is in the way of another."""
    for path in sorted(files):
        target = root / path
        if not any(parent.is_file() for parent in target.parents) and not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path)
    for path, to in links.items():
        link = root / path
        if link.parent.is_dir() and not os.path.lexists(link):
            link.symlink_to(root / to)


@given(
    files=st.sets(paths, max_size=6),
    links=st.dictionaries(paths, st.sampled_from(["", "a", "b", "a/b", "a.csv"]), max_size=4),
    pattern=globs,
)
@example(files={"a/a.csv"}, links={"a/b": "", "b": ""}, pattern=["*", "*", "*.csv"])
@example(files={"a.csv"}, links={"a": ""}, pattern=["a", "*", "*"])
@example(files={"a.csv"}, links={"a": ""}, pattern=["a", "**"])
@example(files={"a/b/a.csv", "a/a.csv", "a.csv"}, links={}, pattern=["**", "a", "**", "*.csv"])
def test_a_local_glob_names_each_file_that_pythons_does_once(files, links, pattern):
    with tempfile.TemporaryDirectory() as home:
        root = Path(home).resolve()
        # Other than ours, Python's goes on through links behind **.
        write(root, files, {} if "**" in pattern else links)
        text = f"{root}/{'/'.join(pattern)}"
        matches = glob.glob(text, recursive=True)
        # For Python, a/** also names the file a.
        expected = {path for path in matches if not (path[-1] == "/" or Path(path).is_dir())}
        try:
            found = [str(file.location) for file in resolved(text)]
        except FileUnavailableError:  # nothing is found, or a link that leads nowhere
            assert not all(Path(path).exists() for path in expected or ["/nothing"])
        except InvalidRequestError:  # a folder is found
            assert "**" not in pattern
            assert any(Path(path).is_dir() for path in matches)
        else:
            assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("pattern", "code"), [("*/*.csv", errno.EACCES), ("**", errno.EIO)])
def test_a_local_folder_that_cannot_be_listed(tmp_path, monkeypatch, pattern, code):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").touch()
    scandir = os.scandir

    def fail(path):
        if path.rstrip("/") == f"{tmp_path}/b":
            raise OSError(code, os.strerror(code), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(FileUnavailableError) as caught:
        resolved(f"{tmp_path}/{pattern}")
    assert f"files[0]: the folder '{tmp_path}/b'" in caught.value.message
    assert os.strerror(code) in caught.value.message


# What is read -------------------------------------------------------------------------------------


def test_file_that_is_rewritten_in_place_is_read_whole_or_not_at_all(tmp_path):
    """All of one writing, or an error: times alone do not tell a change that is under way."""
    path = tmp_path / "data.bin"
    path.write_bytes(b"a" * 190_000)
    (file,) = resolved(str(path))
    ended = threading.Event()

    def rewrite():
        with path.open("r+b", buffering=0) as stream:
            while not ended.is_set():
                for letter in (b"a", b"b"):
                    os.pwrite(stream.fileno(), letter * file.size, 0)

    writer = threading.Thread(target=rewrite)
    writer.start()
    torn = 0
    try:
        # Long enough for thousands of reads, were each of them at once.
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            with contextlib.suppress(FileUnavailableError):
                torn += len(set(b"".join(read_whole(file)))) > 1
    finally:
        ended.set()
        writer.join()
    assert torn == 0


@pytest.mark.timeout(60, method="signal")  # it would not end
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(folder):
    (file,) = resolved("a.csv")
    Path("a.csv").unlink()
    os.mkfifo("a.csv")
    with pytest.raises(FileUnavailableError):
        [*read_whole(file)]
