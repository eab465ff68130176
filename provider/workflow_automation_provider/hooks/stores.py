"""
Objects in the stores of fsspec: the version that a listing identifies, and how exactly that version is read.

After an object was read, its metadata is requested again, unless the response names the version. Names with an underscore
are fsspec's asynchronous API.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

from workflow_automation_provider.client.files import ChangedError, File, ReadAhead
from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.hooks.listing import Listed, Pattern, list_stored

# Values that change whenever the content does, as fsspec's stores name them. The first that a store has is
# enough: a time beside it also changes if the same content is written again.
_OF_CONTENT = (
    "generation",
    "ETag",
    "etag",
    "VersionId",
    "version_id",
    "md5Hash",
    "content_md5",
    "Content-MD5",
    "crc32c",
    "Digest",
    "hex",
    "sha",
)

# Times of the last write ("created" is that of an object that is never changed, only replaced), and what
# identifies a file.
_OF_FILE = (
    "Last-Modified",
    "LastModified",
    "created",
    "ctime",
    "last_modified",
    "modificationTime",
    "modified",
    "modify",
    "mtime",
    "updated",
    "fileId",
    "ino",
)

# What a store that cannot stream is asked for at once.
_PART = 2 * 1024 * 1024

# What opens an object for random access reads at once.
_BLOCK = 4 * 1024 * 1024

MAX_CONCURRENCY = 16
"""Objects that are asked for at once, about as many as by the command line tools of the stores."""

READ_TIMEOUT = 60.0
"""Seconds without a byte after which a response is given up, to be taken up again where it broke off."""


class Response(NamedTuple):
    """
    The content of an object from some byte on.

    :param read: returns the next bytes, at most so many, and none at the end
    :param close: releases the connection
    :param is_of_version: whether the store said that it is of the version that was listed
    :param may_resume: whether no other content can have the same version, so that the rest can be asked for
    """

    read: Callable[[int], Awaitable[bytes]]
    close: Callable[[], object]
    is_of_version: bool
    may_resume: bool


def version_fields(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a listing that identify an object's version: names and values in turn."""
    for name in _OF_CONTENT:
        if info.get(name):
            return name, str(info[name])
    return tuple(text for name in _OF_FILE if info.get(name) for text in (name, _text(info[name])))


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def name_of(key: str) -> str:
    """Return the last part of a key; the query of a web address, which may be signed, is not part of it."""
    path = key.partition("?")[0] if key.startswith(("http://", "https://")) else key
    return path.rstrip("/").rpartition("/")[2]


class StoredFile(File):
    """An object in a store. Little is kept of each, for there may be very many."""

    __slots__ = ("_version", "_version_id", "key", "store")

    key: str
    store: Store

    def __init__(self, store: Store, key: str, info: Mapping[str, Any], content_type: str) -> None:
        # The class is frozen.
        keep = functools.partial(object.__setattr__, self)
        keep("store", store)
        keep("key", key)
        keep("size", info["size"])
        keep("content_type", content_type)
        keep("_version", version_fields(info))
        keep("_version_id", info.get("VersionId"))

    @property
    def name(self) -> str:
        """The last part of its key."""
        return name_of(self.key)

    @property
    def source(self) -> str:
        """Its URL, in quotes."""
        return repr(without_credentials(self.location))

    @property
    def location(self) -> str:
        """Its URL."""
        return str(self.store.fs.unstrip_protocol(self.key))

    def open(self) -> IO[bytes]:
        """
        Open it for random access, block by block.

        :raises ChangedError: if it is no longer the one that was listed
        """
        stream: IO[bytes] = self.store.fs.open(self.key, "rb", block_size=_BLOCK)
        # What was opened is the latest version; the content is read from the one that was listed.
        details = getattr(stream, "details", None)
        if isinstance(details, Mapping):
            try:
                compare(self, details)
            except ChangedError:
                stream.close()
                raise
        return stream

    def fingerprint(self) -> object:
        """Return its size, its version, and what its source does not show."""
        hidden = () if without_credentials(self.key) == self.key else (self.key,)
        return (self.size, *self._version, *hidden)

    @property
    def read_ahead(self) -> ReadAhead:
        """What reads it and others ahead of their turn."""
        return self.store.read_ahead

    @property
    def version(self) -> Mapping[str, str]:
        """The fields of the listing that identify its version."""
        return dict(zip(self._version[::2], self._version[1::2], strict=True))

    @property
    def version_id(self) -> str | None:
        """The version, if the store keeps several and listed it."""
        return self._version_id if self._version_id not in (None, "", "null") else None

    _version: tuple[str, ...]
    _version_id: str | None


class Store:
    """
    A file system of fsspec.

    :param read_ahead: reads its objects
    """

    overhead = 2 * _PART
    """What an object takes in memory besides its content that was read ahead, in bytes."""
    asks_again = False
    """Whether a request that the store does not respond to as it should is sent again by its client."""
    is_flat = False
    """Whether it has keys instead of folders."""

    def __init__(self, fs: Any, read_ahead: ReadAhead) -> None:
        self.fs = fs
        self.read_ahead = read_ahead

    @property
    def connections(self) -> int:
        """How many connections its client may open at once."""
        return MAX_CONCURRENCY

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of an asynchronous file system, None of any other."""
        if not getattr(self.fs, "async_impl", False) or getattr(self.fs, "asynchronous", False):
            return None
        loop: asyncio.AbstractEventLoop | None = self.fs.loop
        return loop

    def listed(self, pattern: Pattern) -> Listed[Mapping[str, Any]]:
        """
        Return what a pattern matches.

        :raises ListingError: if a folder cannot be listed
        """
        return list_stored(self.fs, pattern, is_flat=self.is_flat)

    def infos(self, paths: Sequence[str]) -> list[Mapping[str, Any] | BaseException]:
        """Request the metadata of objects of an asynchronous file system concurrently; return errors, do not raise them."""
        at_once = asyncio.Semaphore(MAX_CONCURRENCY)

        async def look(path: str) -> Mapping[str, Any]:
            async with at_once:
                info: Mapping[str, Any] = await self.fs._info(path)
                return info

        async def look_at_all() -> list[Mapping[str, Any] | BaseException]:
            return await asyncio.gather(*map(look, paths), return_exceptions=True)

        looking = asyncio.run_coroutine_threadsafe(look_at_all(), self.fs.loop)
        try:
            return looking.result()
        finally:
            looking.cancel()  # if the task was ended meanwhile

    async def respond(self, file: StoredFile, start: int) -> Response:
        """
        Ask for the content of an object.

        :param start: the first byte
        :raises ChangedError: if it is no longer the one that was listed
        """
        return in_parts(self, file, start)

    async def part(self, file: StoredFile, start: int, end: int) -> bytes:
        """
        Return a part of an object.

        :raises ChangedError: if it is no longer the one that was listed
        """
        if start == 0 and end >= file.size:
            # All of it: an object that grew is detected by its extra bytes.
            content: bytes = await self.fs._cat_file(file.key)
        else:
            content = await self.fs._cat_file(file.key, start=start, end=end)
        return content

    async def look(self, file: StoredFile) -> None:
        """
        Check that an object is still the one that was listed.

        :raises ChangedError: if it is not
        """
        self.fs.invalidate_cache(file.key)
        compare(file, await self.fs._info(file.key))


def compare(file: StoredFile, info: Mapping[str, Any]) -> None:
    """
    Compare the metadata of an object with its listing.

    :raises ChangedError: if it is another
    """
    if info.get("size") not in (None, file.size):
        raise ChangedError(f"it has {info['size']} bytes instead of {file.size}")
    # A listing may have other fields of an object than a lookup of it alone.
    if any(info.get(name) and _differ(value, _text(info[name])) for name, value in file.version.items()):
        raise ChangedError("it was overwritten")


def _differ(listed: str, current: str) -> bool:
    """Return whether two values differ by more than the notation of a time."""
    times = _time(listed), _time(current)
    if None in times:
        return times == (None, None) and listed != current
    return times[0] != times[1]


def _time(text: str) -> datetime | None:
    if text[4:5] != "-":  # a number may look like a time without separators
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def in_parts(store: Store, file: StoredFile, start: int, *, is_of_version: bool = False) -> Response:
    """Return the content of an object, read part by part: no connection is kept."""
    begun = False

    async def read(_: int) -> bytes:
        nonlocal start, begun
        end = min(start + _PART, file.size)
        if start >= end and begun:
            return b""
        begun = True
        content = await store.part(file, start, end)
        # Of a whole object, the length is checked by who reads it.
        if len(content) != end - start and (start, end) != (0, file.size):
            raise EOFError(f"the part from byte {start} on has {len(content)} bytes instead of {end - start}")
        start = end
        return content

    return Response(read, lambda: None, is_of_version=is_of_version, may_resume=bool(file.version))
