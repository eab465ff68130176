"""Sources in an object store, here one in memory."""

from __future__ import annotations

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]  # has no types

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.sources import resolve

from .conftest import resolved

# With an id of its own: Airflow keeps the first store that is attached under one.
URL = "memory://told@reports"


class Store(MemoryFileSystem):  # type: ignore[misc]  # nor has its class
    """Tells of its objects what another store would."""

    told = ()

    def info(self, path, **options):
        info = super().info(path, **options)
        return {"size": info["size"], "type": info["type"], **self.told} if self.told else info


@pytest.fixture(scope="module")
def store():
    store = Store()
    attach("memory", conn_id="told", fs=store)
    return store


@pytest.fixture(autouse=True)
def files(store):
    for name, content in {"monday/a.csv": b"1", "monday/deep/b.csv": b"22", "top.csv": b"333"}.items():
        store.pipe(f"/reports/{name}", content)
    yield
    store.rm("/reports", recursive=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"{URL}/monday/", ["a.csv", "b.csv"]),
        (lambda: ObjectStoragePath(URL) / "*", ["top.csv"]),
        (lambda: ObjectStoragePath(f"{URL}/monday/") / "**", ["a.csv", "b.csv"]),
        (lambda: ObjectStoragePath(f"{URL}/top.csv"), ["top.csv"]),
    ],
)
def test_source(source, expected):
    assert [file.name for file in resolved(source() if callable(source) else source)] == expected


@pytest.mark.parametrize("kind", [str, ObjectStoragePath])
def test_directory(kind):
    with pytest.raises(InvalidRequestError, match=r"monday' is a directory: .* as text that ends with /"):
        resolve(kind(f"{URL}/monday"))


@pytest.mark.parametrize(
    "url", ["http://host/a.csv?X-Signature=hush", "https://u:hush@host/a.csv", "ftp://u:hush@host/a.csv"]
)
def test_web_addresses_are_none(url):
    with pytest.raises(InvalidRequestError) as caught:
        resolve([{"a": "mapping"}, url])
    assert "files[1]" in str(caught.value)
    assert "hush" not in str(caught.value)


FIELDS = {  # what a store of each kind says of an object, before and after it was overwritten
    "Azure": [{"etag": "0x1"}, {"etag": "0x2"}],
    "FTP": [{"modify": "20260101"}, {"modify": "20260102"}],
    "GitHub": [{"sha": "1f"}, {"sha": "2f"}],
    "Google": [{"generation": "1"}, {"generation": "2"}],
    "S3, with versions": [{"ETag": "1", "VersionId": "a"}, {"ETag": "2", "VersionId": "b"}],
    "WebHDFS": [{"modificationTime": 1}, {"modificationTime": 2}],
}


@pytest.mark.parametrize("states", FIELDS.values(), ids=FIELDS)
def test_what_stores_tell(store, monkeypatch, states):
    fingerprints = []
    for state in ({"atime": 1, **states[0]}, {"atime": 2, **states[0]}, states[1]):
        monkeypatch.setattr(store, "told", state)
        (file,) = resolved(f"{URL}/top.csv")
        fingerprints.append(file.fingerprint())
    assert fingerprints[0] == fingerprints[1]  # to be read is no change
    assert fingerprints[1] != fingerprints[2]


def test_an_object_that_is_decompressed_on_the_way_is_refused(store, monkeypatch):
    monkeypatch.setattr(store, "told", {"generation": "1", "contentEncoding": "gzip"})
    with pytest.raises(InvalidRequestError, match=r"top\.csv' has .* Content-Encoding: gzip"):
        resolve(f"{URL}/top.csv")
