"""
Files in stores, which fsspec lists, reads and writes.

An object that was replaced since it was found is noticed by its size as it is read, and by its
version, which is looked at once more before the last byte of the request is sent, in the way in
which it was found: the clients of some stores write the version of a listing differently from that
of a single object.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import functools
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import has_fs

from workflow_automation_provider.client.files import File, changed, read_exactly, reason
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError

MAGIC = re.compile(r"[*?[]")
"""What begins a wildcard."""

# What identifies the content of an object, as fsspec's stores name it: the first that one says.
_VERSIONS = (
    "generation",
    "ETag",
    "etag",
    "VersionId",
    "version_id",
    "md5Hash",
    "content_md5",
    "sha",
    "hex",
    # Times, which are compared where there is nothing better
    "LastModified",
    "last_modified",
    "modificationTime",
    "modify",
    "mtime",
    "updated",
)

# Bytes that are read and asked for at once: multiples of 3, so that base64 of each piece joins
# without padding.
_PIECE = 1023 * 1024
_BLOCK = 4 * _PIECE

# Bytes and requests that may be on their way. More requests would only wait for the event loop.
_AHEAD = 3 * _BLOCK
_AT_ONCE = 32

# Seconds that the client of a store may take for a request, with its own retries, and the bytes a
# second of a slow one.
_TIMEOUT = 300.0
_SLOWEST = 100_000

# Seconds until a change shows in a time of whole seconds, with some for a clock that differs; and
# how often to wait for it.
_SETTLED = 1.25
_WAITS = 3

_Info = Mapping[str, Any]


# Calls of a store --------------------------------------------------------------------------------


def in_time(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """
    Call a method of a store, which may have no timeout of its own, and wait for up to five minutes.

    :raises TimeoutError: if it takes longer
    """
    return _result(_begun(call, *args, **options), _TIMEOUT)


def _begun(call: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
    """Call a method in a thread that nobody waits for, not even the end of the process."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = call(*args, **options)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


def _result(future: Future[Any], seconds: float) -> Any:
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # it has one of its own
            raise
        raise TimeoutError(f"the store has not answered for {seconds:,.0f} seconds") from None


def stored_at(name: str, source: str | ObjectStoragePath) -> tuple[Any, str]:
    """
    Return a file system, and what is at a URL as its file system names it.

    :param name: what the URL is called in errors
    :raises InvalidRequestError: if it is no URL of a store
    """
    url = as_url(source)
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    try:
        if isinstance(source, ObjectStoragePath):
            return in_time(getattr, source, "fs"), source.path

        if not host.isprintable():
            raise ValueError("it has a control character before its path")
        # Without the key: of a whole URL, an object storage path drops a "?" or "#" at the end, and
        # tabs anywhere.
        fs, root = in_time(_opened, f"{scheme}://{host}/")
        return fs, f"{root.rstrip('/')}/{key.rstrip('/')}" if key else root
    except ValueError as error:
        raise InvalidRequestError(
            f"{name}: {shown(url)} is not a URL that Airflow's object storage reads "
            f"({reason(error, url)}): check its scheme, which cannot be http, https or ftp, and "
            "that the provider of the "
            "store is installed.",
            next_step=_connection_hint(scheme, host),
        ) from None
    except TypeError as error:  # an argument that only a connection gives
        if "@" in host:
            raise
        raise InvalidRequestError(
            f"{name}: {shown(url)} names no connection, which its store needs "
            f"({reason(error, url)}).",
            next_step=_connection_hint(scheme, host),
        ) from None


def _opened(root: str) -> tuple[Any, str]:
    """Return the file system of a URL, which may connect to its host, and its path there."""
    path = ObjectStoragePath(root)
    return path.fs, path.path


def _connection_hint(scheme: str, host: str) -> str:
    """Return how a URL names a connection, if this one names none."""
    if "@" in host or not has_fs(scheme.strip().lower()):
        return ""
    return f"If the store needs one, name a connection: {scheme}://conn_id@/…"


def as_url(source: object) -> str:
    """Return a source as text, with the ID of its connection."""
    text = str(source)
    conn_id = getattr(source, "conn_id", None)
    scheme, separator, rest = text.partition("://")
    if not separator or not isinstance(conn_id, str) or rest.startswith(f"{conn_id}@"):
        return text
    return f"{scheme}://{conn_id}@{rest}"


# What a store has --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pattern:
    """
    A glob or a prefix of keys.

    :param root: the folder before the first wildcard
    :param parts: those of the path below it; ``**`` stands for any number of parts
    """

    root: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, path: str, *, is_prefix: bool) -> _Pattern:
        magic = MAGIC.search(path)
        if magic is None:
            return cls(path, ("**",))

        root = path[: max(path.rfind("/", 0, magic.start()), 0)]
        parts = path[len(root) + 1 :].split("/")
        if is_prefix:
            parts.append("**")
        return cls(root, tuple(parts))

    @property
    def is_shallow(self) -> bool:
        """Whether all that it names is in one folder."""
        return len(self.parts) == 1 and self.parts[0] != "**"

    @property
    def depth(self) -> int | None:
        """How many levels of folders it names, None for all."""
        return None if "**" in self.parts else len(self.parts)

    def below(self, key: str) -> str | None:
        """Return the path of a key below the root, None if it is elsewhere."""
        root = f"{self.root.rstrip('/')}/"
        return key.removeprefix(root) if key.startswith(root) else None

    def names(self, key: str) -> bool:
        """Return whether a key matches."""
        path = self.below(key)
        return path is not None and _fits(path.removesuffix("/").split("/"), self.parts)


def _fits(key: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a glob."""
    if not pattern or not key:
        return not pattern and not key
    if pattern[0] == "**":
        return len(pattern) == 1 or _fits(key, pattern[1:]) or _fits(key[1:], pattern)
    return bool(key[0]) and fnmatch.fnmatchcase(key[0], pattern[0]) and _fits(key[1:], pattern[1:])


@dataclass(frozen=True, slots=True)
class _Found:
    """
    What a source names.

    :param path: its path below the folder that was searched, None if it was named
    :param listing: the listing that has said all of it, None if it is to be looked up
    """

    key: str
    path: str | None = None
    listing: _Pattern | None = None
    info: _Info | None = None


class Store:
    """A file system, with the scheme of its URLs."""

    def __init__(self, fs: Any, scheme: str) -> None:
        # By name, because importing all of them to compare would take seconds.
        kinds = {kind.__module__.partition(".")[0] for kind in type(fs).__mro__}
        self.fs = fs
        self.scheme = scheme
        # Whether it is that of S3, Google Cloud Storage or Azure: what others' asynchronous methods
        # take differs.
        self.is_cloud = not kinds.isdisjoint(("s3fs", "gcsfs", "adlfs"))
        self.is_s3 = "s3fs" in kinds
        self._free = asyncio.Semaphore(_AT_ONCE)

        fs.invalidate_cache()  # a listing cached by an earlier task may be out of date
        is_connected = not self.is_s3 or fs._s3 is not None
        if not is_connected:  # as many as never have to be waited for
            fs.config_kwargs.setdefault("max_pool_connections", 2 * _AT_ONCE)

    def find(self, path: str, *, is_prefix: bool) -> list[_Found]:
        """Return what is below a prefix, or what a glob names, by key."""
        listed = _Pattern.parse(path, is_prefix=is_prefix)
        infos = self._list(listed)
        # What was listed may be much, and all that is needed of it was taken.
        self.fs.invalidate_cache()

        if path in infos and not is_prefix:  # what looks like a pattern may be a key
            return [self._found(path, None, listed, infos[path])]

        pattern = listed
        if is_prefix and any(key.startswith(f"{path}/") for key in infos):  # and so may a prefix be
            pattern = _Pattern(path, ("**",))

        found = []
        for key in sorted(infos):
            info = infos.pop(key)
            # An empty object whose key ends in a slash is written to show a folder.
            shows_folder = key.endswith("/") and info.get("size") == 0
            if pattern.names(key) and not shows_folder:
                found.append(self._found(key, pattern.below(key), listed, info))
        return found

    def _found(self, key: str, path: str | None, listing: _Pattern, info: _Info) -> _Found:
        # A cloud store's listing says all; that of another may name a link, or round a time.
        return _Found(key, path, listing, info) if self.is_cloud else _Found(key, path)

    def _list(self, pattern: _Pattern, prefix: str = "") -> dict[str, _Info]:
        """
        List what a pattern may name, by key.

        :param prefix: what the paths below its root begin with
        """
        # Cloud stores list any depth at once.
        if not self.is_cloud or (pattern.is_shallow and not prefix):
            return dict(_below(self.fs, pattern.root, pattern.depth))
        options = {"prefix": prefix} if prefix else {}
        found = in_time(self.fs.find, pattern.root, detail=True, **options)
        return cast("dict[str, _Info]", found)

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
        Look at objects again, at each as it was found.

        :raises FileUnavailableError: if one is no longer as it was found
        """
        self.fs.invalidate_cache()
        looks = {file.key: self.look_up(file.key) for file in files if file.listing is None}
        listings = {
            listing: self._listed_again(listing, files)
            for listing in {file.listing for file in files}
            if listing is not None
        }
        for file in files:
            try:
                info = listings[file.listing][file.key] if file.listing else looks[file.key]()
            except KeyError:
                raise changed(file, "was deleted") from None
            except Exception as error:  # object stores raise all kinds of exceptions
                why = reason(error, file.location)
                raise changed(file, f"could not be looked up ({why})") from None
            if (info.get("size"), *_version(info)) != file.fingerprint():
                raise changed(file, "changed")

    def _listed_again(self, listing: _Pattern, files: Sequence[_StoredFile]) -> dict[str, _Info]:
        """List files of a listing again, without those before and after them."""
        paths = [listing.below(file.key) or "" for file in files if file.listing == listing]
        return self._list(listing, prefix=os.path.commonprefix(paths))  # noqa: RUF071 - of keys


def _below(fs: Any, folder: str, depth: int | None) -> Iterator[tuple[str, _Info]]:
    """Yield the files below a folder: fsspec's own walk leaves out what it cannot list."""
    for info in in_time(fs.ls, folder, detail=True):
        path = info["name"].rstrip("/")
        if info["type"] != "directory":
            yield info["name"], info
        elif depth != 1 and path != folder.rstrip("/"):
            yield from _below(fs, path, depth and depth - 1)


def _version(info: _Info) -> tuple[str, str]:
    """Return the name of the field that tells the version of an object, and its value."""
    for field in _VERSIONS:
        if info.get(field):
            return field, str(info[field])
    return "", ""


def _unsettled(info: _Info) -> float:
    """Return the seconds until a change shows, where only a time tells the version of an object."""
    field, _ = _version(info)
    changed_at = info.get(field)
    if isinstance(changed_at, datetime):
        changed_at = changed_at.timestamp()
    if not isinstance(changed_at, int | float):
        return 0.0

    age = time.time() - changed_at
    is_recent = -1 < age < _SETTLED
    return _SETTLED - age if is_recent else 0.0


def _settled(store: Store, key: str, info: _Info) -> _Info:
    """
    Return what is said of an object once a later change would show in it.

    :raises TimeoutError: if it is written to all the time
    """
    for _ in range(_WAITS):
        unsettled = _unsettled(info)
        if not unsettled:
            return info
        time.sleep(unsettled)
        info = store.look_up(key)()

    if _unsettled(info):
        raise TimeoutError("it is being written to")
    return info


# Its files ---------------------------------------------------------------------------------------


def found_file(location: str, size: Any, kind: type[File] = File, **how: Any) -> File:
    """Return a file; its name is that of its location."""
    name = location.rstrip("/").rpartition("/")[2]
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{location!r} has a name that is not UTF-8: rename it."
        ) from None
    return kind(name, size, None, shown(location), location=location, **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredFile(File):
    """
    An object in a store.

    :param listing: the listing that it was found by, None if it was looked up
    """

    store: Store
    key: str
    listing: _Pattern | None


def stored_files(
    name: str, source: str | ObjectStoragePath, stores: dict[int, Store]
) -> Iterator[File]:
    """
    Return the files of a source, listed once they are asked for.

    What it names is looked up already.

    :param name: what the source is called in errors
    :param stores: those that are known so far, by file system
    """
    with _readable(name, source):
        fs, path = stored_at(name, source)
        scheme = str(source).partition("://")[0].strip().lower()
        store = stores.get(id(fs)) or stores.setdefault(id(fs), Store(fs, scheme))
        is_prefix = str(source).endswith("/")
        is_named = not is_prefix and not MAGIC.search(path)
        look = store.look_up(path) if is_named else None

    def files() -> Iterator[File]:
        with _readable(name, source):
            if look:
                yield _stored_file(store, _Found(path), look())
                return

            found = store.find(path, is_prefix=is_prefix)
            if not found:
                raise FileNotFoundError
            for one in found:
                info = store.look_up(one.key)() if one.info is None else one.info
                yield _stored_file(store, one, info)

    return files()


@contextmanager
def _readable(name: str, source: object) -> Iterator[None]:
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


def _stored_file(store: Store, found: _Found, info: _Info) -> File:
    """
    Return a file of what was listed or looked up.

    :raises InvalidRequestError: if it is no file, or has no size
    :raises TimeoutError: if it is written to all the time
    """
    if found.listing is None:
        info = _settled(store, found.key, info)

    size = info.get("size")
    fingerprint = (size, *_version(info))
    file = found_file(
        f"{store.scheme}://{found.key}",
        size,
        _StoredFile,
        open=functools.partial(store.fs.open, found.key, "rb"),
        fingerprint=lambda: fingerprint,
        read_ahead=_Reading,
        path=found.path,
        store=store,
        key=found.key,
        listing=found.listing,
    )
    if info["type"] == "directory":
        advice = "to upload everything below it, pass its URL as text that ends with /"
        raise InvalidRequestError(f"{file.source} is a directory: {advice}.")

    # Google Cloud Storage lists the size of what it has, and returns it decompressed.
    is_decompressed = info.get("contentEncoding") == "gzip"
    if info["type"] != "file" or size is None or is_decompressed:
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
        """
        Return the content of the next file.

        After that of the last, look at all of them again.
        """
        yield from self._content(cast("_StoredFile", file))
        self._left -= 1
        if self._left:
            return
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
            return

        for _ in blocks:
            _, block = self._ahead[0]
            content = block.result(_TIMEOUT)
            self._ahead.popleft()
            self._fetch()
            for start in range(0, len(content), _PIECE):
                yield content[start : start + _PIECE]

    def _fetch(self) -> None:
        """Begin to fetch what there is room for."""
        while self._has_room():
            file, start = next(self._waiting, (None, 0))
            if file is None:
                return
            fs = file.store.fs
            end = min(start + _BLOCK, file.size)
            # With both ends: of all of an object, s3fs would request the size first.
            content = fs._cat_file(file.key, start=start, end=end)
            block = asyncio.run_coroutine_threadsafe(content, fs.loop)
            self._ahead.append((end - start, block))

    def _has_room(self) -> bool:
        size = sum(size for size, _ in self._ahead)
        return len(self._ahead) < _AT_ONCE and size + _BLOCK <= _AHEAD


def _blocks(file: _StoredFile) -> range:
    """Return where the blocks of an object begin; none if it is not read ahead."""
    is_streamed = file.store.is_s3 and file.size > _BLOCK
    if is_streamed or not file.store.is_cloud:
        return range(0)
    return range(0, file.size, _BLOCK)


def _streamed(file: _StoredFile) -> Iterator[bytes]:
    """Read an object of S3 by one request, one piece ahead."""
    fs = file.store.fs
    opening = asyncio.run_coroutine_threadsafe(fs.open_async(file.key, "rb"), fs.loop)
    stream = opening.result(_TIMEOUT)
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
    while len(piece) < _PIECE:
        more = await stream.read(_PIECE - len(piece))
        if not more:
            break
        piece += more
    return bytes(piece)


def pieces(opened: Callable[[], Any]) -> Iterator[bytes]:
    """Read a file of any other store."""
    stream = in_time(opened)
    try:
        while piece := in_time(read_exactly, stream, _PIECE):
            yield piece
    finally:
        _begun(stream.close)


# What is written ---------------------------------------------------------------------------------


def bucket_of(key: str) -> str:
    """Return the bucket of a key; empty for the path of a file system, local or of a server."""
    return key.partition("/")[0]


def check_writable(fs: Any, key: str) -> None:
    """
    Write and remove an empty file beside a file that will be written.

    :raises Exception: of any kind, if it cannot be written
    """
    if not bucket_of(key):
        if in_time(fs.isdir, key):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _is_local(fs):
            _check_replaceable(Path(key))

    # A right to write may end at how the name begins.
    probe = f"{key}.probe-{secrets.token_hex(8)}"
    in_time(fs.pipe_file, probe, b"")
    with contextlib.suppress(Exception):  # who may write need not be allowed to remove
        in_time(fs.rm_file, probe)


def write_whole(fs: Any, key: str, path: str) -> None:
    """
    Write a local file to a store; until it is there as a whole, an earlier one stays.

    :param path: of the local file
    :raises Exception: of any kind, if it cannot be written
    """
    # A bucket shows an object once it is whole, and not every store can discard a part. A file
    # grows.
    written = key if bucket_of(key) else _beside(key)
    seconds = _TIMEOUT + Path(path).stat().st_size / _SLOWEST
    try:
        _result(_begun(fs.put_file, path, written), seconds)
        if _is_local(fs) and Path(key).exists():
            shutil.copymode(key, written)
        if written != key:
            in_time(fs.mv, written, key)
    except BaseException:
        if written != key:
            with contextlib.suppress(Exception):
                in_time(fs.rm_file, written)
        raise


def _beside(key: str) -> str:
    folder, separator, _ = key.rpartition("/")
    return f"{folder}{separator}.output-{secrets.token_hex(8)}"


def _is_local(fs: Any) -> bool:
    return "file" in fs.protocol


def _check_replaceable(path: Path) -> None:
    """Raise a PermissionError if a file is another user's, in a sticky folder such as ``/tmp``."""
    try:
        owner = path.stat().st_uid
    except FileNotFoundError:
        return

    folder = path.parent.stat()
    is_sticky = bool(folder.st_mode & stat.S_ISVTX)
    if is_sticky and os.geteuid() not in (0, owner, folder.st_uid):
        raise PermissionError(errno.EPERM, "it is another user's, in a folder with the sticky bit")
