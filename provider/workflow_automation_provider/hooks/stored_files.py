"""
Objects of a store: how they are read, those of S3, Google Cloud Storage and Azure ahead of their turn.

An object that was replaced since it was listed is noticed by its size as it is read, and by its version, which is looked
up once more before the last byte of the request is sent. Names with an underscore are fsspec's asynchronous methods.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from airflow.sdk import ObjectStoragePath

from workflow_automation_provider.client.files import ChangedError, File, ReadAhead, changed, read_exactly
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.client.transport import StoppedError
from workflow_automation_provider.exceptions import InvalidRequestError

# What identifies the content of an object, as fsspec's stores name it; where a store has none of these, the times of
# its last write and what identifies a file. ("created" is that of an object that is never changed, only replaced.)
_OF_CONTENT = (
    "generation",
    "ETag",
    "etag",
    "VersionId",
    "version_id",
    "md5Hash",
    "content_md5",
    "sha",
    "hex",
)
_OF_FILE = (
    "LastModified",
    "last_modified",
    "modificationTime",
    "modify",
    "mtime",
    "updated",
    "created",
    "ino",
)

# Bytes that are read and asked for at once: multiples of 3, so that base64 of each piece joins without padding.
_PIECE = 1023 * 1024
_BLOCK = 4 * _PIECE

# Bytes and requests that may be on their way. More requests would only wait for the event loop.
_AHEAD = 3 * _BLOCK
_AT_ONCE = 32

# As many as never have to be waited for; s3fs has 10.
_CONNECTIONS = 64

# Seconds after which a request is given up, and after which it is noticed that the task was ended.
_TIMEOUT = 60.0
_POLL = 0.1

# Keys in a page of a listing.
_PAGE = 1000

_Value = TypeVar("_Value")
_Info = Mapping[str, Any]


def stored_at(name: str, url: str) -> tuple[Any, str]:
    """
    Return the file system of a URL, and what is at the URL as its file system names it.

    :param name: what the URL is called in errors
    :raises InvalidRequestError: if its bucket or connection has a character that no URL has
    """
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if not host.isprintable():
        raise InvalidRequestError(
            f"{name}: {without_credentials(url)!r} has a control character before its path."
        )
    # Without the key: of a whole URL, an object storage path drops a "?" or "#" at the end, and tabs anywhere.
    root = ObjectStoragePath(f"{scheme}://{host}/")
    return root.fs, f"{root.path.rstrip('/')}/{key.rstrip('/')}" if key else root.path


class Store:
    """
    A file system, as one source of an upload names it.

    :param scheme: of its URLs
    """

    def __init__(self, fs: Any, scheme: str) -> None:
        # By name, because importing all of them to compare would take seconds.
        kinds = {kind.__module__.partition(".")[0] for kind in type(fs).__mro__}
        self.fs = fs
        self.scheme = scheme
        self.is_cloud = not kinds.isdisjoint(("s3fs", "gcsfs", "adlfs")) and not fs.asynchronous
        """Whether it is that of S3, Google Cloud Storage or Azure: what others' asynchronous methods take differs."""
        self.is_s3 = self.is_cloud and "s3fs" in kinds
        self._list: Callable[[], Coroutine[Any, Any, dict[str, _Info]]] | None = None
        self._count = 0
        fs.invalidate_cache()  # a listing cached by an earlier task may be out of date
        if self.is_s3 and fs._s3 is None:  # not connected yet
            fs.config_kwargs.setdefault("max_pool_connections", _CONNECTIONS)

    def listed(self, root: str, *, is_flat: bool) -> dict[str, _Info]:
        """
        List objects of a cloud store, by key.

        :param is_flat: whether to list all below the root, not only what has no further slash
        """

        async def list_all() -> dict[str, _Info]:
            if not is_flat:
                infos = await self.fs._ls(root, detail=True)
                return {info["name"]: info for info in infos if info["type"] != "directory"}
            found: dict[str, _Info] = await self.fs._find(root, detail=True)
            return found

        self._list = list_all
        found = _result(self.begin(list_all()))
        self._count = len(found)
        return found

    def listed_again(self, keys: Sequence[str], stopped: Callable[[], bool]) -> list[Any]:
        """Request what a cloud store says of objects now; return errors, do not raise them."""
        # A page of a listing says as much as so many lookups.
        if self._list is None or len(keys) <= self._count // _PAGE:
            return self.look_up(keys, stopped)
        found = _result(self.begin(self._list()), stopped)
        return [found.get(key) or FileNotFoundError(key) for key in keys]

    def look_up(self, keys: Sequence[str], stopped: Callable[[], bool] = lambda: False) -> list[Any]:
        """Request what a cloud store says of several objects, together; return errors, do not raise them."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def look(key: str) -> _Info:
            async with at_once, asyncio.timeout(_TIMEOUT):
                info: _Info = await self.fs._info(key)
                return info

        async def look_at_all() -> list[Any]:
            return await asyncio.gather(*map(look, keys), return_exceptions=True)

        return _result(self.begin(look_at_all()), stopped)

    def begin(self, what: Coroutine[Any, Any, _Value]) -> Future[_Value]:
        """Begin something in the event loop of a cloud store."""
        return asyncio.run_coroutine_threadsafe(what, self.fs.loop)


def _result(future: Future[_Value], stopped: Callable[[], bool] = lambda: False) -> _Value:
    """Wait for what was begun, until the task is ended."""
    try:
        while True:
            try:
                # In short waits: a signal handler may end the task meanwhile, and must not set an event.
                return future.result(_POLL)
            except TimeoutError:
                if future.done():
                    return future.result()
            if stopped():
                raise StoppedError
    finally:
        future.cancel()


class StoredFile(File):
    """An object in a store. Little is kept of each, for there may be very many."""

    __slots__ = ("_version", "key", "store")

    key: str
    store: Store
    _version: tuple[str, ...]

    def __init__(self, store: Store, key: str, info: _Info, content_type: str) -> None:
        of_content = [name for name in _OF_CONTENT if info.get(name)][:1]
        names = of_content or [name for name in _OF_FILE if info.get(name)]
        keep = functools.partial(object.__setattr__, self)  # the class is frozen
        keep("store", store)
        keep("key", key)
        keep("size", info["size"])
        keep("content_type", content_type)
        keep("_version", tuple(text for name in names for text in (name, _text(info[name]))))

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.key.rstrip("/").rpartition("/")[2]

    @property
    def source(self) -> str:
        """Its URL, in quotes."""
        return repr(without_credentials(self.location))

    @property
    def location(self) -> str:
        """Its URL."""
        return f"{self.store.scheme}://{self.key}"

    def fingerprint(self) -> object:
        """Return its size and its version."""
        return (self.size, *self._version)

    @property
    def read_ahead(self) -> ReadAhead:
        """What reads it and others ahead of their turn."""
        return _Reading

    def compare(self, info: _Info) -> None:
        """
        Compare it with what its store says now.

        :raises ChangedError: if it is another
        """
        if info.get("size") not in (None, self.size):
            raise ChangedError(f"it has {info['size']} bytes instead of {self.size}")
        # A lookup may say other things than a listing.
        listed = zip(self._version[::2], self._version[1::2], strict=True)
        if any(info.get(name) and _text(info[name]) != value for name, value in listed):
            raise ChangedError("it was overwritten")


def _text(value: object) -> str:
    # A file system may say the time as a number in a listing, and not in a lookup.
    return str(value.timestamp() if isinstance(value, datetime) else value)


class _Block(NamedTuple):
    """Some bytes of an object, which are fetched, or read when their turn has come."""

    file: StoredFile
    start: int
    end: int
    fetched: Future[bytes] | None


class _Reading:
    """The objects of a request, see :class:`~workflow_automation_provider.client.files.Reading`."""

    def __init__(self, files: Iterable[File], stopped: Callable[[], bool]) -> None:
        stored = (file for file in files if isinstance(file, StoredFile))
        self._waiting: Iterator[_Block] = (block for file in stored for block in _blocks(file))
        self._stopped = stopped
        self._blocks: deque[_Block] = deque()
        self._ahead = 0
        self._read: list[StoredFile] = []

    def chunks(self, file: File) -> Iterator[bytes]:
        """Return the content of the next file; before the end of the last, look all of them up again."""
        last = b""
        for chunk in self._content(file):
            if last:
                yield last
            last = chunk
        if not self._blocks:
            self._check()
        if last:
            yield last

    def close(self) -> None:
        """Cancel what is being fetched."""
        self._waiting = iter(())
        for block in self._blocks:
            if block.fetched is not None:
                block.fetched.cancel()
        self._blocks.clear()

    def _content(self, file: File) -> Iterator[bytes]:
        end = -1
        while end < file.size:
            self._fetch()
            stored, start, end, fetched = self._blocks.popleft()
            if stored is not file:
                raise AssertionError("Files are read in the order of the request")
            if fetched is not None:
                content = _result(fetched, self._stopped)
                self._ahead -= end - start
                self._fetch()
                yield from (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
            elif stored.store.is_cloud and end:
                yield from self._streamed(stored)
            elif end:
                yield from self._opened(stored)
        self._read.append(stored)
        self._fetch()

    def _fetch(self) -> None:
        """Begin to fetch what there is room for."""
        while self._ahead + _BLOCK <= _AHEAD and len(self._blocks) < _AT_ONCE:
            block = next(self._waiting, None)
            if block is None:
                return
            if block.fetched is not None:
                self._ahead += block.end - block.start
            self._blocks.append(block)

    def _streamed(self, file: StoredFile) -> Iterator[bytes]:
        """Read an object of S3 by one request, one piece ahead."""
        store = file.store
        stream = _result(store.begin(store.fs.open_async(file.key, "rb")), self._stopped)
        ahead = store.begin(_piece(stream))
        try:
            while piece := _result(ahead, self._stopped):
                ahead = store.begin(_piece(stream))
                yield piece
        finally:
            ahead.cancel()
            if stream.r is not None:  # or its connection would be kept
                store.fs.loop.call_soon_threadsafe(stream.r.close)

    def _opened(self, file: StoredFile) -> Iterator[bytes]:
        """Read an object of any other store."""
        left = file.size
        with file.store.fs.open(file.key, "rb") as stream:
            while left and (piece := read_exactly(stream, min(_PIECE, left))):
                left -= len(piece)
                yield piece
                if self._stopped():
                    raise StoppedError

    def _check(self) -> None:
        """Raise an error that names an object which is no longer as it was listed."""
        by_store: dict[Store, list[StoredFile]] = {}
        for file in self._read:
            by_store.setdefault(file.store, []).append(file)
        self._read = []
        for store, files in by_store.items():
            for file, info in zip(files, self._now(store, files), strict=True):
                try:
                    if isinstance(info, BaseException):
                        raise info
                    file.compare(info)
                except FileNotFoundError:
                    raise changed(file, "was deleted") from None
                except ChangedError as error:
                    raise changed(file, f"changed ({error})") from None

    def _now(self, store: Store, files: list[StoredFile]) -> Iterable[Any]:
        store.fs.invalidate_cache()
        keys = [file.key for file in files]
        return store.listed_again(keys, self._stopped) if store.is_cloud else map(store.fs.info, keys)


def _blocks(file: StoredFile) -> Iterator[_Block]:
    """Yield the blocks of an object; what is fetched is on its way then."""
    store, size = file.store, file.size
    if not store.is_cloud or size == 0 or (store.is_s3 and size > _BLOCK):
        yield _Block(file, 0, size, None)
        return
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        yield _Block(file, start, end, store.begin(_range(file, start, end)))


async def _range(file: StoredFile, start: int, end: int) -> bytes:
    # Of all of an object, s3fs would request the size first.
    async with asyncio.timeout(_TIMEOUT):
        content: bytes = await file.store.fs._cat_file(file.key, start=start, end=end)
    if len(content) != end - start:
        raise ChangedError(f"the part from byte {start} on has {len(content)} bytes instead of {end - start}")
    return content


async def _piece(stream: Any) -> bytes:
    piece = bytearray()
    async with asyncio.timeout(_TIMEOUT):
        while len(piece) < _PIECE and (more := await stream.read(_PIECE - len(piece))):
            piece += more
    return bytes(piece)
