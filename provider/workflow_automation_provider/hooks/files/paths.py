"""The names of files: the last part of a path, and what a glob names, here and in a store."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.client.rendered_values import check_path
from workflow_automation_provider.exceptions import InvalidRequestError

_WILDCARD = re.compile(r"[*?[]")

Rest = tuple[str, ...]
"""The parts at the end of a glob that are still to be matched; empty once all have matched."""


def has_wildcard(path: str) -> bool:
    """Return whether a path may be a glob."""
    return _WILDCARD.search(path) is not None


def local_path(name: str, source: object) -> str | None:
    """
    Return the path of a file or glob on this machine, None for the URL of a store.

    :param name: what the source is called in errors
    :param source: a path or a URL
    :raises InvalidRequestError: if it is the URL of a file that has a host, or its
        path is meant for another system
    """
    url = str(source)
    scheme, is_url, path = url.partition("://")
    if not is_url:
        return url
    if scheme.strip().lower() not in ("file", "local"):
        return None

    # That of an object storage path is without its connection.
    path = getattr(source, "path", path)
    if not path.startswith("/"):
        raise InvalidRequestError(
            f"{name} is {shown(url)}, a URL with a host: expected {scheme}:/// and the path.",
            next_step="Or give the path alone, without a scheme.",
        )

    check_path(name, path)
    return path


def name_of(location: str) -> str:
    """
    Return the last part of a path or URL.

    :raises InvalidRequestError: if it is not UTF-8, and so cannot be sent
    """
    name = location.rstrip("/").rpartition("/")[2]
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{location!r} has a name that is not UTF-8: rename it."
        ) from None

    return name


@dataclass(frozen=True, slots=True)
class Glob:
    """
    A glob, or a prefix.

    It is matched name by name: with :meth:`after` while folders are searched, with :meth:`matches`
    where a whole path is known.

    :param root: the path before the name with the first wildcard, with the slash at its end
    :param parts: the names below it; ``**`` stands for any number of folders, at the end for
        everything in them
    :param matches_hidden: whether a wildcard matches the dot at the beginning of a name
    """

    root: str
    parts: Rest
    matches_hidden: bool

    @classmethod
    def of_path(cls, text: str) -> Glob:
        """Parse a glob of local files."""
        root, names = _split(text)
        parts = [name for name in names if name]
        if text.endswith("/"):
            parts.append("**")
        return cls(root, tuple(parts), matches_hidden=False)

    @classmethod
    def of_keys(cls, text: str) -> Glob:
        """Parse a glob of the keys of a store, in which each slash counts."""
        root, names = _split(text)
        return cls(root, tuple(names), matches_hidden=True)

    @classmethod
    def of_prefix(cls, key: str) -> Glob:
        """Return the glob of all keys below one, in which nothing is a wildcard."""
        return cls(f"{key.rstrip('/')}/", ("**",), matches_hidden=True)

    @property
    def folder(self) -> str:
        """The folder to list: the root without slashes at its end, which stores leave out."""
        return self.root.rstrip("/") or self.root

    @property
    def depth(self) -> float:
        """How many levels of folders to list, infinite for all."""
        return math.inf if "**" in self.parts else len(self.parts)

    def below_root(self, path: str) -> str | None:
        """Return the path below the root, None for one that is elsewhere."""
        return path.removeprefix(self.root) if path.startswith(self.root) else None

    def start(self) -> frozenset[Rest]:
        """Return what is to be matched below the root."""
        return frozenset(_alternatives(self.parts))

    def after(self, rests: Iterable[Rest], name: str, *, is_link: bool = False) -> frozenset[Rest]:
        """
        Return what is still to be matched after a name.

        :param rests: what was to be matched before the name: one of these alternatives
        :param is_link: whether the name is that of a link, which ``**`` does not go through
        """
        left: set[Rest] = set()
        for rest in rests:
            if rest and self._matches_name(rest[0], name):
                left.update(_after_first(rest, is_link=is_link))

        return frozenset(left)

    def matches(self, path: str) -> bool:
        """Return whether a path below the root, without it, matches."""
        rests = self.start()
        for name in path.split("/"):
            rests = self.after(rests, name)
        return () in rests

    def _matches_name(self, part: str, name: str) -> bool:
        is_hidden = name.startswith(".") and not part.startswith(".")
        if is_hidden and not self.matches_hidden:
            return False
        if part == "**":
            return True
        return name != "" and fnmatch.fnmatchcase(name, part)


def _split(text: str) -> tuple[str, list[str]]:
    """Return the folder before the first wildcard, with its slash, and the names after it."""
    wildcard = _WILDCARD.search(text)
    end = len(text) if wildcard is None else wildcard.start()
    root = text[: text.rfind("/", 0, end) + 1]
    return root, text[len(root) :].split("/")


def _after_first(rest: Rest, *, is_link: bool) -> Iterator[Rest]:
    """Yield what is still to be matched after the first part has matched a name."""
    if rest[0] != "**":
        yield from _alternatives(rest[1:])
        return

    if len(rest) == 1:
        yield ()
    if not is_link:
        yield from _alternatives(rest)


def _alternatives(rest: Rest) -> Iterator[Rest]:
    """
    Yield what is to be matched: all of it, and what is left without each ``**`` at its beginning.

    Such a part may stand for no folder at all.
    """
    yield rest
    while len(rest) > 1 and rest[0] == "**":
        rest = rest[1:]
        yield rest
