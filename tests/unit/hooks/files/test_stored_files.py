"""
Sources in a store, here one of our own.

Globs and prefixes find all that they name, once, or are an error.
"""

from __future__ import annotations

import fnmatch
import sys
from functools import partial
from uuid import uuid4

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import attach
from fsspec import AbstractFileSystem  # type: ignore[import-untyped]  # has no types
from fsspec.asyn import get_loop  # type: ignore[import-untyped]  # has no types
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.location import locate
from workflow_automation_provider.hooks.files.sources import resolve

from ..conftest import globs, paths, resolved


class Keys(AbstractFileSystem):  # type: ignore[misc]  # has no types
    """
    A store of keys that is listed folder by folder.

    A key may be the name of a folder as well.
    """

    cachable = False
    root_marker = "/"

    def __init__(self):
        super().__init__()
        self.keys: set[str] = set()
        self.denied = ""
        self.fields: dict[str, object] = {}
        """What else it returns of each object."""

    def _entry(self, key, kind="file"):
        return {"name": key, "type": kind, "size": 1, **self.fields}

    def ls(self, folder, *, detail):
        folder = folder.rstrip("/")
        if folder == self.denied:
            raise PermissionError("Access Denied")
        below = [key for key in self.keys if key.startswith(f"{folder}/")]
        if not below:
            return [self.info(folder)]
        rests = [key.removeprefix(f"{folder}/").partition("/") for key in below]
        folders = {name for name, slash, _ in rests if slash}
        return [
            *(self._entry(f"{folder}/{name}", "directory") for name in folders),
            *(self._entry(f"{folder}/{name}") for name, slash, _ in rests if not slash),
        ]

    def info(self, key):
        if key in self.keys:
            return self._entry(key)
        if any(one.startswith(f"{key}/") for one in self.keys):
            return self._entry(key, "directory")
        raise FileNotFoundError(key)


class Flat(Keys):
    """Lists all keys at once, as those of S3, Google Cloud Storage and Azure are."""

    asynchronous = False
    loop = get_loop()

    async def _info(self, key):
        return self.info(key)

    def find(self, folder, *, detail, prefix=""):
        if folder == self.denied:
            raise PermissionError("Access Denied")
        return {
            key: self._entry(key)
            for key in self.keys
            if key.startswith(f"{folder}/{prefix}") or (key == folder and not prefix)
        }


Flat.__module__ = "gcsfs.core"

STORES = {"listed": Keys(), "flat": Flat()}


@pytest.fixture(autouse=True, scope="module")
def _attached():
    for name, store in STORES.items():
        attach("memory", conn_id=name, fs=store)


@pytest.fixture(params=STORES)
def kind(request):
    return request.param


@pytest.fixture
def store(kind, monkeypatch):
    """A store with a few objects; ``url`` is that of their bucket."""
    store = STORES[kind]
    store.url = f"memory://{kind}@bucket"
    monkeypatch.setattr(
        store, "keys", {"/bucket/in/a/x.csv", "/bucket/in/b/x", "/bucket/in/b", "/bucket/top.csv"}
    )
    return store


def found_in(kind, keys, pattern):
    STORES[kind].keys = {f"/bucket/{key}" for key in keys}
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
        return (
            key_matches(key[1:], pattern) or key_matches(key, rest) or (not rest and len(key) == 1)
        )
    return fnmatch.fnmatchcase(key[0], part) and key_matches(key[1:], rest)


@given(keys=st.sets(paths, max_size=8), pattern=globs, kind=st.sampled_from([*STORES]))
@example(keys={"a", "a/b"}, pattern=["**"], kind="flat")
@example(keys={"a", "a/b"}, pattern=["**"], kind="listed")
@example(keys={"a/r/x", "a/r-x", "a//b"}, pattern=["*", "r[!_]*"], kind="flat")
@example(keys={"a/r/x", "a/r-x", "a//b"}, pattern=["a", "**", "[!_]*"], kind="flat")
def test_a_glob_names_each_key_that_matches(keys, pattern, kind):
    text = "/".join(pattern)
    expected = (
        {text} if text in keys else {key for key in keys if key_matches(key.split("/"), pattern)}
    )
    assert found_in(kind, keys, text) == expected


@pytest.mark.parametrize(
    ("prefix", "below", "others"),
    [("p/", {"p/a", "p/a/.b", "p/[c]/d"}, {"p", "pa"}), ("p[1]/", {"p[1]/a"}, {"p1/b"})],
)
def test_a_prefix_names_all_keys_below_it(kind, prefix, below, others):
    assert found_in(kind, below | others, prefix) == below


@pytest.mark.parametrize(("pattern", "found"), [("p/", {"p//a", "p/b/c"}), ("*/*/*", {"p/b/c"})])
def test_a_key_with_nothing_between_two_slashes(pattern, found):
    """Only a flat listing can name it."""
    assert found_in("flat", {"p//a", "p/b/c"}, pattern) == found


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda url: [f"{url}/in/b", f"{url}/in/b/"], ["b", "x"]),
        (lambda url: ObjectStoragePath(url) / "*", ["top.csv"]),
        (lambda url: ObjectStoragePath(f"{url}/in/a/") / "**", ["x.csv"]),
    ],
)
def test_sources(store, make, expected):
    assert [file.name for file in resolved(make(store.url))] == expected


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda url: f"{url}/in/a", r"in/a' is a directory: .* as text that ends with /"),
        (lambda _: [{"a": "mapping"}, "http://host/a.csv?X-Signature=hush"], r"files\[1\]"),
        (lambda _: [{"a": "mapping"}, "ftp://u:hush@host/a.csv"], r"files\[1\]"),
    ],
)
def test_sources_that_never_name_an_object(store, make, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        resolve(make(store.url))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "kind", "denied"),
    [
        ("in/*/x", "listed", "/bucket/in/b"),
        ("in/", "listed", "/bucket/in/b"),
        ("in/*", "flat", "/bucket/in"),
    ],
)
def test_a_folder_that_cannot_be_listed(store, monkeypatch, pattern, denied):
    monkeypatch.setattr(store, "denied", denied)
    with pytest.raises(FileUnavailableError, match="Access Denied"):
        resolve(f"{store.url}/{pattern}")


@pytest.mark.parametrize(
    "field", ["generation", "ETag", "etag", "sha", "modificationTime", "modify"]
)
def test_the_field_of_each_store_identifies_the_version(store, monkeypatch, field):
    """To be read is no change."""
    prints = []
    for fields in ({"atime": 1, field: 1}, {"atime": 2, field: 1}, {"atime": 2, field: 2}):
        monkeypatch.setattr(store, "fields", fields)
        prints += [file.fingerprint() for file in resolved(f"{store.url}/top.csv")]
    assert (prints[0] == prints[1], prints[1] == prints[2]) == (True, False)


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("in/", {"a/x.csv", "b", "b/x"}),
        ("in/*/x*", {"a/x.csv", "b/x"}),
        ("in/a/x.*", {"x.csv"}),
        ("top.csv", {None}),
    ],
)
def test_a_path_is_relative_to_the_prefix(store, pattern, paths):
    assert {file.path for file in resolved(f"{store.url}/{pattern}")} == paths


class Unquoted(Flat):
    """Writes the version of a listing differently from that of an object, as adlfs did."""

    def find(self, folder, **options):
        found = super().find(folder, **options)
        return {key: {**info, "etag": f"{self.fields['etag']}"} for key, info in found.items()}

    async def _info(self, key):
        return {**self.info(key), "etag": f'"{self.fields["etag"]}"'}

    def ls(self, folder, *, detail):
        return [{**info, "etag": self.fields["etag"]} for info in super().ls(folder, detail=detail)]

    async def _cat_file(self, key, **_):
        return b"x"


class TestVersions:
    @pytest.fixture
    def unquoted(self, service):  # which forgets the stores of the test before
        store = Unquoted()
        store.keys = {f"/bucket/{name}" for name in ("a", "ab", "b/c", "b/d/")}
        store.fields = {"etag": "1"}
        store.url = f"memory://{uuid4()}@bucket"
        attach("memory", conn_id=store.url[9:-7], fs=store)
        return store

    @pytest.mark.parametrize("path", ["", "b/", "*", "a*", "b/*", "**/c", "a", "b/d/"])
    def test_a_version_is_compared_with_one_that_was_found_alike(
        self, unquoted, service, hook, run_id, path
    ):
        files = resolved(f"{unquoted.url}/{path}")
        for file in files:  # one in each request, and then all
            hook.upload_files(run_id, [file], "demo-flow")
        requests = hook.prepare_uploads(run_id, files, "demo-flow")
        for request in requests:
            hook.get_conn().upload(request)
        assert len(service.uploads) == len(files) + 1

        unquoted.fields = {"etag": "2"}
        for file in files:
            with pytest.raises(FileUnavailableError, match="changed while"):
                hook.upload_files(run_id, [file], "demo-flow")

        unquoted.fields = {"etag": "1"}
        unquoted.keys.clear()
        for file in files:
            with pytest.raises(FileUnavailableError, match=r"deleted|FileNotFound"):
                hook.upload_files(run_id, [file], "demo-flow")


def test_an_object_that_is_decompressed_on_the_way_is_refused(store, monkeypatch):
    monkeypatch.setattr(store, "fields", {"generation": "1", "contentEncoding": "gzip"})
    with pytest.raises(InvalidRequestError, match=r"top\.csv' has .* Content-Encoding: gzip"):
        resolve(f"{store.url}/top.csv")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("is_without_provider", [True, False])
def test_without_the_extra_for_s3_it_is_named(monkeypatch, scheme, is_without_provider):
    if is_without_provider:
        monkeypatch.setattr("airflow.sdk.io.fs._register_filesystems", dict)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    conn_id = uuid4().hex
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", '{"conn_type": "aws"}')
    url = f"{scheme}://{conn_id}@bucket/key"
    for read in (resolve, partial(locate, "batch"), partial(locate, "output_path")):
        with pytest.raises(InvalidRequestError) as caught:
            read(url)
        assert "airflow-provider-workflow-automation[amazon]" in caught.value.next_step
