"""The paths of a batch and of its output: local or in a store, regular, and whether two mean the same file."""

from __future__ import annotations

import os
import stat

from workflow_automation_provider.client.redaction import without_credentials
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.stored_files import stored_at


def local_path(path: str) -> str | None:
    """Return the local path that a path or URL means, None for a URL of a store."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    return rest if scheme.lower() in ("file", "local") else None


def shown(path: object) -> str:
    """Return a path or URL as errors name it."""
    return repr(without_credentials(str(path)))


def check_regular(name: str, path: str) -> None:
    """
    Check that a path is not that of a pipe or a device, which cannot be read twice or replaced.

    :param name: of the argument
    :raises InvalidRequestError: if it is
    """
    local = local_path(path)
    try:
        mode = os.stat(local).st_mode if local is not None else 0  # noqa: PTH116 - as it is given
    except (OSError, ValueError):
        return  # opening it says why
    if mode and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidRequestError(f"{name} is {shown(path)}, a pipe or a device: expected a regular file.")


def is_same_file(one: str, other: str) -> bool:
    """Return whether two paths or URLs mean the same file: also through a link, another scheme or connection."""
    local, other_local = local_path(one), local_path(other)
    try:
        if local is None and other_local is None:
            return _object(one) == _object(other)
        # Compares devices and inodes, which a hard link shares.
        return local is not None and other_local is not None and os.path.samefile(local, other_local)  # noqa: PTH121
    except Exception:  # of a store as well; who opens the file says why
        return False


def _object(url: str) -> tuple[object, str]:
    fs, key = stored_at("output_path", url)
    return fs.protocol, key
