"""Globs and prefixes, on this machine and in a store: all that they name, once, or an error."""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import tempfile
from pathlib import Path

import pytest
from airflow.sdk.io import attach
from fsspec import AbstractFileSystem  # type: ignore[import-untyped]  # has no types
from fsspec.asyn import get_loop  # type: ignore[import-untyped]  # has no types
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError

from .conftest import resolved

names = st.sampled_from(["a", "b", "a.csv", ".h", "[a]"])
parts = st.sampled_from(["a", "b", "*", "**", "?", "*.csv", "[ab]", "[!b]*", "[[]a]", ".*"])
globs = st.lists(parts, min_size=1, max_size=4).filter(lambda found: re.search(r"[*?[]", "".join(found)))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


# Local files ------------------------------------------------------------------------------------------


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


def real(path):
    """Return a path whose folders are no links."""
    return str(Path(path).parent.resolve() / Path(path).name)


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
        expected = {real(path) for path in matches if not (path[-1] == "/" or Path(path).is_dir())}
        try:
            found = [real(file.location) for file in resolved(text)]
        except FileUnavailableError:  # nothing is found, or a link that leads nowhere
            assert not all(Path(path).exists() for path in expected or ["/nothing"])
        except InvalidRequestError:  # a folder is found
            assert "**" not in pattern
            assert any(Path(path).is_dir() for path in matches)
        else:
            assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("in/**", ["in/sub/a.csv"]),
        ("in/**/*.csv", ["in/sub/a.csv"]),
        ("**/link/*.csv", ["in/link/x.csv", "of/link/x.csv"]),
        ("*/link/*.csv", ["in/link/x.csv", "of/link/x.csv"]),
        ("*/sub/*.csv", ["in/sub/a.csv"]),
    ],
)
def test_two_stars_do_not_go_through_links_and_others_do_once(tmp_path, pattern, expected):
    links = {"in/link": "other", "in/sub/up": "in", "of/link": "another", "to_in": "in"}
    write(tmp_path, ["other/x.csv", "another/x.csv", "in/sub/a.csv", "of/y"], links)
    found = [(file.location or "").removeprefix(f"{tmp_path}/") for file in resolved(f"{tmp_path}/{pattern}")]
    assert found == expected


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("pattern", ["*/*.csv", "**", "**/*.csv"])
def test_a_local_folder_that_cannot_be_listed(tmp_path, monkeypatch, pattern, code):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").touch()
    listdir = os.listdir

    def fail(path):
        if path.rstrip("/") == f"{tmp_path}/b":
            raise OSError(code, os.strerror(code), path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(FileUnavailableError) as caught:
        resolved(f"{tmp_path}/{pattern}")
    assert f"files[0]: the folder '{tmp_path}/b'" in caught.value.message
    assert os.strerror(code) in caught.value.message


def test_a_name_without_wildcards_needs_no_listing(tmp_path, monkeypatch):
    (tmp_path / "a" / "private").mkdir(parents=True)
    (tmp_path / "a" / "private" / "x.csv").touch()
    listdir = os.listdir
    listed: list[str] = []

    def count(path):
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", count)
    (file,) = resolved(f"{tmp_path}/*/private/x.csv")
    assert file.location == f"{tmp_path}/a/private/x.csv"
    assert listed == [f"{tmp_path}/"]


# Stores -----------------------------------------------------------------------------------------------


class Keys(AbstractFileSystem):  # type: ignore[misc]  # has no types
    """A store of keys that is listed folder by folder: a key may be the name of a folder as well."""

    cachable = False
    root_marker = "/"

    def __init__(self):
        super().__init__()
        self.keys: set[str] = set()
        self.denied = ""

    def _entry(self, key):
        return {"name": key, "type": "file", "size": 1}

    def ls(self, folder, *, detail):
        folder = folder.rstrip("/")
        if folder == self.denied:
            raise PermissionError("Access Denied")
        below = [key for key in self.keys if key.startswith(f"{folder}/")]
        if not below:
            if folder in self.keys:
                return [self._entry(folder)]
            raise FileNotFoundError(folder)
        rests = [key.removeprefix(f"{folder}/").partition("/") for key in below]
        folders = {name for name, slash, _ in rests if slash}
        return [
            *({"name": f"{folder}/{name}", "type": "directory", "size": 0} for name in folders),
            *(self._entry(f"{folder}/{name}") for name, slash, _ in rests if not slash),
        ]

    def info(self, key):
        if key not in self.keys:
            raise FileNotFoundError(key)
        return self._entry(key)


class Flat(Keys):
    """Lists all keys at once, as those of S3, Google Cloud Storage and Azure are."""

    asynchronous = False
    loop = get_loop()

    async def _info(self, key):
        return self.info(key)

    def find(self, folder, *, detail):
        if folder == self.denied:
            raise PermissionError("Access Denied")
        return {key: self._entry(key) for key in self.keys if key.startswith(f"{folder}/") or key == folder}


Flat.__module__ = "gcsfs.core"


@pytest.fixture(scope="module")
def stores():
    stores = {"listed": Keys(), "flat": Flat()}
    for name, store in stores.items():
        attach("memory", conn_id=name, fs=store)
    return stores


def found_in(stores, kind, keys, pattern):
    stores[kind].keys = {f"/bucket/{key}" for key in keys}
    try:
        files = resolved(f"memory://{kind}@bucket/{pattern}")
    except FileUnavailableError:
        return set()
    assert len(files) == len({file.location for file in files})
    return {(file.location or "").removeprefix("memory:///bucket/") for file in files}


def key_matches(key, pattern):
    if not pattern or not key:
        return not pattern and not key
    part, *rest = pattern
    if part == "**":
        return key_matches(key[1:], pattern) or key_matches(key, rest) or (not rest and len(key) == 1)
    return fnmatch.fnmatchcase(key[0], part) and key_matches(key[1:], rest)


@given(keys=st.sets(paths, max_size=8), pattern=globs, kind=st.sampled_from(["listed", "flat"]))
@example(keys={"a", "a/b"}, pattern=["**"], kind="flat")
@example(keys={"a", "a/b"}, pattern=["**"], kind="listed")
def test_a_glob_of_a_store_names_each_key_that_matches(stores, keys, pattern, kind):
    text = "/".join(pattern)
    expected = {text} if text in keys else {key for key in keys if key_matches(key.split("/"), pattern)}
    assert found_in(stores, kind, keys, text) == expected


@pytest.mark.parametrize("kind", ["listed", "flat"])
@pytest.mark.parametrize(
    ("prefix", "below", "others"),
    [("p/", {"p/a", "p/a/.b", "p/[c]/d"}, {"p", "pa"}), ("p[1]/", {"p[1]/a"}, {"p1/b"})],
)
def test_a_prefix_names_all_keys_below_it(stores, kind, prefix, below, others):
    assert found_in(stores, kind, below | others, prefix) == below


def test_a_name_that_is_not_utf8(stores):
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        found_in(stores, "flat", {"p/a\udcff"}, "p/")


def test_two_stars_beside_other_characters(stores):
    with pytest.raises(
        InvalidRequestError, match=r"files\[0\]: .*'\*\*' can only be an entire path component"
    ):
        found_in(stores, "flat", {"a"}, "a**")


@pytest.mark.parametrize("kind", ["listed", "flat"])
def test_a_key_and_a_prefix_of_its_name(stores, kind):
    stores[kind].keys = {"/bucket/p", "/bucket/p/a"}
    found = resolved([f"memory://{kind}@bucket/p{end}" for end in ("", "/")])
    assert [file.name for file in found] == ["p", "a"]


def test_a_key_with_nothing_between_two_slashes(stores):
    """Only a flat listing can name it."""
    keys = {"p//a", "p/b/c"}
    assert found_in(stores, "flat", keys, "p/") == keys
    assert found_in(stores, "flat", keys, "*/*/*") == {"p/b/c"}


@pytest.mark.parametrize(
    ("pattern", "kind", "denied"),
    [
        ("in/*/x", "listed", "/bucket/in/b"),
        ("in/**", "listed", "/bucket/in/b"),
        ("in/", "listed", "/bucket/in/b"),
        ("in/*/*", "flat", "/bucket/in"),
        ("in/*", "flat", "/bucket/in"),
        ("in/", "flat", "/bucket/in"),
    ],
)
def test_a_stored_folder_that_cannot_be_listed(stores, pattern, kind, denied):
    stores[kind].keys = {"/bucket/in/a/x", "/bucket/in/b/x"}
    stores[kind].denied = denied
    with pytest.raises(FileUnavailableError, match="Access Denied"):
        resolved(f"memory://{kind}@bucket/{pattern}")
    stores[kind].denied = ""
