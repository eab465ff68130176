"""
Find the files that a DAG author names, and read them in order. Nothing is silently skipped.

Local names are matched here, because ``glob`` leaves out folders that it cannot list. fsspec lists and reads stores. An
object that was replaced since it was listed is noticed by its size as it is read, and by its version, which is looked up
once more before the last byte of the request is sent.
"""
# A Path would double the cost of reading a small file.
# ruff: noqa: PTH109, PTH116, PTH118

from __future__ import annotations

import asyncio
import errno
import fnmatch
import functools
import mimetypes
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, cast

from airflow.sdk import Asset, ObjectStoragePath

from workflow_automation_provider.client import files as body
from workflow_automation_provider.client.checks import kind_of, unusable_path
from workflow_automation_provider.client.files import Element, File, is_wrong_path, reason
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError

FileSource = str | os.PathLike[str] | ObjectStoragePath | Asset | Mapping[str, Any] | File
"""
A local path or glob; a URL, prefix or glob that ``ObjectStoragePath`` reads; an ``ObjectStoragePath``, or an
asset with such a URI; or a JSON object that is sent unchanged.
"""

_MAGIC = re.compile(r"[*?[]")

_UNKNOWN_TYPE = "application/octet-stream"
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


def resolve(files: FileSource | Iterable[FileSource]) -> list[Element]:
    """
    Return the files to upload.

    :param files: one source or several; a glob may use ``*``, ``?``, ``[…]`` and ``**``, and does not match
        local names that begin with a dot. A store's URL that ends in ``/`` is a prefix: everything below it is
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
    stores: dict[int, _Store] = {}
    sources = [_source(f"files[{number}]", source, stores) for number, source in enumerate(files)]
    for store in stores.values():
        store.named = store.look_up(store.named)
    elements = [element for source in sources for element in source]
    if not elements:
        raise InvalidRequestError("files is empty: expected at least one path, glob, URL or mapping.")
    return elements


def _source(name: str, source: FileSource, stores: dict[int, _Store]) -> Iterable[Element]:
    if isinstance(source, Asset):
        source = source.uri
    if isinstance(source, Mapping | File):
        return [source]
    if isinstance(source, str | ObjectStoragePath):
        scheme, is_url, path = str(source).partition("://")
        if is_url and scheme.strip().lower() not in ("file", "local"):
            return _stored_files(name, source, stores)
        return _local_files(name, getattr(source, "path", path if is_url else str(source)))
    if isinstance(source, os.PathLike):
        return _local_files(name, os.fspath(source))
    raise InvalidRequestError(f"{name} is {kind_of(source)}: expected a path, a glob, a URL or a mapping.")


class _Found(File):
    """A file with a place. Little is kept of each, for there may be very many."""

    __slots__ = ()

    def __init__(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the class is frozen
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise InvalidRequestError(f"{self.location!r} has a name that is not UTF-8: rename it.") from None

    @property
    def name(self) -> str:
        """The last part of its place."""
        return (self.location or "").rstrip("/").rpartition("/")[2]

    @property
    def content_type(self) -> str:
        """By its extension."""
        _, dot, extension = self.name.lstrip(".").partition(".")
        return _content_type(f"a{dot}{extension}")  # of very many names, there are few

    @property
    def source(self) -> str:
        """Its place, in quotes."""
        return repr(without_credentials(self.location or ""))


@functools.lru_cache
def _content_type(name: str) -> str:
    guessed, compressed = mimetypes.guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        return _COMPRESSED.get(compressed, _UNKNOWN_TYPE)
    return guessed or _UNKNOWN_TYPE


# Local files ------------------------------------------------------------------------------------------

# Seconds until a change to a local file is visible in its timestamps.
_SETTLED = 0.25


class _LocalFile(_Found):
    """A file of this machine."""

    __slots__ = ("location",)

    location: str

    def open(self) -> IO[bytes]:
        """Open it without a buffer: it is read in large chunks."""
        # A FIFO that took its place would be waited for.
        return open(
            self.location, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
        )

    def fingerprint(self) -> object:
        """Return its size, times and inode."""
        state = os.stat(self.location)
        # A change may still be in progress, or be followed by another within the same tick of the clock.
        unsettled = _SETTLED - (time.time() - max(state.st_mtime, state.st_ctime))
        if 0 < unsettled <= _SETTLED:
            time.sleep(unsettled)
            state = os.stat(self.location)
        # Programs cannot set the change time, so it reveals changes that `touch -r` and `rsync --times` hide.
        # Without the device: the number of a network file system may differ between machines, and a retry on
        # another machine would send everything again.
        return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _local_files(name: str, text: str) -> Iterator[File]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(f"{name} is an empty path: give a path, a glob, a URL or a mapping.")
    # A file whose own name looks like a pattern is meant as it is written.
    exists = os.path.lexists(text)
    if not exists and (error := unusable_path(name, text)):
        raise error
    if exists or not _MAGIC.search(text):
        yield _local_file(text)
        return
    try:
        matches = sorted({*_glob(f"{text}**" if text.endswith("/") else text)})
    except (OSError, ValueError) as error:
        folder = (getattr(error, "filename", None) or text).rstrip("/")
        what = f"{name}: the folder {folder!r} cannot be listed: {reason(error)}."
        raise (InvalidRequestError if is_wrong_path(error) else FileUnavailableError)(what) from None
    if not matches:
        raise FileUnavailableError(f"{name}: the glob {text!r} matches no file.", next_step=_hint(text))
    yield from map(_local_file, matches)


def _local_file(path: str) -> File:
    try:
        state = os.stat(path)
        if not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        what = f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}."
        if is_wrong_path(error):
            raise InvalidRequestError(what) from None
        hint = _hint(path) if isinstance(error, FileNotFoundError) else ""
        raise FileUnavailableError(what, next_step=hint) from None
    if stat.S_ISDIR(state.st_mode):
        advice = f"pass its files, or a glob such as {path.rstrip('/')}/*"
        raise InvalidRequestError(f"{path!r} is a directory: {advice}.")
    if not stat.S_ISREG(state.st_mode):
        raise InvalidRequestError(f"{path!r} is not a regular file.")
    return _LocalFile(location=path, size=state.st_size)


def _hint(path: str) -> str:
    here = f"A relative path is looked up in the worker's current directory, {os.getcwd()!r}."
    return "" if path.startswith("/") else here


def _glob(pattern: str) -> Iterator[str]:
    """
    Yield what a local glob names: of each folder once. Links are followed, but ``**`` does not go through them.

    :raises OSError: if a folder cannot be listed
    """
    magic = _MAGIC.search(pattern)
    end = pattern.rfind("/", 0, magic.start() if magic else 0) + 1
    *parts, last = filter(None, pattern[end:].split("/"))
    if last == "**":  # what is in any folder
        parts, last = [*parts, last], "*"
    folders: Iterable[str] = [pattern[:end] or "./"]
    for part in parts:
        named = [path for folder in folders for path, is_folder in _named(folder, part) if is_folder]
        # By the first of its names.
        named.sort(reverse=True)
        folders = {os.path.realpath(path): os.path.join(path, "") for path in named}.values()
    for folder in folders:
        for path, is_folder in _named(folder, last):
            # ** also matches what is in a folder; without it, a folder among the matches is an error.
            if not (is_folder and "**" in parts):
                yield path if end else path.removeprefix("./")


def _named(folder: str, part: str) -> Iterator[tuple[str, bool]]:
    """Yield what a part of a glob names in a folder, and whether that is a folder."""
    if not _MAGIC.search(part):
        path = f"{folder}{part}"
        if (is_folder := _is_folder(path)) or os.path.lexists(path):
            yield path, is_folder
        return
    if part == "**":
        yield folder, True
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if not fnmatch.fnmatchcase(entry.name, part) or entry.name[0] == "." != part[0]:
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if part != "**":
                yield entry.path, is_folder or (entry.is_symlink() and _is_folder(entry.path))
            elif is_folder:
                yield from _named(f"{entry.path}/", part)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise


# Stores -----------------------------------------------------------------------------------------------

# What identifies the content of an object, as fsspec's stores name it: the first that one says.
_VERSIONS = (
    *("generation", "ETag", "etag", "VersionId", "version_id", "md5Hash", "content_md5", "sha", "hex"),
    *("LastModified", "last_modified", "modificationTime", "modify", "created", "mtime", "updated"),
)

# Bytes that are read and asked for at once: multiples of 3, so that base64 of each piece joins without padding.
_PIECE = 1023 * 1024
_BLOCK = 4 * _PIECE

# Bytes and requests that may be on their way. More requests would only wait for the event loop.
_AHEAD = 3 * _BLOCK
_AT_ONCE = 32

# Seconds that the client of a store may take for a request, with its own retries.
_TIMEOUT = 300.0

# Keys in a page of a listing.
_PAGE = 1000

_Info = Mapping[str, Any]


def stored_at(name: str, source: str | ObjectStoragePath) -> tuple[Any, str]:
    """
    Return a file system, and what is at a URL as its file system names it.

    :param name: what the URL is called in errors
    :raises InvalidRequestError: if it is no URL of a store
    """
    try:
        if isinstance(source, ObjectStoragePath):
            return source.fs, source.path
        scheme, _, rest = source.partition("://")
        host, _, key = rest.partition("/")
        if not host.isprintable():
            raise ValueError("it has a control character before its path")
        # Without the key: of a whole URL, an object storage path drops a "?" or "#" at the end, and tabs anywhere.
        root = ObjectStoragePath(f"{scheme}://{host}/")
        return root.fs, f"{root.path.rstrip('/')}/{key.rstrip('/')}" if key else root.path
    except ValueError as error:
        raise InvalidRequestError(
            f"{name}: {without_credentials(str(source))!r} is not a URL that Airflow's object storage reads "
            f"({reason(error)}): check its scheme, which cannot be http, https or ftp, and that the provider of the store is "
            "installed."
        ) from None


class _Store:
    """A file system, with the scheme of its URLs, and what was named and listed of it."""

    def __init__(self, fs: Any, scheme: str) -> None:
        # By name, because importing all of them to compare would take seconds.
        kinds = {kind.__module__.partition(".")[0] for kind in type(fs).__mro__}
        self.fs = fs
        self.scheme = scheme
        # Whether it is that of S3, Google Cloud Storage or Azure: what others' asynchronous methods take differs.
        self.is_cloud = not kinds.isdisjoint(("s3fs", "gcsfs", "adlfs"))
        self.is_s3 = "s3fs" in kinds
        self.named: dict[str, Any] = {}
        self._listings: list[tuple[str, int | None]] = []
        self._listed = 0
        fs.invalidate_cache()  # a listing cached by an earlier task may be out of date
        if self.is_s3 and fs._s3 is None:  # not connected yet: as many as never have to be waited for
            fs.config_kwargs.setdefault("max_pool_connections", 2 * _AT_ONCE)

    def find(self, path: str, *, is_prefix: bool) -> dict[str, _Info]:
        """Return what is at a path, below a prefix, or what a glob names, by key."""
        root, parts = path, ["**"]
        if magic := _MAGIC.search(path):
            root = path[: max(path.rfind("/", 0, magic.start()), 0)]
            parts = [*path[len(root) + 1 :].split("/"), *(["**"] if is_prefix else [])]
        elif not is_prefix:
            if isinstance(info := self.named[path], Exception):
                raise info
            return {path: info}
        self._listings.append((root, None if "**" in parts else len(parts)))
        found = self._list(*self._listings[-1])
        self._listed += len(found)
        if path in found and not is_prefix:  # what looks like a pattern may be a key
            return {path: found[path]}
        if is_prefix and any(key.startswith(f"{path}/") for key in found):  # and so may a prefix be
            root, parts = path, ["**"]
        below = f"{root.rstrip('/')}/"
        return {
            key: info
            for key, info in found.items()
            # An empty object whose key ends in a slash is written to show a folder.
            if key.startswith(below)
            and not (key.endswith("/") and info.get("size") == 0)
            and _fits(key[len(below) :].removesuffix("/").split("/"), parts)
        }

    def _list(self, root: str, depth: int | None) -> dict[str, _Info]:
        """List files by key, so many levels deep, None for all. Cloud stores list any depth at once."""
        if depth == 1 or not self.is_cloud:
            return dict(_below(self.fs, root, depth))
        found: dict[str, _Info] = self.fs.find(root, detail=True)
        return found

    def look_up(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return what the store says of objects, or the error, by key."""
        keys = [*keys]
        if self.is_cloud:
            # On the store's own loop: threads would be waited for where the task is timed out.
            found = asyncio.run_coroutine_threadsafe(self._look_up(keys), self.fs.loop).result()
            return dict(zip(keys, found, strict=True))

        def look(key: str) -> Any:
            try:
                return self.fs.info(key)
            except Exception as error:  # object stores raise all kinds of exceptions
                return error

        return {key: look(key) for key in keys}

    async def _look_up(self, keys: Sequence[str]) -> list[Any]:
        free = asyncio.Semaphore(_AT_ONCE)

        async def look(key: str) -> Any:
            async with free, asyncio.timeout(_TIMEOUT):
                return await self.fs._info(key)

        return await asyncio.gather(*map(look, keys), return_exceptions=True)

    def check(self, files: Sequence[_StoredFile]) -> None:
        """
        Look at objects again.

        :raises FileUnavailableError: if one is no longer as it was found
        """
        self.fs.invalidate_cache()
        now: dict[str, Any] = {}
        # A page of a listing says as much as so many lookups.
        if self.is_cloud and len(files) > self._listed // _PAGE + len(self._listings):
            for listing in self._listings:
                now |= self._list(*listing)
        now |= self.look_up([file.key for file in files if file.key not in now])
        for file in files:
            info, (field, version) = now[file.key], file.version
            if isinstance(info, Exception):
                raise body.changed(file, f"could not be looked up ({reason(info)})")
            if info.get("size") not in (None, file.size) or _text(info.get(field) or version) != version:
                raise body.changed(file, "changed")


def _below(fs: Any, folder: str, depth: int | None) -> Iterator[tuple[str, _Info]]:
    """Yield the files below a folder: fsspec's own walk leaves out what it cannot list."""
    for info in fs.ls(folder, detail=True):
        path = info["name"].rstrip("/")
        if info["type"] != "directory":
            yield info["name"], info
        elif depth != 1 and path != folder.rstrip("/"):
            yield from _below(fs, path, depth and depth - 1)


def _fits(key: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a glob, of which ``**`` stands for any number."""
    if not pattern or not key:
        return not pattern and not key
    if pattern[0] == "**":
        return len(pattern) == 1 or _fits(key, pattern[1:]) or _fits(key[1:], pattern)
    return bool(key[0]) and fnmatch.fnmatchcase(key[0], pattern[0]) and _fits(key[1:], pattern[1:])


def _text(value: object) -> str:
    # A file system may say the time as a number in a listing, and not in a lookup.
    return str(value.timestamp() if isinstance(value, datetime) else value)


class _StoredFile(_Found):
    """An object in a store."""

    __slots__ = ("key", "store", "version")

    key: str
    store: _Store
    version: tuple[str, str]

    def __init__(self, store: _Store, key: str, info: _Info) -> None:
        version = next(((field, _text(info[field])) for field in _VERSIONS if info.get(field)), ("", ""))
        super().__init__(store=store, key=key, size=info.get("size"), version=version)

    @property
    def location(self) -> str:
        """Its URL."""
        return f"{self.store.scheme}://{self.key}"

    def fingerprint(self) -> object:
        """Return its size and its version."""
        return self.size, *self.version

    @property
    def read_ahead(self) -> body.ReadAhead:
        """What reads it and others ahead of their turn."""
        return _Reading


def _stored_files(
    name: str, source: str | ObjectStoragePath, stores: dict[int, _Store]
) -> Iterable[_StoredFile]:
    url = str(source)
    with _readable(name, url):
        fs, path = stored_at(name, source)
        if (store := stores.get(id(fs))) is None:
            store = stores[id(fs)] = _Store(fs, url.strip().partition("://")[0].lower())
    is_prefix = url.endswith("/")
    if not is_prefix and not _MAGIC.search(path):
        store.named[path] = None  # looked up when all are known

    def found() -> Iterator[_StoredFile]:
        with _readable(name, url):
            infos = store.find(path, is_prefix=is_prefix)
            if not infos:
                raise FileNotFoundError
            store.fs.invalidate_cache()  # what was listed may be much, and all that is needed of it was taken
            for key in sorted(infos):
                yield _stored_file(store, key, infos.pop(key))

    return found()


@contextmanager
def _readable(name: str, url: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequestError:
        raise
    except FileNotFoundError:
        raise FileUnavailableError(f"{name}: there is no file at {without_credentials(url)!r}.") from None
    except Exception as error:  # object stores raise all kinds of exceptions
        what = f"{name}: {without_credentials(url)!r} cannot be read: {reason(error)}."
        raise FileUnavailableError(what) from None


def _stored_file(store: _Store, key: str, info: _Info) -> _StoredFile:
    if info["type"] == "link":  # as SFTP servers list it
        info = store.fs.info(key)
    file = _StoredFile(store, key, info)
    if info["type"] == "directory":
        advice = "to upload everything below it, pass its URL as text that ends with /"
        raise InvalidRequestError(f"{file.source} is a directory: {advice}.")
    # Google Cloud Storage lists the size of what it has, and returns it decompressed.
    if info["type"] != "file" or file.size is None or info.get("contentEncoding") == "gzip":
        advice = "store it as a file without Content-Encoding: gzip"
        raise InvalidRequestError(f"{file.source} has no known size, which an upload requires: {advice}.")
    return file


class _Reading:
    """The objects of a request, see :class:`~workflow_automation_provider.client.files.Reading`."""

    def __init__(self, files: Iterable[File]) -> None:
        self._files = [file for file in files if isinstance(file, _StoredFile)]
        self._left = len(self._files)
        self._waiting = ((file, start) for file in self._files for start in _blocks(file))
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()

    def chunks(self, file: File) -> Iterator[bytes]:
        """Return the content of the next file; before the end of the last, look all of them up again."""
        last = b""
        for chunk in self._content(cast("_StoredFile", file)):
            if last:
                yield last
            last = chunk
        self._left -= 1
        if not self._left:
            for store in {one.store for one in self._files}:
                store.check([one for one in self._files if one.store is store])
        if last:
            yield last

    def close(self) -> None:
        """Cancel what is being fetched."""
        for _, block in self._ahead:
            block.cancel()

    def _content(self, file: _StoredFile) -> Iterator[bytes]:
        self._fetch()
        blocks = _blocks(file)
        if file.size and not blocks:
            yield from _streamed(file) if file.store.is_s3 else _opened(file)
        for _ in blocks:
            content = self._ahead[0][1].result(_TIMEOUT)
            self._ahead.popleft()
            self._fetch()
            yield from (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))

    def _fetch(self) -> None:
        """Begin to fetch what there is room for."""
        while len(self._ahead) < _AT_ONCE and sum(size for size, _ in self._ahead) + _BLOCK <= _AHEAD:
            file, start = next(self._waiting, (None, 0))
            if file is None:
                return
            fs, end = file.store.fs, min(start + _BLOCK, file.size)
            # With both ends: of all of an object, s3fs would request the size first.
            content = fs._cat_file(file.key, start=start, end=end)
            self._ahead.append((end - start, asyncio.run_coroutine_threadsafe(content, fs.loop)))


def _blocks(file: _StoredFile) -> range:
    """Return where the blocks of an object begin; it has none if it is read only when its turn has come."""
    is_fetched = file.store.is_cloud and not (file.store.is_s3 and file.size > _BLOCK)
    return range(0, file.size if is_fetched else 0, _BLOCK)


def _streamed(file: _StoredFile) -> Iterator[bytes]:
    """Read an object of S3 by one request, one piece ahead."""
    fs = file.store.fs
    stream = asyncio.run_coroutine_threadsafe(fs.open_async(file.key, "rb"), fs.loop).result(_TIMEOUT)
    ahead = asyncio.run_coroutine_threadsafe(_piece(stream), fs.loop)
    try:
        while piece := ahead.result(_TIMEOUT):
            ahead = asyncio.run_coroutine_threadsafe(_piece(stream), fs.loop)
            yield piece
    finally:
        ahead.cancel()
        if stream.r is not None:  # or its connection would be kept
            fs.loop.call_soon_threadsafe(stream.r.close)


async def _piece(stream: Any) -> bytes:
    piece = bytearray()
    while len(piece) < _PIECE and (more := await stream.read(_PIECE - len(piece))):
        piece += more
    return bytes(piece)


def _opened(file: _StoredFile) -> Iterator[bytes]:
    """Read an object of any other store."""
    left = file.size
    with file.store.fs.open(file.key, "rb") as stream:
        while left and (piece := body.read_exactly(stream, min(_PIECE, left))):
            left -= len(piece)
            yield piece
