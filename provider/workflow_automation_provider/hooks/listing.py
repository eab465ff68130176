"""
Find the files that a glob or a prefix names, on this machine or in a store.

``glob`` and fsspec's ``glob``, ``find`` and ``walk`` leave out what they cannot list, so that files would be missing without
an error. They also lose an object whose key is the name of a folder as well, and follow loops of symbolic links.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

_RECURSIVE = "**"
_MAGIC = re.compile(r"[*?[]")

_Item = TypeVar("_Item")
_States = frozenset[int]


class ListingError(Exception):
    """
    A folder that cannot be listed, or a name in it that cannot be looked up.

    :param path: as its file system names it
    :param error: of its file system
    """

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(path, error)
        self.path = path
        self.error = error


class Listed(NamedTuple, Generic[_Item]):
    """What a pattern matches."""

    files: dict[str, _Item]
    """What a store says of each file, by path; None of a local one."""
    folders: list[str]
    """Paths."""


class Pattern:
    """
    What names below a folder match.

    :param root: the folder
    :param parts: a name each, with ``*``, ``?`` or ``[…]``, or ``**`` for any number of folders
    :param hidden: whether wildcards match names that begin with a dot
    """

    def __init__(self, root: str, parts: Sequence[str], *, hidden: bool) -> None:
        self.root = root.rstrip("/") or root[:1]
        self._parts = parts
        self._matchers = [_matcher(part, hidden=hidden) for part in self._parts]
        self.end = len(self._parts)
        self.start = self._with_empty({0})

    @classmethod
    def of_glob(cls, text: str, *, hidden: bool) -> Pattern:
        """Split a glob. Its root is all before the first part with a wildcard."""
        magic = _MAGIC.search(text)
        end = text.rfind("/", 0, magic.start() if magic else None) + 1
        return cls(text[:end], [part for part in text[end:].split("/") if part], hidden=hidden)

    @classmethod
    def of_prefix(cls, folder: str) -> Pattern:
        """Match everything below a folder."""
        return cls(folder, [_RECURSIVE], hidden=True)

    @property
    def is_recursive(self) -> bool:
        """Whether it has a part ``**``."""
        return _RECURSIVE in self._parts

    def step(self, states: Iterable[int], name: str) -> _States:
        """
        Return the states after another part of a path.

        :param states: numbers of parts that the name may match
        :return: numbers of parts that the next name may match; :attr:`end` if the path may end here
        """
        reached = set()
        for state in states:
            if state < self.end and self._matchers[state](name):
                is_recursive = self._parts[state] == _RECURSIVE
                reached |= {state} if is_recursive else {state + 1}
                if is_recursive and state == self.end - 1:  # at the end, it matches the name of a file
                    reached.add(self.end)
        return self._with_empty(reached)

    def names(self, states: Iterable[int]) -> set[str] | None:
        """Return all names that can match, None if that takes a listing."""
        parts = {self._parts[state] for state in states if state < self.end}
        return None if any(map(_MAGIC.search, parts)) else parts

    def _with_empty(self, states: set[int]) -> _States:
        for state in sorted(states):
            while state < self.end - 1 and self._parts[state] == _RECURSIVE:  # it also matches no folder
                state += 1
                states.add(state)
        return frozenset(states)


def _matcher(part: str, *, hidden: bool) -> Any:
    if not _MAGIC.search(part):
        return part.__eq__
    match = re.compile(fnmatch.translate(part)).match
    if part == _RECURSIVE and hidden:
        return match
    if hidden or part.startswith("."):
        return lambda name: name and match(name)  # a key of a store may have nothing between two slashes
    return lambda name: not name.startswith(".") and match(name)


def _walk(tree: _LocalTree | _StoredTree, pattern: Pattern, real_root: str) -> Listed[Any]:
    listed: Listed[Any] = Listed({}, [])
    done: dict[str, _States] = {}
    folders = deque([(pattern.root, real_root, pattern.start)])
    # After all others, so that what can be reached without links is named without them.
    links: deque[tuple[str, str, _States]] = deque()
    while folders or links:
        folder, place, states = (folders or links).popleft()
        before = done.get(place, frozenset())
        states -= before
        if not states:
            continue  # a loop, or another link to it
        done[place] = before | states
        for entry in _entries(tree, folder, pattern, states):
            reached = pattern.step(states, entry.name)
            # What it matched in an earlier visit, by another name of the folder, is not found again.
            if pattern.end in reached and not (before and pattern.end in pattern.step(before, entry.name)):
                if entry.is_file:
                    listed.files[entry.path] = entry.item
                if entry.is_folder:
                    listed.folders.append(entry.path)
            further = reached - {pattern.end}
            if further and entry.is_folder:
                queue = links if entry.is_link else folders
                queue.append((entry.path, entry.place(place), further))
    return listed


def _entries(
    tree: _LocalTree | _StoredTree, folder: str, pattern: Pattern, states: _States
) -> Iterator[_LocalEntry | _StoredEntry]:
    names = pattern.names(states)
    try:
        if names is None:
            yield from tree.entries(folder)
        else:
            for name in names:
                is_last = pattern.end in pattern.step(states, name)
                yield tree.entry(folder, name, is_last=is_last)
    except ListingError:
        raise
    except Exception as error:  # object stores raise all kinds of exceptions
        if not is_missing(error):
            raise ListingError(folder, error) from None


def is_missing(error: BaseException) -> bool:
    """Return whether an error says that there is nothing at a path."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None:
        # A store may raise it from any error, such as that of a service that is down. A plain OSError is pyarrow's.
        status = getattr(cause, "status", None)
        is_other = isinstance(cause, OSError) and type(cause) not in (OSError, FileNotFoundError)
        return status in (404, 410) if isinstance(status, int) else not is_other
    # A link to itself leads to nothing.
    return (
        isinstance(error, FileNotFoundError | NotADirectoryError)
        or getattr(error, "errno", None) == errno.ELOOP
    )


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and not folder.endswith("/") else f"{folder}{name}"


# Local files ------------------------------------------------------------------------------------------


class _LocalEntry:
    """A name in a folder, which may or may not be there."""

    item: Any = None

    def __init__(
        self,
        folder: str,
        name: str,
        *,
        is_link: bool,
        is_listed: bool = False,
        is_folder: bool | None = None,
    ) -> None:
        self.name = name
        self.path = _join(folder, name)
        self.is_link = is_link
        self._is_listed = is_listed
        self._is_folder = is_folder

    @property
    def is_folder(self) -> bool:
        if self._is_folder is None:
            mode = self._mode(os.stat)
            self._is_folder = mode is not None and stat.S_ISDIR(mode)
        return self._is_folder

    @property
    def is_file(self) -> bool:
        return not self.is_folder and (self._is_listed or self._mode(os.lstat) is not None)

    def _mode(self, look: Callable[[str], os.stat_result]) -> int | None:
        try:
            return look(self.path).st_mode
        except OSError as error:
            if is_missing(error):
                return None
            raise ListingError(self.path, error) from None

    def place(self, parent: str) -> str:
        """Return the path without links."""
        return os.path.realpath(self.path) if self.is_link else _join(parent, self.name)


class _LocalTree:
    def entries(self, folder: str) -> Iterator[_LocalEntry]:
        with os.scandir(folder or ".") as entries:
            for entry in entries:
                is_link = entry.is_symlink()
                # Of a link, its target must be looked up, but only if its name matches.
                is_folder = None if is_link else entry.is_dir(follow_symlinks=False)
                yield _LocalEntry(folder, entry.name, is_link=is_link, is_listed=True, is_folder=is_folder)

    def entry(self, folder: str, name: str, *, is_last: bool) -> _LocalEntry:
        is_link = name in (".", "..") or os.path.islink(_join(folder, name))  # noqa: PTH114 - likewise
        return _LocalEntry(folder, name, is_link=is_link)


def list_local(pattern: Pattern) -> Listed[None]:
    """
    Return what a pattern matches on this machine, without names that only other links lead to.

    :raises ListingError: if a folder cannot be listed
    """
    return _walk(_LocalTree(), pattern, os.path.realpath(pattern.root or "."))


# Stores -----------------------------------------------------------------------------------------------


class _StoredEntry:
    """Likewise; a file and a folder may have the same name."""

    is_link = False
    item: Any

    def __init__(self, path: str, info: Mapping[str, Any]) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self.item = info
        self.is_folder = info["type"] == "directory"
        self.is_file = info["type"] not in ("directory", "missing")

    def place(self, _: str) -> str:
        return self.path


class _StoredTree:
    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def entries(self, folder: str) -> Iterator[_StoredEntry]:
        for info in self._fs.ls(folder, detail=True):
            path = str(info["name"]).rstrip("/")
            # The folder itself is listed where it has a marker, or if it is a file.
            if path != folder.rstrip("/"):
                yield _StoredEntry(path, info)

    def entry(self, folder: str, name: str, *, is_last: bool) -> _StoredEntry:
        path = _join(folder, name)
        if not is_last:
            return _StoredEntry(path, {"type": "directory"})  # as will be seen when it is listed
        try:
            return _StoredEntry(path, self._fs.info(path))
        except Exception as error:
            if not is_missing(error):
                raise ListingError(path, error) from None
        return _StoredEntry(path, {"type": "missing"})


def list_stored(fs: Any, pattern: Pattern, *, is_flat: bool) -> Listed[Mapping[str, Any]]:
    """
    Return what a pattern matches in a store.

    Empty objects whose key ends in ``/`` are left out: they are written to show a folder.

    :param fs: the file system
    :param is_flat: whether it has keys instead of folders, so that all keys below a folder can be listed at once
    :raises ListingError: if a folder cannot be listed
    """
    if not (is_flat and pattern.is_recursive):
        return _walk(_StoredTree(fs), pattern, pattern.root)
    root = pattern.root.rstrip("/")
    try:
        infos: Mapping[str, Mapping[str, Any]] = fs.find(root, detail=True)
    except Exception as error:  # object stores raise all kinds of exceptions
        if is_missing(error):
            return Listed({}, [])
        raise ListingError(root, error) from None
    files = {
        key: info
        for key, info in infos.items()
        if key.startswith(f"{root}/")
        and not (key.endswith("/") and info.get("size") == 0)
        and _matches(pattern, key[len(root) + 1 :])
    }
    return Listed(files, [])


def _matches(pattern: Pattern, key: str) -> bool:
    states: _States = functools.reduce(pattern.step, key.removesuffix("/").split("/"), pattern.start)
    return pattern.end in states
