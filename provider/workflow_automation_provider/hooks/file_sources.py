"""Resolve the files that a DAG author passes. Nothing is silently skipped."""

from __future__ import annotations

import errno
import fnmatch
import functools
import glob
import mimetypes
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from airflow.providers.common.compat.sdk import Asset, ObjectStoragePath

from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.client.files import Element, File, check_content_types
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError

__all__ = ["FileSource", "resolve"]

FileSource = str | os.PathLike[str] | ObjectStoragePath | Asset | Mapping[str, Any] | File
"""
A local path or glob; a URL, prefix or glob that ``ObjectStoragePath`` reads; an ``ObjectStoragePath``, or an
asset with such a URI; or a JSON object that is sent unchanged.
"""

# Object stores read ahead in blocks of this size, instead of their default of tens of megabytes.
_BLOCK = 4 * 1024 * 1024

# The metadata of an object that change with its content, as fsspec's stores name them.
_FINGERPRINT = (
    "size",
    # Hash or version of the content
    "Content-MD5",
    "Digest",
    "ETag",
    "VersionId",
    "content_md5",
    "crc32c",
    "etag",
    "generation",
    "hex",
    "md5Hash",
    "sha",
    "version_id",
    # Time of the last write; "created" is that of an object that is never changed, only replaced
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
    # Identity of the file
    "fileId",
    "ino",
)

# Seconds until a change to a local file is visible in its timestamps.
_SETTLED = 0.25

_UNKNOWN_TYPE = "application/octet-stream"
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


def resolve(
    files: FileSource | Iterable[FileSource], *, content_types: Mapping[str, str] | None = None
) -> list[Element]:
    """
    Return the files to upload.

    :param files: one source or several; a glob may use ``*``, ``?``, ``[…]`` and ``**``, and does not match
        local names that begin with a dot. A URL that ends in ``/`` is a prefix: everything below it is
        uploaded
    :param content_types: media types by name pattern (``{"*.log": "text/plain"}``), by default guessed from
        the file's extension
    :raises FileUnavailableError: if a file is missing, a glob or prefix matches nothing, a source is a
        directory or otherwise not a readable file, or a store cannot be reached, naming it
    :raises InvalidRequestError: if there is nothing to upload, a source is of another type, or there is no
        store for a URL
    """
    if isinstance(files, str | os.PathLike | ObjectStoragePath | Asset | Mapping | File):
        files = [files] if files != {} else []
    elif isinstance(files, bytes | bytearray) or not isinstance(files, Sequence | set | frozenset | Iterator):
        raise InvalidRequestError(
            f"files is {kind_of(files)}: expected a list of paths, globs, URLs or mappings."
        )
    types = check_content_types(content_types or {})
    elements = [
        element
        for number, source in enumerate(files)
        for element in _elements(source, f"files[{number}]", types)
    ]
    if not elements:
        raise InvalidRequestError("files is empty: expected at least one path, glob, URL or mapping.")
    return elements


def _elements(source: FileSource, name: str, types: Mapping[str, str]) -> Iterator[Element]:
    kind = type(source)
    if isinstance(source, Asset):
        source = source.uri
    if isinstance(source, Mapping | File):
        yield source
    elif isinstance(source, ObjectStoragePath) or (isinstance(source, str) and "://" in source):
        yield from _stored_files(source, name, types, kind)
    elif isinstance(source, str | os.PathLike):
        for path in _local_paths(os.fspath(source), name):
            yield _local_file(path, types)
    else:
        raise InvalidRequestError(
            f"{name} is {kind_of(source)}: expected a path, a glob, a URL or a mapping."
        )


# Local files ------------------------------------------------------------------------------------------


def _local_paths(text: str, name: str) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidRequestError(f"{name} is an empty path: give a path, a glob, a URL or a mapping.")
    _check_path(text, name)
    # A file whose own name looks like a pattern is meant as it is written.
    if not glob.has_magic(text) or os.path.lexists(text):
        return [text]
    matches = sorted(glob.glob(text, recursive=True))
    if "**" in text:
        # ** also matches what is in these directories; without it, a directory among the matches is an error.
        matches = [match for match in matches if not Path(match).is_dir()]
    if not matches:
        raise FileUnavailableError(f"{name}: the glob {text!r} matches no file.", next_step=_path_hint(text))
    return matches


def _check_path(path: str, name: str) -> None:
    """
    Check what no retry can mend.

    :raises InvalidRequestError: if a path is not one
    """
    if ("{{" in path or "{%" in path) and not os.path.lexists(path):
        raise InvalidRequestError(
            f"{name} is {path!r}, a template that was not rendered.",
            next_step="Airflow renders templates in text, but not in a Path: give the path as text.",
        )
    if path.startswith("~") and not os.path.lexists(path):
        raise InvalidRequestError(
            f"{name} is {path!r}, and ~ is not expanded, because it means a different folder for each user.",
            next_step="Give an absolute path.",
        )


def _path_hint(path: str) -> str:
    """Say what is unusual about a path where there is no file."""
    if not path.startswith("/"):
        return f"A relative path is looked up in the worker's current directory, {str(Path.cwd())!r}."
    return ""


# With plain text instead of Path, which would double the cost of reading a small file.


def _local_file(path: str, types: Mapping[str, str]) -> File:
    try:
        state = os.stat(path)  # noqa: PTH116 - a Path costs too much, see above
        if stat.S_ISDIR(state.st_mode):
            kind = f"link to the directory {_target(path)!r}" if _is_link(path) else "directory"
            raise FileUnavailableError(
                f"{path!r} is a {kind}: pass its files, or a glob such as {path.rstrip('/')}/*."
            )
        if not stat.S_ISREG(state.st_mode):
            raise FileUnavailableError(f"{path!r} is not a regular file.")
        if not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and _is_link(path):
            raise FileUnavailableError(
                f"{path!r} is a link to {_target(path)!r}, which does not exist: fix the link, or leave it out."
            ) from None
        why = getattr(error, "strerror", None) or error
        raise FileUnavailableError(
            f"{path!r} cannot be read: {why}.",
            next_step=_path_hint(path) if isinstance(error, FileNotFoundError) else "",
        ) from None
    name = path.rpartition("/")[2]
    return File(
        name=name,
        size=state.st_size,
        content_type=_content_type(name, types),
        source=repr(path),
        open=functools.partial(_open, path),
        fingerprint=functools.partial(_local_fingerprint, path),
    )


def _open(path: str) -> IO[bytes]:
    # It is read in large chunks: a buffer in between would only copy them.
    stream = open(path, "rb", buffering=0, opener=_without_waiting)  # noqa: SIM115 - likewise
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return stream


def _without_waiting(path: str, flags: int) -> int:
    # A FIFO that took the file's place would wait for a writer, for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def _local_fingerprint(path: str) -> object:
    state = os.stat(path)  # noqa: PTH116 - a Path costs too much, see above
    # A change may still be in progress, or be followed by another within the same tick of the file system's
    # clock.
    unsettled = _SETTLED - (time.time() - max(state.st_mtime, state.st_ctime))
    if 0 < unsettled <= _SETTLED:
        time.sleep(unsettled)
        state = os.stat(path)  # noqa: PTH116 - see above
    # Programs cannot set the change time, so it reveals changes that `touch -r` and `rsync --times` hide.
    # Without the device: the number of a network file system may differ between machines, and a retry on
    # another machine would send everything again.
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _is_link(path: str) -> bool:
    return Path(path).is_symlink()


def _target(path: str) -> str:
    return str(Path(path).readlink())


# Object storage ---------------------------------------------------------------------------------------


def _stored_files(
    source: ObjectStoragePath | str, name: str, types: Mapping[str, str], kind: type
) -> Iterator[File]:
    # Imported here, as Airflow does: fsspec is slow to import, and most uploads are of local files.
    from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

    url = str(source)
    try:
        storage = ObjectStoragePath(source) if isinstance(source, str) else source
        fs, path = storage.fs, storage.path
    except ValueError as error:
        raise InvalidRequestError(
            f"{name}: {url!r} is not a URL that Airflow's object storage reads ({error}): check its scheme, and that "
            "the provider of the store is installed."
        ) from None
    except Exception as error:  # object stores raise all kinds of exceptions
        raise _unreadable(name, url, error) from None
    try:
        fs.invalidate_cache()  # a listing cached by an earlier task may be out of date
        if glob.has_magic(url) and not fs.exists(path):
            found = fs.glob(path, detail=True)
            if "**" in url:
                found = {key: info for key, info in found.items() if info["type"] != "directory"}
        elif url.endswith("/"):
            found = fs.find(path, detail=True)
        else:
            found = {path: fs.info(path)}
    except FileNotFoundError:
        # A broken link exists, and is reported as a local path.
        found = {path: {"type": "link"}} if isinstance(fs, LocalFileSystem) and _is_link(path) else {}
    except Exception as error:  # object stores raise all kinds of exceptions
        raise _unreadable(name, url, error) from None
    if not found:
        raise FileUnavailableError(f"{name}: there is no file at {url!r}.")
    for key, info in sorted(found.items()):
        if info["type"] == "directory":
            raise _directory(fs.unstrip_protocol(key), url, kind)
        if isinstance(fs, LocalFileSystem):
            yield _local_file(key, types)
        else:
            yield _stored_file(fs, key, info, types)


def _unreadable(name: str, url: str, error: Exception) -> FileUnavailableError:
    return FileUnavailableError(f"{name}: {url!r} cannot be read: {type(error).__name__}: {error}.")


def _directory(found: str, url: str, kind: type) -> FileUnavailableError:
    if glob.has_magic(url):
        advice = "let the glob match only files, or use ** to match everything below it"
    elif issubclass(kind, str):
        advice = "end it with / to upload everything below it"
    else:
        # Airflow strips a trailing /, so it is unknown whether a prefix or a file was meant.
        advice = f"to upload everything below it, pass the text '{url}/', because {kind.__name__} strips a trailing /"
    return FileUnavailableError(f"{found!r} is a directory: {advice}.")


def _stored_file(fs: Any, key: str, info: Mapping[str, Any], types: Mapping[str, str]) -> File:
    source = repr(fs.unstrip_protocol(key))
    if info["type"] != "file":
        raise FileUnavailableError(f"{source} is not a file, but of type {info['type']!r}: leave it out.")
    if info.get("size") is None:
        raise FileUnavailableError(
            f"{source} has no known size, which an upload requires: copy it to a file first."
        )
    name = PurePosixPath(key).name
    return File(
        name=name,
        size=info["size"],
        content_type=_content_type(name, types),
        source=source,
        open=lambda: fs.open(key, "rb", block_size=_BLOCK),
        fingerprint=lambda: _stored_fingerprint(fs, key),
    )


def _stored_fingerprint(fs: Any, key: str) -> object:
    fs.invalidate_cache(key)
    info = fs.info(key)
    return tuple(str(info.get(field)) for field in _FINGERPRINT)


# Content types ----------------------------------------------------------------------------------------


def _content_type(name: str, types: Mapping[str, str]) -> str:
    for pattern, content_type in types.items():
        if fnmatch.fnmatch(name, pattern):
            return content_type
    guessed, compressed = mimetypes.guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        return _COMPRESSED.get(compressed, _UNKNOWN_TYPE)
    return guessed or _UNKNOWN_TYPE
