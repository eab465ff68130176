"""The names of files: the last part of a path, and what a glob names, here and in a store."""

from __future__ import annotations

import fnmatch
import math
import re
from dataclasses import dataclass

from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.client.rendered_values import check_path
from workflow_automation_provider.exceptions import InvalidRequestError

_WILDCARD = re.compile(r"[*?[]")

Parts = tuple[str, ...]
"""The names that a path or a glob consists of."""


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

    :param root: the path before the name with the first wildcard, with the slash at its end
    :param parts: the names below it; ``**`` stands for any number of folders, at the end for
        everything in them
    """

    root: str
    parts: Parts

    @classmethod
    def of_path(cls, text: str) -> Glob:
        """Parse a glob of local files."""
        root, names = _split(text)
        parts = [name for name in names if name]
        if text.endswith("/"):
            parts.append("**")
        return cls(root, tuple(parts))

    @classmethod
    def of_keys(cls, text: str) -> Glob:
        """Parse a glob of the keys of a store, in which each slash counts."""
        root, names = _split(text)
        return cls(root, tuple(names))

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

    def matches(self, key: str) -> bool:
        """Return whether a key below the root, without it, matches."""
        return _matches(tuple(key.split("/")), self.parts)


def _split(text: str) -> tuple[str, list[str]]:
    """Return the folder before the first wildcard, with its slash, and the names after it."""
    wildcard = _WILDCARD.search(text)
    end = len(text) if wildcard is None else wildcard.start()
    root = text[: text.rfind("/", 0, end) + 1]
    return root, text[len(root) :].split("/")


def _matches(names: Parts, parts: Parts) -> bool:
    """Return whether the parts of a glob match all of some names."""
    if not names or not parts:
        return not names and not parts

    part, rest = parts[0], parts[1:]
    if part != "**":
        has_first = names[0] != "" and fnmatch.fnmatchcase(names[0], part)
        return has_first and _matches(names[1:], rest)

    return not rest or any(_matches(names[start:], rest) for start in range(len(names)))
