"""Find the files that a URL, a glob or a prefix names in a store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workflow_automation_provider.client.files import File, reason
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.files.objects import (
    Found,
    Info,
    ObjectStore,
    StoredFile,
    fingerprint_of,
)
from workflow_automation_provider.hooks.files.paths import has_wildcard, name_of
from workflow_automation_provider.hooks.files.reading import ObjectReading
from workflow_automation_provider.hooks.files.stores import as_url, stored_at

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


def stored_files(
    name: str, source: str | ObjectStoragePath, stores: dict[int, ObjectStore]
) -> Iterator[File]:
    """
    Return the files of a source, which are found as they are iterated.

    An object that is named begins to be looked up now.

    :param name: what the source is called in errors
    :param stores: those that are known so far, by the ID of their file system
    :raises FileUnavailableError: if there is no file, or the store cannot be read
    :raises InvalidRequestError: if it is no URL of a store, or names what is no file
    """
    with _errors_of(name, source):
        fs, path = stored_at(name, source)
        scheme = str(source).partition("://")[0].strip().lower()
        if id(fs) not in stores:
            stores[id(fs)] = ObjectStore(fs, scheme)

        store = stores[id(fs)]

        is_prefix = str(source).endswith("/")
        if is_prefix or has_wildcard(path):
            files = _all_found(store, path, is_prefix=is_prefix)
        else:
            files = _one_named(store, path, store.look_up(path))

    return _with_errors_of(name, source, files)


def _all_found(store: ObjectStore, path: str, *, is_prefix: bool) -> Iterator[File]:
    """Yield the files that a glob or a prefix names."""
    found = store.find_below(path) if is_prefix else store.find(path)
    # Free the listing, which may be large: all that is needed of it was taken.
    store.fs.invalidate_cache()
    if not found:
        raise FileNotFoundError

    for one in found:
        info = store.look_up(one.key)() if one.listing is None else one.info
        yield _stored_file(store, one, info)


def _one_named(store: ObjectStore, key: str, looked_up: Callable[[], Info]) -> Iterator[File]:
    """Yield the file of a key."""
    yield _stored_file(store, Found(key, None, None, {}), looked_up())


def _with_errors_of(name: str, source: object, files: Iterator[File]) -> Iterator[File]:
    with _errors_of(name, source):
        yield from files


@contextmanager
def _errors_of(name: str, source: object) -> Iterator[None]:
    """Raise any exception of a store as an error that names the source."""
    url = as_url(source)
    try:
        yield
    except InvalidRequestError:
        raise
    except FileNotFoundError:
        raise FileUnavailableError(f"{name}: there is no file at {shown(url)}.") from None
    except Exception as error:  # object stores raise all kinds of exceptions
        why = reason(error, url)
        raise FileUnavailableError(f"{name}: {shown(url)} cannot be read: {why}.") from None


def _stored_file(store: ObjectStore, found: Found, info: Info) -> File:
    """
    Return the file of an object.

    :param info: what was listed or looked up of it
    :raises InvalidRequestError: if it is no file, or has no size
    """
    location = f"{store.scheme}://{found.key}"
    size = info.get("size")
    file_name = name_of(location)
    if info["type"] == "directory":
        advice = "to upload everything below it, pass its URL as text that ends with /"
        raise InvalidRequestError(f"{shown(location)} is a directory: {advice}.")

    # Google Cloud Storage lists the size of what it has, and returns it decompressed.
    is_decompressed = info.get("contentEncoding") == "gzip"
    if info["type"] != "file" or size is None or is_decompressed:
        advice = "store it as a file without Content-Encoding: gzip"
        raise InvalidRequestError(
            f"{shown(location)} has no known size, which an upload requires: {advice}."
        )

    fingerprint = fingerprint_of(info)
    return StoredFile(
        name=file_name,
        size=size,
        content_type=None,
        source=shown(location),
        open=functools.partial(store.fs.open, found.key, "rb"),
        fingerprint=lambda: fingerprint,
        location=location,
        read_ahead=ObjectReading,
        path=found.path,
        store=store,
        key=found.key,
        listing=found.listing,
    )
