"""Globs and prefixes, on this machine and in a store: all that they name, once, or an error."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.listing import ListingError, Pattern, list_stored

from .conftest import resolved

names = st.sampled_from(["a", "b", "a.csv", ".h", "[a]"])
parts = st.sampled_from(["a", "b", "*", "**", "?", "*.csv", "[ab]", "[!b]*", "[[]a]", ".*", "a**"])
globs = st.lists(parts, min_size=1, max_size=4).filter(lambda found: re.search(r"[*?[]", "".join(found)))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


def name_matches(name, part, *, hidden):
    if not hidden and name.startswith(".") and not part.startswith("."):
        return False
    return fnmatch.fnmatchcase(name, part)


# Local files ------------------------------------------------------------------------------------------


def real_files(folder, pattern, seen):
    """Return the files that a pattern matches, each by the real path of its folder."""
    if not pattern or (folder, len(pattern)) in seen:
        return set()
    seen.add((folder, len(pattern)))
    part, *rest = pattern
    is_recursive = part == "**"
    found = real_files(folder, rest, seen) if is_recursive else set()
    for path in folder.iterdir():
        if name_matches(path.name, part, hidden=False):
            if path.is_dir():
                found |= real_files(path.resolve(), pattern if is_recursive else rest, seen)
            elif not rest:
                found.add(path)
    return found


@given(
    files=st.sets(paths, max_size=6),
    links=st.dictionaries(paths, st.sampled_from(["", "a", "b", "a/b", "a.csv", "nowhere"]), max_size=4),
    pattern=globs,
)
@example(files={"a/a.csv"}, links={"a/b": "", "b": ""}, pattern=["**", "*.csv"])
@example(files={"a.csv"}, links={"a": ""}, pattern=["a", "*", "*"])
def test_a_local_glob_names_each_file_once(files, links, pattern):
    with tempfile.TemporaryDirectory() as home:
        root = Path(home).resolve()
        for path in sorted(files):
            target = root / path
            if not any(parent.is_file() for parent in target.parents) and not target.is_dir():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(path)
        for path, to in links.items():
            link = root / path
            if link.parent.is_dir() and not os.path.lexists(link):
                link.symlink_to(root / to)
        expected = real_files(root, pattern, set())
        try:
            found = [Path(file.location or "") for file in resolved(f"{root}/{'/'.join(pattern)}")]
        except FileUnavailableError:  # nothing is found, or a link that leads nowhere
            assert not all(path.exists() for path in expected or [root / "nothing"])
        except InvalidRequestError:  # a folder is found
            assert "**" not in pattern
        else:
            assert sorted(path.parent.resolve() / path.name for path in found) == sorted(expected)


def test_loops_of_links_end(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv").touch()
    for name in ("one", "sub/two", "sub/three"):
        (tmp_path / name).symlink_to(tmp_path)
    (file,) = resolved(f"{tmp_path}/**/*.csv")
    assert file.location == f"{tmp_path}/sub/a.csv"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("pattern", ["*/*.csv", "**", "**/*.csv"])
def test_a_local_folder_that_cannot_be_listed(tmp_path, monkeypatch, pattern, code):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").touch()
    scandir = os.scandir

    def fail(path):
        if path == f"{tmp_path}/b":
            raise OSError(code, os.strerror(code))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(FileUnavailableError) as caught:
        resolved(f"{tmp_path}/{pattern}")
    assert f"files[0]: the folder '{tmp_path}/b'" in caught.value.message
    assert os.strerror(code) in caught.value.message


def test_a_name_without_wildcards_needs_no_listing(tmp_path, monkeypatch):
    (tmp_path / "a" / "private").mkdir(parents=True)
    (tmp_path / "a" / "private" / "x.csv").touch()
    scandir = os.scandir
    listed: list[str] = []

    def count(path):
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    (file,) = resolved(f"{tmp_path}/*/private/x.csv")
    assert file.location == f"{tmp_path}/a/private/x.csv"
    assert listed == [str(tmp_path)]


@pytest.mark.parametrize(("source", "count"), [("*", 1), ("**", 1), (".*", 1), ("file://", 2)])
def test_names_that_begin_with_a_dot(tmp_path, source, count):
    (tmp_path / ".hidden").touch()
    (tmp_path / "shown").touch()
    url = f"file://{tmp_path}/" if source == "file://" else f"{tmp_path}/{source}"
    assert len(resolved(url)) == count


# Stores -----------------------------------------------------------------------------------------------


class HttpError(Exception):
    """A response with a status, as aiohttp raises it."""

    def __init__(self, status):
        self.status = status


class Keys:
    """A store of keys, as those of S3 are listed: a key may be the name of a folder as well."""

    def __init__(self, keys, denied=None):
        self.keys = keys
        self.denied = denied

    def _info(self, key):
        return {"name": key, "type": "file", "size": 1}

    def ls(self, folder, *, detail):
        if folder == self.denied:
            raise PermissionError("Access Denied")
        below = [key for key in self.keys if key.startswith(f"{folder}/")]
        if not below:
            if folder in self.keys:
                return [self._info(folder)]
            raise FileNotFoundError(folder)
        rests = [key.removeprefix(f"{folder}/").partition("/") for key in below]
        folders = {name for name, slash, _ in rests if slash}
        return [
            *({"name": f"{folder}/{name}", "type": "directory", "size": 0} for name in folders),
            *(self._info(f"{folder}/{name}") for name, slash, _ in rests if not slash),
        ]

    def find(self, folder, *, detail):
        if folder == self.denied:
            raise PermissionError("Access Denied")
        return {key: self._info(key) for key in self.keys if key.startswith(f"{folder}/") or key == folder}

    def info(self, key):
        if key not in self.keys:
            raise FileNotFoundError(key)
        return self._info(key)


def key_matches(key, pattern):
    if not pattern or not key:
        return not pattern and not key
    part, *rest = pattern
    if part == "**":
        return key_matches(key[1:], pattern) or key_matches(key, rest) or (not rest and len(key) == 1)
    return name_matches(key[0], part, hidden=True) and key_matches(key[1:], rest)


@given(keys=st.sets(paths, max_size=8), pattern=globs, is_flat=st.booleans())
@example(keys={"a", "a/b"}, pattern=["**"], is_flat=True)
@example(keys={"a", "a/b"}, pattern=["**"], is_flat=False)
def test_a_glob_of_a_store_names_each_key_that_matches(keys, pattern, is_flat):
    keys = {f"bucket/{key}" for key in keys}
    text = f"bucket/{'/'.join(pattern)}"
    found = list_stored(Keys(keys), Pattern.of_glob(text, hidden=True), is_flat=is_flat)
    assert set(found.files) == {key for key in keys if key_matches(key.split("/")[1:], pattern)}


@pytest.mark.parametrize("is_flat", [True, False])
def test_a_prefix_names_all_keys_below_it(is_flat):
    keys = {"bucket/p/a", "bucket/p/a/.b", "bucket/p/[c]/d"}
    found = list_stored(
        Keys(keys | {"bucket/p", "bucket/pa"}), Pattern.of_prefix("bucket/p/"), is_flat=is_flat
    )
    assert set(found.files) == keys


def test_a_key_with_nothing_between_two_slashes():
    """Only a flat listing can name it."""
    keys = {"bucket/p//a", "bucket/p/b/c"}
    assert set(list_stored(Keys(keys), Pattern.of_prefix("bucket/p"), is_flat=True).files) == keys
    found = list_stored(Keys(keys), Pattern.of_glob("bucket/*/*/*", hidden=True), is_flat=False)
    assert set(found.files) == {"bucket/p/b/c"}


@pytest.mark.parametrize(("text", "is_flat"), [("in/*/x", False), ("in/*/*", True), ("in/**", False)])
def test_a_stored_folder_that_cannot_be_listed(text, is_flat):
    keys = {"in/a/x", "in/b/x"}
    denied = "in" if text == "in/*/x" else "in/b"
    with pytest.raises(ListingError) as caught:
        list_stored(Keys(keys, denied), Pattern.of_glob(text, hidden=True), is_flat=is_flat)
    assert caught.value.path == denied


class Failing(Keys):
    """A store that raises one error for any other, as those over HTTP and of pyarrow do."""

    cause: Exception

    def info(self, key):
        if key == "in/b/x":
            raise FileNotFoundError(key) from self.cause
        return super().info(key)


@pytest.mark.parametrize(
    ("cause", "is_missing"),
    [
        (ConnectionError("no route"), False),
        (TimeoutError(), False),
        (HttpError(503), False),
        (HttpError(404), True),
        (OSError("it does not exist"), True),
        (KeyError("in/b/x"), True),
    ],
)
def test_a_failure_is_not_a_missing_file(cause, is_missing):
    store = Failing({"in/a/x", "in/b/x"})
    store.cause = cause
    with contextlib.nullcontext() if is_missing else pytest.raises(ListingError):
        found = list_stored(store, Pattern.of_glob("in/*/x", hidden=True), is_flat=False)
        assert set(found.files) == {"in/a/x"}
