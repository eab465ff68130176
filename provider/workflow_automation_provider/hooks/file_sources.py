"""Resolve the files that a DAG author passes. Nothing is silently skipped."""

from __future__ import annotations

import functools
import glob
import itertools
import mimetypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import Asset, ObjectStoragePath

from workflow_automation_provider.client.checks import kind_of, unusable_path
from workflow_automation_provider.client.files import Element, File, is_wrong_path, reason
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.cloud_stores import store_of
from workflow_automation_provider.hooks.listing import Listed, ListingError, Pattern, is_missing, list_local
from workflow_automation_provider.hooks.local_files import is_link, local_file, path_hint
from workflow_automation_provider.hooks.read_ahead import ObjectReading
from workflow_automation_provider.hooks.stores import Store, StoredFile, name_of

FileSource = str | os.PathLike[str] | ObjectStoragePath | Asset | Mapping[str, Any] | File
"""
A local path or glob; a URL, prefix or glob that ``ObjectStoragePath`` reads; an ``ObjectStoragePath``, or an
asset with such a URI; or a JSON object that is sent unchanged.
"""

_UNKNOWN_TYPE = "application/octet-stream"
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


def resolve(files: FileSource | Iterable[FileSource]) -> list[Element]:
    """
    Return the files to upload.

    :param files: one source or several; a glob may use ``*``, ``?``, ``[…]`` and ``**``, and does not match
        local names that begin with a dot. A URL that ends in ``/`` is a prefix: everything below it is
        uploaded. Of each, a file is found once
    :raises FileUnavailableError: if a file is missing or cannot be read, a folder cannot be listed, a glob or
        prefix matches nothing, or a store cannot be reached, naming it
    :raises InvalidRequestError: if there is nothing to upload, a source is a directory or otherwise no file, or of
        another type, or there is no store for a URL
    """
    if isinstance(files, str | os.PathLike | ObjectStoragePath | Asset | Mapping | File):
        files = [files] if files != {} else []
    elif isinstance(files, bytes | bytearray) or not isinstance(files, Sequence | set | frozenset | Iterator):
        raise InvalidRequestError(
            f"files is {kind_of(files)}: expected a list of paths, globs, URLs or mappings."
        )
    elif isinstance(files, set | frozenset):
        files = sorted(files, key=str)  # the same order in each try
    stores: _Stores = {}
    elements: list[Element] = []
    for is_stored, group in itertools.groupby(enumerate(files), lambda item: _is_stored(item[1])):
        named = ((f"files[{number}]", source) for number, source in group)
        if is_stored:
            elements.extend(_stored_files(named, stores))
        else:
            for name, source in named:
                elements.extend(_elements(source, name))
    if not elements:
        raise InvalidRequestError("files is empty: expected at least one path, glob, URL or mapping.")
    return elements


def _is_stored(source: object) -> bool:
    text = source.uri if isinstance(source, Asset) else source
    return isinstance(text, ObjectStoragePath) or (isinstance(text, str) and "://" in text)


def _elements(source: FileSource, name: str) -> Iterator[Element]:
    if isinstance(source, Asset):
        source = source.uri
    if isinstance(source, Mapping | File):
        yield source
    elif isinstance(source, str | os.PathLike):
        for path in _local_paths(os.fspath(source), name):
            yield local_file(path, _content_type(path.rpartition("/")[2]))
    else:
        raise InvalidRequestError(
            f"{name} is {kind_of(source)}: expected a path, a glob, a URL or a mapping."
        )


# Local files ------------------------------------------------------------------------------------------


def _local_paths(text: str, name: str) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(f"{name} is an empty path: give a path, a glob, a URL or a mapping.")
    if (error := unusable_path(name, text)) and not os.path.lexists(text):
        raise error
    # A file whose own name looks like a pattern is meant as it is written.
    if not glob.has_magic(text) or os.path.lexists(text):
        return [text]
    pattern = Pattern.of_glob(f"{text}**" if text.endswith("/") else text, hidden=False)
    listed = _listing(list_local, pattern, name)
    # ** also matches what is in a folder; without it, a folder among the matches is an error.
    matches = sorted([*listed.files, *(() if pattern.is_recursive else listed.folders)])
    if not matches:
        raise FileUnavailableError(f"{name}: the glob {text!r} matches no file.", next_step=path_hint(text))
    return matches


def _listing(
    list_all: Callable[[Pattern], Listed[Any]],
    pattern: Pattern,
    name: str,
    shown: Callable[[str], str] = lambda path: path or ".",
) -> Listed[Any]:
    try:
        return list_all(pattern)
    except ListingError as error:
        what = (
            f"{name}: the folder {shown(error.path)!r} cannot be listed: {reason(error.error).rstrip('.')}."
        )
        if is_wrong_path(error.error):
            raise InvalidRequestError(what) from None
        raise FileUnavailableError(what) from None


# Object storage ---------------------------------------------------------------------------------------


_Stores = dict[int, Store]
"""Of one upload, by the id of their file system."""


@dataclass(frozen=True, slots=True)
class _StoredSource:
    """
    A source in a store.

    :param name: what it is called in errors
    :param url: as it was given
    :param kind: what it was given as
    :param path: as its file system names it
    """

    name: str
    url: str
    kind: type
    store: Store
    path: str

    @property
    def is_glob(self) -> bool:
        """Whether it looks like a pattern."""
        return glob.has_magic(self.url)

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine after all."""
        # Imported here, as Airflow does: fsspec is slow to import, and most uploads are of local files.
        from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

        return isinstance(self.store.fs, LocalFileSystem)


_Entries = dict[str, Mapping[str, Any]]


def _stored_files(named: Iterable[tuple[str, Any]], stores: _Stores) -> Iterator[File]:
    sources = [_stored_source(name, source, stores) for name, source in named]
    looked = _looked_at(sources)
    for source in sources:
        yield from _files_of(source, looked.pop(id(source), None))
        # What was listed may be much, and all that is needed of it was taken.
        source.store.fs.invalidate_cache()


def _stored_source(name: str, source: ObjectStoragePath | Asset | str, stores: _Stores) -> _StoredSource:
    kind = type(source)
    if isinstance(source, Asset):
        source = source.uri
    url = str(source)
    try:
        storage = ObjectStoragePath(source) if isinstance(source, str) else source
        fs = storage.fs
        if id(fs) not in stores:
            fs.invalidate_cache()  # a listing cached by an earlier task may be out of date
            stores[id(fs)] = store_of(fs, ObjectReading)
        return _StoredSource(name, url, kind, stores[id(fs)], storage.path)
    except ValueError as error:
        raise InvalidRequestError(
            f"{name}: {without_credentials(url)!r} is not a URL that Airflow's object storage reads ({without_credentials(str(error))}): "
            "check its scheme, and that "
            "the provider of the store is installed."
        ) from None
    except Exception as error:  # object stores raise all kinds of exceptions
        raise _unreadable(name, url, error) from None


def _looked_at(sources: Sequence[_StoredSource]) -> dict[int, Mapping[str, Any] | BaseException]:
    """Request the metadata of single objects, concurrently where the store supports it."""
    looked: dict[int, Mapping[str, Any] | BaseException] = {}
    by_store: dict[Store, list[_StoredSource]] = {}
    for source in sources:
        names_one = not source.is_glob and not source.url.endswith("/")
        if names_one and source.store.loop is not None:
            by_store.setdefault(source.store, []).append(source)
    for store, several in by_store.items():
        infos = store.infos([source.path for source in several])
        looked |= {id(source): info for source, info in zip(several, infos, strict=True)}
    return looked


def _files_of(source: _StoredSource, looked: Mapping[str, Any] | BaseException | None) -> Iterator[File]:
    fs, path, url = source.store.fs, source.path, without_credentials(source.url)
    try:
        if isinstance(looked, BaseException):
            raise looked
        entries: _Entries = {path: looked} if looked is not None else _listed(source)
    except FileUnavailableError:
        raise
    except FileNotFoundError as error:
        if not is_missing(error):
            raise _unreadable(source.name, url, error.__cause__ or error) from None
        # A broken link exists, and is reported as a local path.
        entries = {path: {"type": "link"}} if source.is_local and is_link(path) else {}
    except Exception as error:  # object stores raise all kinds of exceptions
        raise _unreadable(source.name, url, error) from None
    if not entries:
        raise FileUnavailableError(f"{source.name}: there is no file at {url!r}.")
    is_local = source.is_local
    for key in sorted(entries):
        info = entries.pop(key)
        if info["type"] == "directory" and not (is_local and source.is_glob and is_link(key)):
            raise _directory(fs.unstrip_protocol(key), url, source.kind)
        if is_local:
            yield local_file(key, _content_type(key.rpartition("/")[2]))
        else:
            yield _stored_file(source.store, key, info)


def _listed(source: _StoredSource) -> _Entries:
    store, path = source.store, source.path
    is_prefix = source.url.endswith("/")
    if source.is_glob and not _exists(store.fs, path):
        pattern = Pattern.of_glob(f"{path}/**" if is_prefix else path, hidden=not source.is_local)
    elif is_prefix:
        pattern = Pattern.of_prefix(path)
    else:
        return {path: store.fs.info(path)}
    list_all = list_local if source.is_local else store.listed
    listed = _listing(list_all, pattern, source.name, lambda path: _shown(store, path))
    entries: _Entries = {path: info or {"type": "file"} for path, info in listed.files.items()}
    if not pattern.is_recursive:
        entries |= {path: {"type": "directory"} for path in listed.folders}
    return entries


def _exists(fs: Any, path: str) -> bool:
    try:
        fs.info(path)
    except FileNotFoundError as error:
        if not is_missing(error):
            raise
        return False
    return True


def _shown(store: Store, path: str) -> str:
    return without_credentials(store.fs.unstrip_protocol(path))


def _unreadable(name: str, url: str, error: BaseException) -> FileUnavailableError:
    why = f"{type(error).__name__}: {without_credentials(str(error)).strip().rstrip('.')}"
    return FileUnavailableError(f"{name}: {without_credentials(url)!r} cannot be read: {why}.")


def _directory(shown: str, url: str, kind: type) -> InvalidRequestError:
    if glob.has_magic(url):
        advice = "let the glob match only files, or use ** to match everything below it"
    elif issubclass(kind, str):
        advice = "end it with / to upload everything below it"
    else:
        # Airflow strips a trailing /, so it is unknown whether a prefix or a file was meant.
        advice = f"to upload everything below it, pass the text '{url}/', because {kind.__name__} strips a trailing /"
    return InvalidRequestError(f"{shown!r} is a directory: {advice}.")


def _stored_file(store: Store, key: str, info: Mapping[str, Any]) -> File:
    source = repr(without_credentials(store.fs.unstrip_protocol(key)))
    if info["type"] != "file":
        raise InvalidRequestError(f"{source} is not a file, but of type {info['type']!r}: leave it out.")
    if info.get("size") is None:
        raise InvalidRequestError(
            f"{source} has no known size, which an upload requires: copy it to a file first."
        )
    return StoredFile(store, key, info, _content_type(name_of(key)))


# Content types ----------------------------------------------------------------------------------------


def _content_type(name: str) -> str:
    # Each name has an extension of its own at worst, and there are very many names.
    stem, dot, extensions = name.lstrip(".").partition(".")
    return _guessed(f"{stem and 'a'}{dot}{extensions}")


@functools.lru_cache
def _guessed(name: str) -> str:
    guessed, compressed = mimetypes.guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        return _COMPRESSED.get(compressed, _UNKNOWN_TYPE)
    return guessed or _UNKNOWN_TYPE
