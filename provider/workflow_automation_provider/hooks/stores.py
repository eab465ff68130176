"""
Found files, and those in stores, which fsspec lists and reads.

An object that was replaced since it was listed is noticed by its size as it is read, and by its version, which is looked up
once more before the last byte of the request is sent.
"""

from __future__ import annotations

import asyncio
import fnmatch
import functools
import mimetypes
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from airflow.sdk import ObjectStoragePath

from workflow_automation_provider.client.files import File, changed, read_exactly, reason
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError

MAGIC = re.compile(r"[*?[]")
"""What begins a wildcard."""

_UNKNOWN_TYPE = "application/octet-stream"
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}

# What identifies the content of an object, as fsspec's stores name it: the first that one says.
_VERSIONS = (
    *(
        "generation",
        "ETag",
        "etag",
        "VersionId",
        "version_id",
        "md5Hash",
        "content_md5",
        "sha",
        "hex",
    ),
    *("LastModified", "last_modified", "modificationTime", "modify", "mtime", "updated"),
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


def found_file(location: str, size: Any, kind: type[File] = File, **how: Any) -> File:
    """Return a file; its name and media type are those of its location."""
    name = location.rstrip("/").rpartition("/")[2]
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{location!r} has a name that is not UTF-8: rename it."
        ) from None
    guessed, compressed = mimetypes.guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        guessed = _COMPRESSED.get(compressed)
    source = repr(without_credentials(location))
    return kind(name, size, guessed or _UNKNOWN_TYPE, source, location=location, **how)


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


def in_time(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a method of a store, which may have no timeout of its own, and wait for up to five minutes."""
    # Without `with`, which would wait for a call that hangs.
    return ThreadPoolExecutor(1).submit(call, *args, **options).result(_TIMEOUT)


class Store:
    """A file system, with the scheme of its URLs, and what was listed of it."""

    def __init__(self, fs: Any, scheme: str) -> None:
        # By name, because importing all of them to compare would take seconds.
        kinds = {kind.__module__.partition(".")[0] for kind in type(fs).__mro__}
        self.fs = fs
        self.scheme = scheme
        # Whether it is that of S3, Google Cloud Storage or Azure: what others' asynchronous methods take differs.
        self.is_cloud = not kinds.isdisjoint(("s3fs", "gcsfs", "adlfs"))
        self.is_s3 = "s3fs" in kinds
        self._listings: list[tuple[str, int | None]] = []
        self._listed = 0
        self._free = asyncio.Semaphore(_AT_ONCE)
        fs.invalidate_cache()  # a listing cached by an earlier task may be out of date
        if (
            self.is_s3 and fs._s3 is None
        ):  # not connected yet: as many as never have to be waited for
            fs.config_kwargs.setdefault("max_pool_connections", 2 * _AT_ONCE)

    def find(self, path: str, *, is_prefix: bool) -> dict[str, _Info]:
        """Return what is below a prefix, or what a glob names, by key."""
        root, parts = path, ["**"]
        if magic := MAGIC.search(path):
            root = path[: max(path.rfind("/", 0, magic.start()), 0)]
            parts = [*path[len(root) + 1 :].split("/"), *["**"] * is_prefix]
        self._listings.append((root, None if "**" in parts else len(parts)))
        found = self._list(*self._listings[-1])
        self._listed += len(found)
        self.fs.invalidate_cache()  # what was listed may be much, and all that is needed of it was taken
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
        return cast("dict[str, _Info]", self.fs.find(root, detail=True))

    def look_up(self, key: str) -> Callable[[], _Info]:
        """Begin to look up an object, and return a function that waits for the result."""
        if not self.is_cloud:
            return functools.partial(in_time, self.fs.info, key)

        async def look() -> _Info:
            async with self._free, asyncio.timeout(_TIMEOUT):
                return cast("_Info", await self.fs._info(key))

        # On the store's own loop: threads would be waited for where the task is timed out.
        return asyncio.run_coroutine_threadsafe(look(), self.fs.loop).result

    def check(self, files: Sequence[_StoredFile]) -> None:
        """
        Look at objects again.

        :raises FileUnavailableError: if one is no longer as it was found
        """
        self.fs.invalidate_cache()
        now: dict[str, _Info] = {}
        # A page of a listing says as much as so many lookups.
        if self.is_cloud and len(files) > self._listed // _PAGE + len(self._listings):
            for listing in self._listings:
                now |= self._list(*listing)
        looked_up = {file.key: self.look_up(file.key) for file in files if file.key not in now}
        for file in files:
            try:
                info = looked_up[file.key]() if file.key in looked_up else now[file.key]
            except Exception as error:  # object stores raise all kinds of exceptions
                raise changed(file, f"could not be looked up ({reason(error)})") from None
            field, version = file.version
            if (
                info.get("size") not in (None, file.size)
                or str(info.get(field) or version) != version
            ):
                raise changed(file, "changed")


def _below(fs: Any, folder: str, depth: int | None) -> Iterator[tuple[str, _Info]]:
    """Yield the files below a folder: fsspec's own walk leaves out what it cannot list."""
    for info in in_time(fs.ls, folder, detail=True):
        path = info["name"].rstrip("/")
        if info["type"] != "directory":
            yield info["name"], info
        elif depth != 1 and path != folder.rstrip("/"):
            yield from _below(fs, path, depth and depth - 1)


def _fits(key: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a glob; ``**`` stands for any number of parts."""
    if not pattern or not key:
        return not pattern and not key
    if pattern[0] == "**":
        return len(pattern) == 1 or _fits(key, pattern[1:]) or _fits(key[1:], pattern)
    return bool(key[0]) and fnmatch.fnmatchcase(key[0], pattern[0]) and _fits(key[1:], pattern[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredFile(File):
    """An object in a store. Its version is the name of a field of the listing, and its value."""

    store: Store
    key: str
    version: tuple[str, str]


def stored_files(
    name: str, source: str | ObjectStoragePath, stores: dict[int, Store]
) -> Iterator[File]:
    """
    Return the files of a source, listed once they are asked for; what it names is looked up already.

    :param name: what the source is called in errors
    :param stores: those that are known so far, by file system
    """
    with _readable(name, source):
        fs, path = stored_at(name, source)
        scheme = str(source).partition("://")[0].strip().lower()
        store = stores.get(id(fs)) or stores.setdefault(id(fs), Store(fs, scheme))
        is_prefix = str(source).endswith("/")
        named = None if is_prefix or MAGIC.search(path) else store.look_up(path)

    def found() -> Iterator[File]:
        with _readable(name, source):
            infos = {path: named()} if named else store.find(path, is_prefix=is_prefix)
            if not infos:
                raise FileNotFoundError
            for key in sorted(infos):
                yield _stored_file(store, key, infos.pop(key))

    return found()


@contextmanager
def _readable(name: str, source: object) -> Iterator[None]:
    url = repr(without_credentials(str(source)))
    try:
        yield
    except InvalidRequestError:
        raise
    except FileNotFoundError:
        raise FileUnavailableError(f"{name}: there is no file at {url}.") from None
    except Exception as error:  # object stores raise all kinds of exceptions
        raise FileUnavailableError(f"{name}: {url} cannot be read: {reason(error)}.") from None


def _stored_file(store: Store, key: str, info: _Info) -> File:
    if info["type"] == "link":  # as SFTP servers list it
        info = in_time(store.fs.info, key)
    version = next(((field, str(info[field])) for field in _VERSIONS if info.get(field)), ("", ""))
    size = info.get("size")
    file = found_file(
        f"{store.scheme}://{key}",
        size,
        _StoredFile,
        open=functools.partial(store.fs.open, key, "rb"),
        fingerprint=lambda: (size, *version),
        read_ahead=_Reading,
        store=store,
        key=key,
        version=version,
    )
    if info["type"] == "directory":
        advice = "to upload everything below it, pass its URL as text that ends with /"
        raise InvalidRequestError(f"{file.source} is a directory: {advice}.")
    # Google Cloud Storage lists the size of what it has, and returns it decompressed.
    if info["type"] != "file" or size is None or info.get("contentEncoding") == "gzip":
        advice = "store it as a file without Content-Encoding: gzip"
        raise InvalidRequestError(
            f"{file.source} has no known size, which an upload requires: {advice}."
        )
    return file


class _Reading:
    """The objects of a request, see :class:`~workflow_automation_provider.client.files.Reading`."""

    def __init__(self, files: Iterable[File]) -> None:
        self._files = [file for file in files if isinstance(file, _StoredFile)]
        self._left = len(self._files)
        self._waiting = ((file, start) for file in self._files for start in _blocks(file))
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()

    def chunks(self, file: File) -> Iterator[bytes]:
        """Return the content of the next file; after that of the last, look all of them up again."""
        yield from self._content(cast("_StoredFile", file))
        self._left -= 1
        if not self._left:
            for store in {one.store for one in self._files}:
                store.check([one for one in self._files if one.store is store])

    def close(self) -> None:
        """Cancel what is being fetched."""
        for _, block in self._ahead:
            block.cancel()

    def _content(self, file: _StoredFile) -> Iterator[bytes]:
        self._fetch()
        blocks = _blocks(file)
        if file.size and not blocks:
            yield from _streamed(file) if file.store.is_s3 else pieces(file.open)
        for _ in blocks:
            content = self._ahead[0][1].result(_TIMEOUT)
            self._ahead.popleft()
            self._fetch()
            yield from (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))

    def _fetch(self) -> None:
        """Begin to fetch what there is room for."""
        while (
            len(self._ahead) < _AT_ONCE and sum(size for size, _ in self._ahead) + _BLOCK <= _AHEAD
        ):
            file, start = next(self._waiting, (None, 0))
            if file is None:
                return
            fs, end = file.store.fs, min(start + _BLOCK, file.size)
            # With both ends: of all of an object, s3fs would request the size first.
            content = fs._cat_file(file.key, start=start, end=end)
            self._ahead.append((end - start, asyncio.run_coroutine_threadsafe(content, fs.loop)))


def _blocks(file: _StoredFile) -> range:
    """Return where the blocks of an object begin; none if it is not read ahead."""
    is_fetched = file.store.is_cloud and not (file.store.is_s3 and file.size > _BLOCK)
    return range(0, file.size if is_fetched else 0, _BLOCK)


def _streamed(file: _StoredFile) -> Iterator[bytes]:
    """Read an object of S3 by one request, one piece ahead."""
    fs = file.store.fs
    stream = asyncio.run_coroutine_threadsafe(fs.open_async(file.key, "rb"), fs.loop).result(
        _TIMEOUT
    )
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


def pieces(opened: Callable[[], Any]) -> Iterator[bytes]:
    """Read a file of any other store."""
    stream = in_time(opened)
    try:
        while piece := in_time(read_exactly, stream, _PIECE):
            yield piece
    finally:
        ThreadPoolExecutor(1).submit(stream.close)
