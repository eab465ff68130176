"""
List and look up the objects of a store, and notice that one was replaced since it was found.

A replaced object is noticed by its size as it is read, and by its version, which is looked up again
before the last byte of the request is sent. What a listing found is listed again, because the
clients of some stores write a version differently in a listing.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from workflow_automation_provider.client.files import File, changed, reason
from workflow_automation_provider.hooks.files.paths import Glob

AT_ONCE = 32
"""Requests to a store that may be on their way. More would only wait for the event loop."""

# What identifies the content of an object, as fsspec's stores name it: the first that one has.
_VERSIONS = (
    "generation",
    "ETag",
    "etag",
    "sha",
    # Times, which are compared where there is nothing better
    "LastModified",
    "last_modified",
    "modificationTime",
    "modify",
    "mtime",
)

Info = Mapping[str, Any]
"""What a store returns of an object."""


@dataclass(frozen=True, slots=True)
class Found:
    """
    An object that a glob or a prefix names.

    :param path: its path below the root of the glob, None if it was named itself
    :param listing: the glob whose listing has all of its information, None if it is to be looked up
    """

    key: str
    path: str | None
    listing: Glob | None
    info: Info


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile(File):
    """
    An object in a store.

    :param listing: the glob whose listing found it, None if it was looked up
    """

    store: ObjectStore
    key: str
    listing: Glob | None


class ObjectStore:
    """A file system, with the scheme of its URLs."""

    def __init__(self, fs: Any, scheme: str) -> None:
        # By name, because importing all of them to compare would take seconds.
        packages = {kind.__module__.partition(".")[0] for kind in type(fs).__mro__}
        self.fs = fs
        self.scheme = scheme
        # Whether it is that of S3, Google Cloud Storage or Azure: the asynchronous methods of
        # others take other arguments.
        self.is_cloud = not packages.isdisjoint(("s3fs", "gcsfs", "adlfs"))
        self.is_s3 = "s3fs" in packages
        self._slots = asyncio.Semaphore(AT_ONCE)

        fs.invalidate_cache()  # a listing cached by an earlier task may be out of date
        if self.is_s3 and fs._s3 is None:  # not connected yet
            # So many that no request waits for a connection.
            fs.config_kwargs.setdefault("max_pool_connections", 2 * AT_ONCE)

    def find(self, path: str) -> list[Found]:
        """Return what a glob names, by key."""
        listing = Glob.of_keys(path)
        infos = self._list(listing)
        if path in infos:  # a key may look like a glob
            return [self._found(path, None, listing, infos[path])]
        return self._matching(listing, infos)

    def find_below(self, path: str) -> list[Found]:
        """Return what is below a prefix, in which nothing is a wildcard, by key."""
        listing = Glob(f"{path.rstrip('/')}/", ("**",))
        return self._matching(listing, self._list(listing))

    def look_up(self, key: str) -> Callable[[], Info]:
        """Begin to look up an object, and return a function that waits for the result."""
        if not self.is_cloud:
            return functools.partial(self.fs.info, key)

        async def look() -> Info:
            async with self._slots:
                return cast("Info", await self.fs._info(key))

        # On the store's own loop, so that several are looked up at once.
        return asyncio.run_coroutine_threadsafe(look(), self.fs.loop).result

    def check(self, files: Sequence[StoredFile]) -> None:
        """
        Check that objects are as they were found.

        :raises FileUnavailableError: if one was deleted or replaced, or can no longer be looked up
        """
        self.fs.invalidate_cache()
        look_ups = {file.key: self.look_up(file.key) for file in files if file.listing is None}
        listings = {file.listing for file in files if file.listing is not None}
        listed = {listing: self._list_again(listing, files) for listing in listings}

        for file in files:
            try:
                if file.listing is None:
                    info = look_ups[file.key]()
                else:
                    info = listed[file.listing][file.key]
            except KeyError:
                raise changed(file, "was deleted") from None
            except Exception as error:  # object stores raise all kinds of exceptions
                why = reason(error, file.location)
                raise changed(file, f"could not be looked up ({why})") from None

            if fingerprint_of(info) != file.fingerprint():
                raise changed(file, "changed")

    def _matching(self, glob: Glob, infos: dict[str, Info]) -> list[Found]:
        """
        Return the objects of a listing that match a glob.

        :param infos: what was listed; emptied, because it may be much
        """
        found = []
        for key in sorted(infos):
            info = infos.pop(key)
            path = glob.below_root(key)
            if path is None or not glob.matches(path.removesuffix("/")):
                continue
            # An empty object whose key ends in a slash is written to show a folder.
            if key.endswith("/") and info.get("size") == 0:
                continue

            found.append(self._found(key, path, glob, info))

        return found

    def _found(self, key: str, path: str | None, listing: Glob, info: Info) -> Found:
        # Only the listing of a cloud store is as good as a look-up: that of another store may name
        # a link, or round a time.
        return Found(key, path, listing if self.is_cloud else None, info)

    def _list(self, glob: Glob, prefix: str = "") -> dict[str, Info]:
        """
        Return what a glob may name, by key.

        :param prefix: what the paths below its root begin with
        """
        # Of a root that ends in several slashes, the store would leave out the last ones.
        slashes = glob.root.removeprefix(glob.folder)[1:]
        prefix = f"{slashes}{prefix}"

        # Cloud stores list any depth at once.
        is_one_folder = glob.depth == 1 and not prefix
        if not self.is_cloud or is_one_folder:
            return dict(_list_folders(self.fs, glob.folder, glob.depth))

        options = {"prefix": prefix} if prefix else {}
        found = self.fs.find(glob.folder, detail=True, **options)
        return cast("dict[str, Info]", found)

    def _list_again(self, listing: Glob, files: Sequence[StoredFile]) -> dict[str, Info]:
        """List the files of a listing again, without those before and after them."""
        paths = [listing.below_root(file.key) or "" for file in files if file.listing == listing]
        return self._list(listing, prefix=os.path.commonprefix(paths))  # noqa: RUF071 - of keys


def fingerprint_of(info: Info) -> tuple[object, ...]:
    """Return the size of an object, and its version with the name of its field."""
    field = next((field for field in _VERSIONS if info.get(field)), "")
    return info.get("size"), field, str(info.get(field, ""))


def _list_folders(fs: Any, folder: str, depth: float) -> Iterator[tuple[str, Info]]:
    """
    Yield the files of a folder and of those below it.

    The walk of fsspec itself leaves out what it cannot list.

    :param depth: how many levels of folders
    """
    for info in fs.ls(folder, detail=True):
        path = info["name"].rstrip("/")
        if info["type"] != "directory":
            yield info["name"], info
        elif depth > 1 and path != folder.rstrip("/"):
            yield from _list_folders(fs, path, depth - 1)
