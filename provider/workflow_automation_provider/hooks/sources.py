"""
Resolve what a DAG author passes into files, in order. Nothing is silently skipped.

``glob`` and fsspec's ``glob`` and ``walk`` leave out the folders that they cannot list, so that files would be missing
without an error.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import mimetypes
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, ObjectStoragePath

from workflow_automation_provider.client.checks import kind_of, unusable_path
from workflow_automation_provider.client.files import Element, File, is_wrong_path, reason
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.local_files import local_file, path_hint
from workflow_automation_provider.hooks.stored_files import Store, StoredFile, stored_at

FileSource = str | os.PathLike[str] | ObjectStoragePath | Asset | Mapping[str, Any] | File
"""
A local path or glob; a URL, prefix or glob that ``ObjectStoragePath`` reads; an ``ObjectStoragePath``, or an
asset with such a URI; or a JSON object that is sent unchanged.
"""

_MAGIC = re.compile(r"[*?[]")

# What Python makes of a byte that is not UTF-8, in the name of a local file.
_SURROGATE = re.compile("[\ud800-\udfff]")

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
    sources = [_source(f"files[{number}]", source) for number, source in enumerate(files)]
    _look_up([source for source in sources if isinstance(source, _Stored)])
    elements = [element for source in sources for element in source]
    if not elements:
        raise InvalidRequestError("files is empty: expected at least one path, glob, URL or mapping.")
    for element in elements:
        if isinstance(element, File) and _SURROGATE.search(element.name):
            raise InvalidRequestError(f"{element.source} has a name that is not UTF-8: rename it.")
    return elements


def _source(name: str, source: FileSource) -> Iterable[Element]:
    kind = type(source).__name__
    if isinstance(source, Asset):
        source = source.uri
    if isinstance(source, Mapping | File):
        return [source]
    if isinstance(source, ObjectStoragePath):
        if source.protocol in ("", "file", "local"):
            return _local_files(name, source.path)
        return _Stored(name, source, kind)
    if isinstance(source, str) and "://" in source:
        scheme, _, path = source.partition("://")
        if scheme.strip().lower() in ("file", "local"):
            return _local_files(name, path, is_prefix=path.endswith("/") and not _MAGIC.search(path))
        return _Stored(name, source, kind)
    if isinstance(source, str | os.PathLike):
        return _local_files(name, os.fspath(source))
    raise InvalidRequestError(f"{name} is {kind_of(source)}: expected a path, a glob, a URL or a mapping.")


# Local files ------------------------------------------------------------------------------------------


def _local_files(name: str, text: str, *, is_prefix: bool = False) -> Iterator[File]:
    for path in _local_paths(name, text, is_prefix=is_prefix):
        yield local_file(path, _content_type(path))


def _local_paths(name: str, text: str, *, is_prefix: bool) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(f"{name} is an empty path: give a path, a glob, a URL or a mapping.")
    # A file whose own name looks like a pattern is meant as it is written.
    if os.path.lexists(text) and not is_prefix:
        return [text]
    if error := unusable_path(name, text):
        raise error
    if not is_prefix and not _MAGIC.search(text):
        return [text]
    pattern = f"{text}**" if text.endswith("/") else text
    magic = _MAGIC.search(pattern)
    end = pattern.rfind("/", 0, magic.start() if magic else 0) + 1
    parts = [part for part in pattern[end:].split("/") if part]
    try:
        found = [*_matches(pattern[:end], parts, set(), hidden=is_prefix)]
    except (OSError, ValueError) as error:
        where = (getattr(error, "filename", None) or pattern[:end]).rstrip("/")
        what = f"{name}: the folder {where!r} cannot be listed: {reason(error)}."
        raise (InvalidRequestError if is_wrong_path(error) else FileUnavailableError)(what) from None
    # ** also matches what is in a folder; without it, a folder among the matches is an error.
    matches = sorted(path for path, is_folder in found if not (is_folder and "**" in parts))
    if not matches:
        raise FileUnavailableError(f"{name}: the glob {text!r} matches no file.", next_step=path_hint(text))
    return matches


def _matches(
    folder: str, parts: Sequence[str], seen: set[tuple[str, int]], *, hidden: bool
) -> Iterator[tuple[str, bool]]:
    """
    Yield what a glob names below a folder, and whether it is a folder itself.

    :param folder: empty, or with a slash at its end
    :param seen: folders without links, and how many parts were left for them: each is listed once
    """
    part, rest = parts[0], parts[1:]
    if not _MAGIC.search(part):
        path = f"{folder}{part}"
        if rest and _is_folder(path):
            yield from _matches(f"{path}/", rest, seen, hidden=hidden)
        elif not rest and os.path.lexists(path):
            yield path, _is_folder(path)
        return
    place = os.path.realpath(folder), len(parts)
    if place in seen:
        return
    seen.add(place)
    if part == "**" and rest:
        yield from _matches(folder, rest, seen, hidden=hidden)
    for entry in _entries(folder):
        if not fnmatch.fnmatchcase(entry.name, part) or (entry.name[0] == "." != part[0] and not hidden):
            continue
        path = f"{folder}{entry.name}"
        is_folder = _is_folder(path) if entry.is_symlink() else entry.is_dir()
        if part == "**" and is_folder and not entry.is_symlink():
            yield from _matches(f"{path}/", parts, seen, hidden=hidden)
        elif rest and is_folder and part != "**":
            yield from _matches(f"{path}/", rest, seen, hidden=hidden)
        elif not rest:
            yield path, is_folder


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List a folder, links at the end: what can be reached without them is named without them."""
    try:
        with os.scandir(folder or ".") as entries:
            return sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 - a Path costs too much
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise


# Object storage ---------------------------------------------------------------------------------------


class _Stored:
    """A source in a store."""

    def __init__(self, name: str, source: ObjectStoragePath | str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.url = str(source)
        self.shown = without_credentials(self.url)
        self.info: Any = None
        try:
            fs, self.path = stored_at(name, source) if isinstance(source, str) else (source.fs, source.path)
            self.store = Store(fs, self.url.strip().partition("://")[0].lower())
        except ValueError as error:
            raise InvalidRequestError(
                f"{name}: {self.shown!r} is not a URL that Airflow's object storage reads ({reason(error)}): check "
                "its scheme, and that the provider of the store is installed."
            ) from None
        except InvalidRequestError:
            raise
        except Exception as error:  # object stores raise all kinds of exceptions
            raise self._unreadable(error) from None

    @property
    def is_one(self) -> bool:
        """Whether it names one object."""
        return not (self.url.endswith("/") or _MAGIC.search(self.url))

    def __iter__(self) -> Iterator[File]:
        try:
            found = self._found()
        except FileNotFoundError:
            found = {}
        except Exception as error:  # object stores raise all kinds of exceptions
            raise self._unreadable(error) from None
        if not found:
            raise FileUnavailableError(f"{self.name}: there is no file at {self.shown!r}.")
        # What was listed may be much, and all that is needed of it was taken.
        self.store.fs.invalidate_cache()
        for key in sorted(found):
            yield self._file(key, found.pop(key))

    def _found(self) -> dict[str, Any]:
        if isinstance(self.info, BaseException):
            raise self.info
        fs, path = self.store.fs, self.path
        if self.info is not None or self.is_one:
            return {path: self.info or fs.info(path)}
        pattern = ["**"]
        if magic := _MAGIC.search(path):
            try:
                return {path: fs.info(path)}  # what looks like a pattern may be a key
            except FileNotFoundError:
                path, pattern = _split(f"{path}/**" if self.url.endswith("/") else path, magic.start())
        found = self._listed(path, pattern)
        root = f"{path.rstrip('/')}/"
        return {
            key: info
            for key, info in found.items()
            # An empty object whose key ends in a slash is written to show a folder.
            if key.startswith(root)
            and not (key.endswith("/") and info.get("size") == 0)
            and _fits(key[len(root) :].removesuffix("/").split("/"), pattern)
        }

    def _listed(self, root: str, pattern: list[str]) -> dict[str, Any]:
        depth = None if "**" in pattern else len(pattern)
        if self.store.is_cloud:
            return self.store.listed(root, is_flat=depth != 1)
        return dict(_below(self.store.fs, root, depth))

    def _file(self, key: str, info: Mapping[str, Any]) -> File:
        file = StoredFile(self.store, key, {"size": None, **info}, _content_type(key))
        if info["type"] == "link":  # as SFTP servers list it
            return self._file(key, self.store.fs.info(key))
        if info["type"] == "directory":
            advice = "end it with / to upload everything below it"
            if self.kind != "str":
                # Airflow strips a trailing /, so it is unknown whether a prefix or a file was meant.
                advice = f"to upload everything below it, pass the text '{self.shown}/', because {self.kind} strips a trailing /"
            raise InvalidRequestError(f"{file.source} is a directory: {advice}.")
        if info["type"] != "file":
            raise InvalidRequestError(
                f"{file.source} is not a file, but of type {info['type']!r}: leave it out."
            )
        if file.size is None:
            raise InvalidRequestError(
                f"{file.source} has no known size, which an upload requires: copy it to a file first."
            )
        if info.get("contentEncoding") == "gzip":
            # Google Cloud Storage lists the size of what it has, and returns it decompressed.
            raise InvalidRequestError(
                f"{file.source} is stored with Content-Encoding: gzip, so the size of its content is unknown: store it "
                "without that, or copy it to a file first."
            )
        return file

    def _unreadable(self, error: Exception) -> FileUnavailableError:
        return FileUnavailableError(f"{self.name}: {self.shown!r} cannot be read: {reason(error)}.")


def _look_up(sources: Sequence[_Stored]) -> None:
    """Request what cloud stores say of single objects, together."""
    by_fs: dict[int, list[_Stored]] = {}
    for source in sources:
        if source.store.is_cloud and source.is_one:
            by_fs.setdefault(id(source.store.fs), []).append(source)
    for several in by_fs.values():
        infos = several[0].store.look_up([source.path for source in several])
        for source, source.info in zip(several, infos, strict=True):
            source.store = several[0].store  # its objects are looked up together again, once they were read


def _split(pattern: str, magic: int) -> tuple[str, list[str]]:
    """Return the folder before the first part with a wildcard, and the parts from there on."""
    end = pattern.rfind("/", 0, magic)
    return pattern[: max(end, 0)], pattern[end + 1 :].split("/")


def _below(fs: Any, folder: str, depth: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the files below a folder: fsspec's own walk leaves out what it cannot list."""
    for info in fs.ls(folder, detail=True):
        path = info["name"].rstrip("/")
        if info["type"] != "directory":
            yield info["name"], info
        elif depth != 1 and path != folder.rstrip("/"):
            yield from _below(fs, path, depth and depth - 1)


def _fits(key: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a glob, of which ``**`` stands for any number."""
    if not pattern:
        return not key
    if pattern[0] == "**":
        rest = pattern[1:]
        return any(_fits(key[start:], rest) for start in range(len(key) + 1)) if rest else bool(key)
    return (
        bool(key) and bool(key[0]) and fnmatch.fnmatchcase(key[0], pattern[0]) and _fits(key[1:], pattern[1:])
    )


# Content types ----------------------------------------------------------------------------------------


def _content_type(path: str) -> str:
    # Each name has an extension of its own at worst, and there are very many names.
    stem, dot, extensions = path.rstrip("/").rpartition("/")[2].lstrip(".").partition(".")
    return _guessed(f"{stem and 'a'}{dot}{extensions}")


@functools.lru_cache
def _guessed(name: str) -> str:
    guessed, compressed = mimetypes.guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        return _COMPRESSED.get(compressed, _UNKNOWN_TYPE)
    return guessed or _UNKNOWN_TYPE
